"""What a benchmark may be asked for: its flags, each with a default and a reader.

A benchmark is a module of this package with

    FLAGS: Mapping[str, Flag]      "--reps" -> what it stands for where it is not given
    measure(asked, configs, tell)  told: a dict that JSON can hold. `asked` has a value for each of
                                   FLAGS, without its dashes; `configs` makes what is measured;
                                   `tell` gets a line now and then. Raises Refused, a line for
                                   people
    to_text(told)                  the same for a terminal

A row of told["rows"] that has `kept` keeps its bound or not.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from mha_jax import host
from mha_jax.config import StaticConfig

Tell = Callable[[str], None]
Told = dict[str, Any]


class Refused(ValueError):
    """What was asked for does not go together."""


class Configs(Protocol):
    """Makes what is measured; the scripts have one, since configs are above this package."""

    def one(self, name: str, changes: Mapping[str, Any]) -> StaticConfig:
        """The setting of that name in configs/bench.py, with changes by dotted key.

        Raises:
          Refused: they are no sound config.
        """

    def swept(self, name: str, changes: Mapping[str, Any]) -> list[StaticConfig]:
        """The shapes of its sweep.

        Raises:
          Refused: they are no sound config.
        """


class Flag(NamedTuple):
    """A flag that is written --name=text."""

    default: str
    # Raises ValueError with the rule, which follows "--name=text ".
    read: Callable[[str], Any]


def read(flags: Mapping[str, Flag], given: Mapping[str, str]) -> dict[str, Any]:
    """The value of every flag, by its name without dashes.

    Raises:
      ValueError: a text that a flag does not take.
    """
    asked = {}
    for name, flag in flags.items():
        text = given.get(name, flag.default)
        try:
            asked[name.lstrip("-")] = flag.read(text)
        except ValueError as error:
            raise ValueError(f"{name}={text} {error}") from None
    return asked


def here() -> dict[str, Any]:
    """What the figures are of: `machine`, with its load now, and `versions`."""
    told = host.describe(platform.machine(), {})
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    machine = {"processor": (names or [platform.processor()])[0], "load": load}
    machine |= {key: told[key] for key in ("threads", "platform", "source")}
    return {"machine": machine, "versions": told["versions"]}


def count(text: str) -> int:
    """A number from 1 to a million.

    Raises:
      ValueError: anything else.
    """
    if not (text.isascii() and text.isdecimal() and 0 < int(text) <= 10**6):
        raise ValueError("must be a number from 1 to 1000000")
    return int(text)


def one_of(known: Sequence[str]) -> Callable[[str], str]:
    """Reads one of the known words."""

    def read_word(text: str) -> str:
        if text not in known:
            raise ValueError(f"must be one of {', '.join(known)}")
        return text

    return read_word


def some_of(known: Sequence[str]) -> Callable[[str], list[str]]:
    """Reads some of the known words, between commas, each once."""

    def read_words(text: str) -> list[str]:
        words = text.split(",")
        if not set(words) <= set(known) or len(set(words)) < len(words):
            raise ValueError(f"must be some of {','.join(known)}, each once")
        return words

    return read_words


def counts(least: int, most: int, how_many: int = 1) -> Callable[[str], list[int]]:
    """Reads `how_many` or more different numbers in a range, between commas; ascending."""
    words = {1: "numbers", 2: "two or more numbers"}[how_many]

    def read_counts(text: str) -> list[int]:
        parts = text.split(",")
        sound = all(p.isascii() and p.isdecimal() and least <= int(p) <= most for p in parts)
        if not sound or len(set(parts)) < how_many:
            raise ValueError(f"must be {words} from {least} to {most}, like {least},{4 * least}")
        return sorted({int(part) for part in parts})

    return read_counts

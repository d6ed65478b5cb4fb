"""The command line of the scripts that take directories. `cli` reads that of a launch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mha_jax.values import Key, Problem, nearest, parse
from mha_jax.values import read as read_value

RUN = "one run, <workdir>/<experiment>/<label>-<hash>"


def read(
    argv: Sequence[str],
    n_words: int,
    words: str,
    *,
    valued: Sequence[str] = (),
    switches: Sequence[str] = (),
) -> tuple[list[str], dict[str, str]]:
    """The words of a command line, and its flags with their values ("" for a switch).

    Args:
      argv: what follows the script's name.
      n_words: how many words that are no flags it takes.
      words: what they are, for people: "two directories, <workdir>/<experiment>".
      valued: flags that are written --flag=VALUE.
      switches: flags that stand alone.

    Raises:
      ValueError: another number of words, a flag that is unknown, given twice, without its value or
        with one that it does not take.
    """
    found: list[str] = []
    flags: dict[str, str] = {}
    for word in argv:
        flag, equals, value = word.partition("=")
        if not word.startswith("-"):
            found.append(word)
            continue
        if flag not in (*valued, *switches):
            fix = nearest(flag, [*valued, *switches]) or "; --help lists the flags"
            raise ValueError(f"{flag} is no flag{fix}")
        if flag in flags:
            raise ValueError(f"{flag} is given twice; keep one")
        if flag in valued and not value:
            raise ValueError(f"{flag} has no value; write {flag}=<value>")
        if flag in switches and equals:
            raise ValueError(f"{flag} is a switch and takes no value; write {flag}")
        flags[flag] = value
    if len(found) != n_words:
        raise ValueError(f"takes {words}; got {' '.join(found) or 'nothing'}")
    return found, flags


def value(flags: Mapping[str, str], flag: str, key: Key, default: Any) -> Any:
    """What a flag that is there stands for, or the default.

    Raises:
      ValueError: a value that the key does not take.
    """
    if flag not in flags:
        return default
    plain, message = read_value(key, parse(key, flags[flag]))
    if message:
        raise ValueError(str(Problem(flag, flags[flag], message)))
    return plain


def run_and_checkpoint(
    argv: Sequence[str], *, valued: Sequence[str] = (), switches: Sequence[str] = ()
) -> tuple[str, str | int, dict[str, str]]:
    """What a script about one run is given, `RUN [--at=last|best|STEP] [--json]` and more: its
    directory, the checkpoint, and all flags.

    Raises:
      ValueError: what `read` raises, or no checkpoint's name.
    """
    (run,), flags = read(argv, 1, RUN, valued=("--at", *valued), switches=("--json", *switches))
    return run, checkpoint(flags.get("--at", "last")), flags


def checkpoint(text: str, flag: str = "--at") -> str | int:
    """Which checkpoint a flag names: "last", "best" or a step.

    Raises:
      ValueError: none of these.
    """
    if text in ("last", "best"):
        return text
    if not (text.isascii() and text.isdecimal()):
        raise ValueError(f"{flag}={text} must be last, best or a step")
    return int(text)

"""The flags that say where a launch trains, and what of the sweep."""

from __future__ import annotations

import dataclasses
import importlib.util
import re
import socket
from collections.abc import Iterator, Mapping

from mha_jax.parts import WHOLE, Part
from mha_jax.values import Problem, nearest

FLAGS = ("--workers", "--engine", "--ray_address", "--part", "--hosts", "--stuck_after")
ENGINES = ("local", "ray")
_MOST = 1024  # workers, parts, hosts
_PART = re.compile(r"([0-9]{1,4})/([0-9]{1,4})", re.ASCII)
_HOSTS = re.compile(r"[^\s,]+:([0-9]{1,5}),([0-9]{1,4}),([0-9]{1,4})", re.ASCII)


@dataclasses.dataclass(frozen=True)
class Options:
    """Where a launch trains, with how many processes, and what of the sweep."""

    workers: int | None = None  # None: as many as suit the place
    engine: str = "local"
    ray_address: str | None = None  # None: as ray.init finds one, or a new one on this machine
    part: Part = WHOLE
    hosts: str | None = None  # "auto" or "HOST:PORT,INDEX,COUNT"
    stuck_after_s: float = 1800.0  # a worker that tells nothing for so long is ended

    @property
    def log_name(self) -> str:
        """The file that takes what workers print: launchers that share a directory differ in it."""
        name = "workers"
        if self.hosts == "auto":
            name += f"-{socket.gethostname()}"
        elif self.hosts is not None:
            name += f"-{int(self.hosts.split(',')[1]) + 1}-of-{int(self.hosts.split(',')[2])}"
        elif self.part != WHOLE:
            name += f"-{self.part.index}-of-{self.part.count}"
        return f"{name}.log"


def read(flags: Mapping[str, str]) -> tuple[Options, list[Problem]]:
    """The options that a command line gives, and all that is wrong with them. A flag without a
    value is left to the caller."""
    given = {flag: flags[flag] for flag in FLAGS if flags.get(flag)}
    problems = [*_wrong(given), *_at_odds(given)]
    if problems:
        return Options(), problems
    named = _PART.fullmatch(given.get("--part", ""))
    return Options(
        int(given["--workers"]) if "--workers" in given else None,
        given.get("--engine", "local"),
        given.get("--ray_address"),
        Part(int(named[1]), int(named[2])) if named else WHOLE,
        given.get("--hosts"),
        float(given.get("--stuck_after", Options.stuck_after_s)),
    ), []


def _wrong(given: Mapping[str, str]) -> Iterator[Problem]:
    """Values that a flag does not take."""
    workers, engine, part, hosts = map(given.get, ("--workers", "--engine", "--part", "--hosts"))
    if workers and not (workers.isascii() and workers.isdigit() and _fits(workers)):
        yield Problem("--workers", workers, f"must be an integer from 1 to {_MOST}; choose one")
    stuck_after = given.get("--stuck_after", "1")
    if not (stuck_after.isascii() and stuck_after.isdigit() and 1 <= int(stuck_after[:9]) <= 10**7):
        rule = "must be whole seconds from 1 to 10000000; choose a number"
        yield Problem("--stuck_after", stuck_after, rule)
    if engine and engine not in ENGINES:
        fix = nearest(engine, ENGINES) or "; choose one"
        yield Problem("--engine", engine, f"must be one of {', '.join(ENGINES)}{fix}")
    if engine == "ray" and importlib.util.find_spec("ray") is None:
        fix = "; pip install -e .[ray], or choose --engine=local"
        yield Problem("--engine", engine, f"needs Ray, which is not installed{fix}")
    if part:
        named = _PART.fullmatch(part)
        if not (named and _fits(named[2]) and 1 <= int(named[1]) <= int(named[2])):
            rule = f"must be i/n with i from 1 to n, and n at most {_MOST}; write --part=2/8"
            yield Problem("--part", part, rule)
    if hosts and hosts != "auto":
        named = _HOSTS.fullmatch(hosts)
        if not (
            named and int(named[1]) < 65536 and _fits(named[3]) and int(named[2]) < int(named[3])
        ):
            rule = (
                "must be auto, or HOST:PORT,INDEX,COUNT with INDEX from 0 to COUNT-1; write "
                "--hosts=10.0.0.1:9911,0,2 on the first of two, whose address that is"
            )
            yield Problem("--hosts", hosts, rule)


def _at_odds(given: Mapping[str, str]) -> Iterator[Problem]:
    """Flags that contradict each other."""
    ray = given.get("--engine") == "ray"
    if given.get("--ray_address", "").startswith("ray://"):
        rule = "is a client's address; launch on a node of the cluster, with --ray_address=auto"
        yield Problem("--ray_address", given["--ray_address"], rule)
    if "--ray_address" in given and not ray:
        rule = "is read with --engine=ray alone; add it, or drop the address"
        yield Problem("--ray_address", given["--ray_address"], rule)
    if "--hosts" in given:
        for flag in ("--part", "--workers"):
            if flag in given:
                rule = "cannot be given with --hosts: each host has one worker and its own part"
                yield Problem(flag, given[flag], f"{rule}; drop one of them")
        if ray:
            yield Problem("--engine", "ray", "cannot be given with --hosts; drop one of them")


def _fits(number: str) -> bool:
    return 1 <= int(number[:5]) <= _MOST

"""Several launchers at one sweep: the share of each, and the locks that keep two of them from
training one run. Imports no jax.

The locks go with the process that holds them. On a file system that several machines share they
must hold between machines: those of NFS do, those of Lustre where it is mounted with `flock`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import os
import re
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TextIO

_LOCK = re.compile(r"\.lock-([0-9]+)-of-([0-9]+)")
_PATIENCE_S = 1.0  # to look whether a lock is held takes it for a moment


@dataclasses.dataclass(frozen=True)
class Part:
    """What one of several launchers trains of a sweep: "2/8" is the second of eight parts."""

    index: int = 1  # from 1
    count: int = 1

    def has(self, run_hash: str) -> bool:
        """Whether a run is its to train. That depends on the run alone: launchers that are at
        different stages, or that plan more runs than others, agree on it."""
        return int(run_hash, 16) % self.count == self.index - 1

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"


WHOLE = Part()


@contextlib.contextmanager
def locked(root: Path, part: Part = WHOLE) -> Iterator[None]:
    """Keeps a second launch out of a sweep's directory. A part keeps out the launch of the whole,
    of the same part, and of parts of another count; it lets in the other parts.

    Raises:
      ValueError: such a launch is at work.
    """
    root.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        whole = part.count == 1
        _hold(stack, root, root / ".lock", fcntl.LOCK_EX if whole else fcntl.LOCK_SH)
        if not whole:
            _hold(stack, root, _path(root, part), fcntl.LOCK_EX)
            for other in at_work(root):
                if other.count != part.count:
                    raise ValueError(
                        f"{root}: part {other} is at work, so no part of {part.count} can be; wait "
                        f"for it, or stop it"
                    )
        yield


def at_work(root: Path) -> list[Part]:
    """The parts whose launchers are at work in a sweep's directory, this one among them."""
    found = []
    for path in root.glob(".lock-*-of-*"):
        named = _LOCK.fullmatch(path.name)
        if named:
            with path.open() as file:
                if not _take(file, fcntl.LOCK_SH):
                    found.append(Part(int(named[1]), int(named[2])))
    return sorted(found, key=lambda part: (part.count, part.index))


@contextlib.contextmanager
def held(root: Path, hashes: Sequence[str], wait: Callable[[str], None]) -> Iterator[None]:
    """Holds the locks on runs of a sweep, and waits for those that another process holds: a worker
    that has lost its launcher, and is not gone yet, keeps the next one waiting. `wait` is told the
    hash of each.

    One file for all runs, a byte for each. All processes take them in one order, so that none waits
    for ever; a process holds them once at a time, since closing the file gives all of them back.
    """
    places = {int(run_hash, 16): run_hash for run_hash in hashes}
    with (root / ".runs.lock").open("a+") as file:
        for place in sorted(places):
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, place)
            except (BlockingIOError, PermissionError):
                wait(places[place])
                fcntl.lockf(file, fcntl.LOCK_EX, 1, place)
        yield


def _path(root: Path, part: Part) -> Path:
    return root / f".lock-{part.index}-of-{part.count}"


def _hold(stack: contextlib.ExitStack, root: Path, path: Path, how: int) -> None:
    """Takes a lock for as long as the stack stands, and says there who has it."""
    file = stack.enter_context(path.open("a+"))
    deadline = time.monotonic() + _PATIENCE_S
    while not _take(file, how):
        if time.monotonic() > deadline:
            raise ValueError(
                f"{root}: another launch is at work ({_holders(root, file)}); wait for it, or stop "
                f"it"
            )
        time.sleep(0.05)
    if how == fcntl.LOCK_EX:
        file.truncate(0)
        file.write(f"host {socket.gethostname()}, pid {os.getpid()}\n")
        file.flush()


def _holders(root: Path, refused: TextIO) -> str:
    """Who is at work: the parts that are, else who the lock file names."""
    parts = at_work(root)
    if parts:
        told = (f"part {part}: {_path(root, part).read_text().strip()}" for part in parts)
        return "; ".join(told)
    refused.seek(0)
    return refused.read().strip() or "unknown"


def _take(file: TextIO, how: int) -> bool:
    try:
        fcntl.flock(file, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True

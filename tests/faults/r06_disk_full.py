"""R6: the disk is full while a checkpoint is saved, a line of the log is written, a report is made.
No traceback, the last good checkpoint is intact, and with room again the same command goes on.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.faults import results, small
from tests.faults.stored import Stored
from tests.faults.tally import Tally, draws, needs, say

TIMES = (1, 3)  # of each kind: quick, full
_SIZE_MIB = 8
_PAGE = 4096


def run(seed: int, quick: bool, directory: Path) -> list[dict[str, Any]]:
    """The rows of R6."""
    names = {kind: f"R6 disk full in {kind}" for kind in ("save", "log", "report", "start")}
    draw, tallies = draws(seed, "R6"), [Tally(name) for name in names.values()]
    for tally, kind in zip(tallies, names, strict=True):
        for i in range(TIMES[not quick]):
            try:
                with mounted(directory / f"{kind}_{i}", f"size={_SIZE_MIB}m") as disk:
                    tally.add(_CASES[kind](disk, directory, kind, draw))
            except PermissionError:
                return [needs(name, "the right to mount a tmpfs") for name in names.values()]
            say(f"{tally.name}: {tally.passed} of {tally.tried}")
    return [tally.row() for tally in tallies]


@contextlib.contextmanager
def mounted(place: Path, options: str) -> Iterator[Path]:
    """A small disk in memory.

    Raises:
      PermissionError: this process may not mount one.
    """
    place.mkdir(parents=True, exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)]
    if not shutil.which("mount") or subprocess.run(command, capture_output=True).returncode:
        raise PermissionError("mount")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def fill(disk: Path, but: int = 0) -> Path:
    """Fills a disk; `but` bytes stay free. Returns the file to remove."""
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"\0" * _PAGE)
    os.truncate(filler, max(0, filler.stat().st_size - but))
    return filler


def _in_training(disk: Path, directory: Path, kind: str, draw: random.Random) -> list[str]:
    whole, _ = small.unbroken(directory.parent)
    config = small.write(directory / f"config_{kind}")
    root = disk / small.NAME
    process = small.start(config, disk, faults=[small.SLOW])
    until = draw.randrange(2, 24) * small.SAVE_EVERY
    small.wait_for(lambda: process.poll() is not None or results.progress(root) >= until)
    # A save takes seven pages and more, a line of the log at most one.
    filler = fill(disk, draw.randrange(1, 5) * _PAGE if kind == "save" else 0)
    saved = results.saved(root)
    ended = small.finish(process, 300)
    wrong = ended.wrong(1, 2) + [f"without room: {w}" for w in _damaged(root, saved)]
    filler.unlink()
    return wrong + _goes_on(config, disk, whole)


def _at_start(disk: Path, directory: Path, kind: str, draw: random.Random) -> list[str]:
    whole, _ = small.unbroken(directory.parent)
    config = small.write(directory / f"config_{kind}")
    filler = fill(disk, draw.choice((0, 1, 2, 4, 8)) * _PAGE)
    ended = small.launch(config, disk)
    wrong = ended.wrong(1, 2)
    filler.unlink()
    return wrong + _goes_on(config, disk, whole)


def _in_report(disk: Path, directory: Path, kind: str, draw: random.Random) -> list[str]:
    whole, _ = small.unbroken(directory.parent)
    config, root = small.write(directory / f"config_{kind}"), disk / small.NAME
    shutil.copytree(whole, root)
    before = results.contents(root)
    filler = fill(disk, draw.choice((0, 1, 2)) * _PAGE)
    ended = small.launch(config, disk)
    wrong = ended.wrong(1, 2)
    if len(ended.err.splitlines()) > 1:
        wrong.append(f"{len(ended.err.splitlines())} lines on stderr")
    now = results.contents(root)
    wrong += [
        f"{name} was damaged"
        for name, data in before.items()
        if now.get(name, b"") != data
        and name.endswith((".csv", ".txt", ".json", ".jsonl"))
        and name != "sweep.json"
    ]
    filler.unlink()
    return wrong + _goes_on(config, disk, whole)


def _goes_on(config: Path, disk: Path, whole: Path) -> list[str]:
    """With room again the same command goes on."""
    ended = small.again(config, disk)
    wrong = ended.wrong(0) or results.differences(disk / small.NAME, whole)
    return [f"with room again: {w}" for w in wrong]


def _damaged(root: Path, saved: dict[str, int]) -> list[str]:
    """Checkpoints that counted and do not any more."""
    found = []
    for run in results.runs(root):
        before, now = saved.get(run.name, 0), results.saved(root).get(run.name, 0)
        if now < before:
            found.append(f"{run.name}: checkpoint {before} is gone, the newest is {now}")
        elif now:
            for rubbish in (run / "checkpoints").glob("*.tmp"):
                shutil.rmtree(rubbish, ignore_errors=True)
            Stored(run)  # raises where one of them is not whole
    return found


_CASES = {"save": _in_training, "log": _in_training, "report": _in_report, "start": _at_start}

"""R2: SIGINT and SIGTERM. Every worker saves its runs, which takes at most five seconds; the exit
code is 130 or 143, a line says so, and the same command goes on exactly there. A second signal ends
a launch at once.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

from tests.faults import results, small
from tests.faults.tally import Tally, draws, say

SIGNALS = (3, 10)  # quick, full
SECOND = (1, 3)
_AT_MOST_S = 5.0
_CODES = {signal.SIGINT: 130, signal.SIGTERM: 143}


def run(seed: int, quick: bool, directory: Path) -> list[dict[str, Any]]:
    """The rows of R2."""
    draw = draws(seed, "R2")
    one, two = Tally("R2 signals"), Tally("R2 a second signal")
    whole, _ = small.unbroken(directory.parent)
    kinds = _shuffled(draw, SIGNALS[not quick])
    slowest = 0.0
    for i, (number, to_all, early) in enumerate(kinds):
        config = small.write(directory / f"signal_{i}")
        out, root = config.parent / "out", config.parent / "out" / small.NAME
        process = small.start(config, out, faults=[small.SLOW])
        _wait(process, root, draw, early)
        begun = time.monotonic()
        _send(process, number, to_all)
        ended = small.finish(process, 60)
        slowest = max(slowest, time.monotonic() - begun)
        wrong = _wrong(ended, number) + _unsaved(root)
        small.kill(process)  # what is left of it
        again = small.launch(config, out)
        wrong += again.wrong(0) or results.differences(root, whole)
        to = "to all processes" if to_all else "to the launcher"
        one.add(wrong, f"{number.name} {to}{', early' if early else ''}")
        say(f"R2: {one.tried} of {len(kinds)} signals")
    one.told.append(f"the slowest end took {slowest:.1f} s")
    for i, (number, to_all, _) in enumerate(_shuffled(draw, SECOND[not quick])):
        config = small.write(directory / f"second_{i}")
        out, root = config.parent / "out", config.parent / "out" / small.NAME
        process = small.start(config, out, faults=[small.SLOW])
        _wait(process, root, draw, early=False)
        _send(process, number, to_all)
        time.sleep(draw.uniform(0, 0.05))
        _send(process, number, to_all)
        wrong = small.finish(process, 60).wrong(_CODES[number], -number)
        small.kill(process)
        again = small.launch(config, out)
        two.add(wrong + (again.wrong(0) or results.differences(root, whole)), number.name)
    return [one.row(), two.row()]


def _shuffled(draw: random.Random, n: int) -> list[tuple[signal.Signals, bool, bool]]:
    """Which signal, whether all processes get it as from a terminal, whether it comes early."""
    kinds = [(s, to_all, i % 5 == 4) for i in range(n) for s in _CODES for to_all in (True, False)]
    return draw.sample(kinds, n)


def _wait(process: subprocess.Popen[str], root: Path, draw: random.Random, early: bool) -> None:
    if early:  # workers are starting, or not even that
        time.sleep(draw.uniform(0.5, 3))
        return
    until = draw.randrange(2, 30) * small.SAVE_EVERY
    small.wait_for(lambda: process.poll() is not None or results.progress(root) >= until)
    time.sleep(draw.uniform(0, 0.05))


def _send(process: subprocess.Popen[str], number: signal.Signals, to_all: bool) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number) if to_all else process.send_signal(number)


def _wrong(ended: small.Ended, number: signal.Signals) -> list[str]:
    wrong = ended.wrong(_CODES[number])
    if ended.seconds > _AT_MOST_S:
        wrong.append(f"it took {ended.seconds:.1f} s")
    if len(ended.err.splitlines()) != 1:
        wrong.append(f"{len(ended.err.splitlines())} lines on stderr instead of one")
    return wrong


def _unsaved(root: Path) -> list[str]:
    """Runs whose records go on after their newest checkpoint, although they were told to save."""
    saved, found = results.saved(root), []
    for directory in results.runs(root):
        path = directory / "metrics.jsonl"
        if not path.exists() or (directory / "summary.json").exists():
            continue
        last = max((row["step"] for row in results.rows(path)), default=0)
        if last > saved.get(directory.name, 0):
            newest = saved.get(directory.name)
            found.append(f"{directory.name}: records until step {last}, saved is {newest}")
    return found

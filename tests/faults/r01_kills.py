"""R1: a launch and its workers are killed at a random moment, again and again, some of them while
a checkpoint is being saved. Launching again must go on from what was acknowledged, that is, from
the newest checkpoint with a manifest, and end like the sweep that nothing happened to.
"""

from __future__ import annotations

import json
import random
import time
from pathlib import Path
from typing import Any

from tests.faults import results, small
from tests.faults.tally import Tally, draws, say

KILLS = (8, 50)  # quick, full
_IN_ONE_LIFE = 4  # kills of one sweep; then it may end
_KINDS = ("saving", "training", "any", "saving", "training", "over")


def run(seed: int, quick: bool, directory: Path) -> list[dict[str, Any]]:
    """The row of R1."""
    draw, tally = draws(seed, "R1"), Tally("R1 killed at a random moment")
    n, lives, in_saves = KILLS[not quick], 0, 0
    while tally.tried < n:
        lives += 1
        killed, wrong, unfinished = _life(
            directory, lives, draw, min(_IN_ONE_LIFE, n - tally.tried), tally.tried
        )
        in_saves += unfinished
        for i, kind in enumerate(killed):
            tally.add(wrong[i], f"life {lives}, kill {i + 1} ({kind})")
        say(f"R1: {tally.tried} of {n} kills")
    tally.told.append(f"{in_saves} in a save")
    return [tally.row()]


def _life(
    directory: Path, number: int, draw: random.Random, most: int, before: int
) -> tuple[list[str], list[list[str]], int]:
    """One sweep, killed up to `most` times, then left to end.

    Returns:
      The kinds of the kills, what was wrong after each of them, and how many left an unfinished
      save behind.
    """
    whole, span_s = small.unbroken(directory.parent)
    config = small.write(directory / f"life_{number}")
    out, root = config.parent / "out", config.parent / "out" / small.NAME
    killed: list[str] = []
    wrong: list[list[str]] = []
    unfinished = 0
    acknowledged: dict[str, int] = {}
    tails: set[Path] = set()
    while True:
        process = small.start(config, out, faults=[small.SLOW])
        if len(killed) < most:
            kind = _KINDS[(before + len(killed) + number) % len(_KINDS)]
            _wait(process, root, kind, draw, span_s)
        over = len(killed) == most or process.poll() is not None
        if over:
            ended = small.finish(process)
        else:
            small.kill(process)
            process.communicate()
        lost, tails = _lost(root, acknowledged, tails)
        if lost and killed:
            wrong[-1] += lost
        if over:
            end = ended.wrong(0) or results.differences(root, whole)
            if not killed:  # it was over before its first kill
                return killed, wrong, unfinished
            return killed, [w or end for w in wrong], unfinished
        killed.append(kind)
        wrong.append([])
        unfinished += any(root.glob("*/checkpoints/*.tmp"))
        now = results.saved(root)
        gone = {run: step for run, step in acknowledged.items() if now.get(run, 0) < step}
        wrong[-1] += [f"{run}: checkpoint {step} is gone" for run, step in gone.items()]
        acknowledged |= now


def _wait(process: Any, root: Path, kind: str, draw: random.Random, span_s: float) -> None:
    """Waits until the moment of a kill."""
    if kind == "any":
        small.wait_for(lambda: process.poll() is not None, draw.uniform(0, span_s))
        return
    if kind == "over":  # the tables are being made, or are about to be
        n = len(results.runs(root)) or 2
        small.wait_for(
            lambda: process.poll() is not None or len(list(root.glob("*/summary.json"))) >= n
        )
        time.sleep(draw.uniform(0, 1.5))
        return
    until = results.progress(root) + draw.randrange(1, 10) * small.SAVE_EVERY
    small.wait_for(lambda: process.poll() is not None or results.progress(root) >= until)
    if kind == "training":
        time.sleep(draw.uniform(0, 0.1))
        return
    # A save makes a directory of this name and renames it: here it is between the two.
    small.wait_for(
        lambda: process.poll() is not None or any(root.glob("*/checkpoints/*.tmp")), pause_s=0.0005
    )
    time.sleep(draw.choice((0, 0, 0.002, 0.005)))


def _lost(
    root: Path, acknowledged: dict[str, int], known: set[Path]
) -> tuple[list[str], set[Path]]:
    """Acknowledged steps that a launch trained again: it puts the records from where it goes on
    into a new `metrics.tail-<n>.jsonl`; and all tails that are there now."""
    tails, found = set(root.glob("*/metrics.tail-*.jsonl")), []
    for path in sorted(tails - known):
        lines = path.read_bytes().splitlines()
        first, step = json.loads(lines[0])["step"], acknowledged.get(path.parent.name, -1)
        if first <= step:
            found.append(f"{path.parent.name}: went on before step {first}, {step} was saved")
    return found, tails

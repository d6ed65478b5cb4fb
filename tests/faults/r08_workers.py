"""R8: a worker, the launcher, or both are killed, paused, or lose their terminal, and a worker gets
stuck. A worker's run is tried
once more and goes on from its checkpoint; what was over is not trained again.
"""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path
from typing import Any

from tests.faults import results, small
from tests.faults.tally import Tally, draws, say

KILLS = (6, 24)  # quick, full
STUCK = (1, 3)
_WHO = ("worker", "launcher", "both", "worker when one run is over", "paused", "hung up")


def run(seed: int, quick: bool, directory: Path) -> list[dict[str, Any]]:
    """The rows of R8."""
    draw, killed = draws(seed, "R8"), Tally("R8 killed worker, launcher, both")
    n = KILLS[not quick]
    order = draw.sample(_WHO, len(_WHO))
    for i in range(n):
        who = order[i % len(order)]
        killed.add(_killed(directory / f"kill_{i}", who, draw), who)
        say(f"R8: {killed.tried} of {n} kills")
    stuck = Tally("R8 stuck worker")
    for i in range(STUCK[not quick]):
        stuck.add(_stuck(directory / f"stuck_{i}", draw))
    return [killed.row(), stuck.row()]


def _killed(home: Path, who: str, draw: random.Random) -> list[str]:
    whole, _ = small.unbroken(home.parents[1])
    config = small.write(home)
    out, root = home / "out", home / "out" / small.NAME
    over = "over" in who
    flags = ["--workers=1"] if over else []
    process = small.start(config, out, *flags, faults=[small.SLOW])
    until = draw.randrange(2, 24) * small.SAVE_EVERY
    small.wait_for(
        lambda: (
            process.poll() is not None
            or (any(root.glob("*/summary.json")) if over else results.progress(root) >= until)
        )
    )
    if over:
        time.sleep(draw.uniform(0, 0.3))
    workers = small.children(process.pid)
    finished = {path: path.stat().st_mtime_ns for path in root.glob("*/summary.json")}
    if who == "paused":
        for pid in (process.pid, *workers):
            os.kill(pid, signal.SIGSTOP)
        time.sleep(draw.uniform(1, 3))
        for pid in (*workers, process.pid):
            os.kill(pid, signal.SIGCONT)
        ended = small.finish(process)
    elif who.startswith("worker") and workers:
        os.kill(draw.choice(workers), signal.SIGKILL)
        ended = small.finish(process)
    else:
        if who == "both" and workers:
            os.kill(draw.choice(workers), signal.SIGKILL)
        # Its workers see their input end, and leave; a terminal that is closed tells all of them.
        if who == "hung up":
            os.killpg(process.pid, signal.SIGHUP)
        else:
            process.kill()
        process.communicate()
        ended = small.launch(config, out)
    wrong = ended.wrong(0) or _differences(root, whole, over)
    for path, at in finished.items():
        if path.stat().st_mtime_ns != at:
            wrong.append(f"{path.parent.name} was over and was trained again")
    return wrong


def _differences(root: Path, whole: Path, one_worker: bool) -> list[str]:
    """With one worker, on all cores, a run has other bits than with two; they are no fault."""
    if not one_worker:
        return results.differences(root, whole)
    done = [(path / "summary.json").exists() for path in results.runs(root)]
    return [] if all(done) and len(done) == 2 else ["not all runs are over"]


def _stuck(home: Path, draw: random.Random) -> list[str]:
    whole, _ = small.unbroken(home.parents[1])
    config = small.write(home)
    fault = {"name": "stuck", "marker": str(home / "marker"), "at": draw.randrange(2, 40)}
    ended = small.finish(small.start(config, home / "out", "--stuck_after=15", faults=[fault]), 300)
    wrong = ended.wrong(0) or results.differences(home / "out" / small.NAME, whole)
    return wrong if (home / "marker").exists() else [*wrong, "no worker got stuck"]

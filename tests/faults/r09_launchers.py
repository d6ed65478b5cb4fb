"""R9: a second launch in a directory where one is at work, two at the same moment, and the lock of
one that was killed.
"""

from __future__ import annotations

import socket
import time
from pathlib import Path
from typing import Any

from tests.faults import results, small
from tests.faults.tally import Tally, draws, say

SECONDS = (2, 5)  # quick, full
STALE, RACES = (1, 5), (1, 3)


def run(seed: int, quick: bool, directory: Path) -> list[dict[str, Any]]:
    """The rows of R9."""
    draw, second, stale = draws(seed, "R9"), Tally("R9 second launch"), Tally("R9 stale lock")
    whole, _ = small.unbroken(directory.parent)
    n = SECONDS[not quick]
    for i in range(n):
        config = small.write(directory / f"second_{i}")
        out, root = config.parent / "out", config.parent / "out" / small.NAME
        go = config.parent / "go"
        hold = {"name": "hold", "at": draw.randrange(1, 40), "until": str(go)}
        first = small.start(config, out, faults=[hold])
        small.wait_for(lambda root=root: (root / ".lock").exists(), pause_s=0.001)
        time.sleep(draw.uniform(0, 3))
        by = out
        if i % 2:  # the same directory by another name
            by = config.parent / "by_another_name"
            by.symlink_to(out)
        refused = small.finish(small.start(config, by), 120)  # a broken lock may make it wait
        go.touch()
        ended = small.finish(first)
        wrong = [f"first: {w}" for w in ended.wrong(0)] + _refused(refused, first.pid)
        second.add(wrong or results.differences(root, whole), "by a link" if i % 2 else "")
        say(f"R9: {second.tried} of {n} second launches")
    race = Tally("R9 two launches at once")
    for i in range(RACES[not quick]):
        config = small.write(directory / f"race_{i}")
        out = config.parent / "out"
        both = [small.start(config, out, faults=[small.SLOW]) for _ in range(2)]
        ends = [small.finish(process) for process in both]
        codes = [end.code for end in ends]
        wrong = [] if sorted(codes) == [0, 2] else [f"exit codes {codes}"]
        if not wrong:
            wrong = _refused(ends[codes.index(2)], both[codes.index(0)].pid)
        race.add(wrong or results.differences(out / small.NAME, whole))
    for i in range(STALE[not quick]):
        home = directory / f"stale_{i}"
        config, out = small.write(home), home / "out"
        root = small.broken_off(directory.parent, out)  # its launcher was killed
        told = (root / ".lock").read_text()
        wrong = [] if "pid" in told else ["the lock does not say who has it"]
        if i % 2:  # another process has got the pid
            (root / ".lock").write_text(f"host {socket.gethostname()}, pid 1\n")
        again = small.launch(config, out)
        stale.add(wrong + (again.wrong(0) or results.differences(root, whole)))
    return [second.row(), race.row(), stale.row()]


def _refused(ended: small.Ended, pid: int) -> list[str]:
    wrong = ended.wrong(2)
    lines = ended.err.splitlines()
    if not wrong and len(lines) != 1:
        wrong.append(f"{len(lines)} lines on stderr instead of one")
    for part in (f"pid {pid}", f"host {socket.gethostname()}"):
        if not wrong and part not in ended.err:
            wrong.append(f"it does not name {part}")
    return wrong

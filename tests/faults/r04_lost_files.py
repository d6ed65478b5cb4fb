"""R4: every file of the newest checkpoint truncated, emptied, deleted. An older one is taken, with
a named reason; never step 0.
"""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

from tests.faults import results, small
from tests.faults.stored import Stored
from tests.faults.tally import Tally, draws

_DAMAGES = ("truncated", "emptied", "deleted", "grown", "a directory in its place")


def run(seed: int, quick: bool, directory: Path) -> list[dict[str, Any]]:
    """The row of R4: every file, each way, whatever the counts are."""
    draw = draws(seed, "R4")
    root = small.broken_off(directory.parent, directory)
    return [lost(Stored(draw.choice(results.runs(root))), draw).row()]


def lost(stored: Stored, draw: random.Random) -> Tally:
    """Every file and directory of the newest checkpoint of a run, one at a time."""
    tally, aside = Tally("R4 truncated, emptied, deleted files"), stored.run_dir / "aside"
    for path in [*stored.files(), *_folders(stored)]:
        for damage in ("deleted",) if path.is_dir() else _DAMAGES:
            path.rename(aside)
            if damage == "truncated":
                path.write_bytes(aside.read_bytes()[: draw.randrange(1, aside.stat().st_size)])
            elif damage == "emptied":
                path.write_bytes(b"")
            elif damage == "grown":
                path.write_bytes(aside.read_bytes() + b"\0")
            elif damage != "deleted":
                path.mkdir()
            how, wrong = stored.after_damage()
            if how != "fallback":
                wrong = wrong or [f"{how} instead of an older checkpoint"]
            tally.add(wrong, f"{path.relative_to(stored.run_dir)} {damage}")
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
            aside.rename(path)
    how, wrong = stored.after_damage()
    if how != "harmless" or wrong:
        tally.add(wrong or [how], "nothing is damaged any more")
    return tally


def _folders(stored: Stored) -> list[Path]:
    newest = stored.root / str(stored.steps[-1])
    return sorted(path for path in newest.rglob("*") if path.is_dir())

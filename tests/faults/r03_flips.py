"""R3: single bits flipped in every file of a checkpoint. Each is detected, and an older checkpoint
with a named reason is taken, or harmless: what is restored is bit for bit what was saved.
"""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

from tests.faults import results, small
from tests.faults.stored import HOW, Stored
from tests.faults.tally import Tally, draws, say

FLIPS = (200, 2000)  # quick, full
RESUMED = (1, 5)


def run(seed: int, quick: bool, directory: Path) -> list[dict[str, Any]]:
    """The rows of R3."""
    draw = draws(seed, "R3")
    root = small.broken_off(directory.parent, directory / "flips")
    tally = flips(Stored(draw.choice(results.runs(root))), FLIPS[not quick], draw)
    say(f"R3: {tally.passed} of {tally.tried} flips")
    resumed = Tally("R3 resumed after a flip")
    for i in range(RESUMED[not quick]):
        resumed.add(_resumed(directory / f"resumed_{i}", draw))
    shutil.rmtree(directory / "flips")
    return [tally.row(), resumed.row()]


def flips(stored: Stored, n: int, draw: random.Random) -> Tally:
    """Bits of the newest checkpoint of a run, one at a time, file after file."""
    tally, seen, files = Tally("R3 flipped bits"), dict.fromkeys(HOW, 0), stored.files()
    for i in range(n):
        path = files[i % len(files)]
        good = path.read_bytes()
        bit = draw.randrange(8 * len(good))
        path.write_bytes(flipped(good, bit))
        how, wrong = stored.after_damage()
        seen[how] += 1
        if how == "refused":
            wrong = ["refused, although older checkpoints are whole"]
        tally.add(wrong, f"bit {bit} of {path.relative_to(stored.run_dir)}")
        path.write_bytes(good)
    tally.told.append(", ".join(f"{n} {how}" for how, n in seen.items() if n))
    return tally


def flipped(data: bytes, bit: int) -> bytes:
    """The bytes with one bit changed."""
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def _resumed(home: Path, draw: random.Random) -> list[str]:
    """A bit of the newest arrays is flipped, and the sweep goes on from the checkpoint before."""
    whole, _ = small.unbroken(home.parents[1])
    config, out = small.write(home), home / "out"
    run_dir = draw.choice(results.runs(small.broken_off(home.parents[1], out)))
    newest = results.saved(run_dir.parent)[run_dir.name]
    path = run_dir / "checkpoints" / str(newest) / "data-1" / "state" / "0"
    path.write_bytes(flipped(path.read_bytes(), draw.randrange(8 * path.stat().st_size)))
    ended = small.launch(config, out)
    wrong = ended.wrong(0) or results.differences(run_dir.parent, whole)
    told = [line for line in ended.out.splitlines() if f"checkpoint {newest} skipped" in line]
    return wrong + ([] if len(told) == 1 else [f"{len(told)} lines tell of it instead of one"])

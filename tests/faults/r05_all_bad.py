"""R5: all checkpoints of a run are bad. Its files are left as they are and the exit code is 3; the
other run is trained to its end.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.faults import results, small
from tests.faults.r03_flips import flipped
from tests.faults.tally import Tally, draws


def _flip(home: Path, draw: random.Random) -> None:
    path = home / "data-1" / "state" / "0"
    path.write_bytes(flipped(path.read_bytes(), draw.randrange(8 * path.stat().st_size)))


def _no_manifest(home: Path, draw: random.Random) -> None:
    (home / "manifest.json").unlink()


def _no_arrays(home: Path, draw: random.Random) -> None:
    shutil.rmtree(home / "data-1")


def _empty_manifest(home: Path, draw: random.Random) -> None:
    (home / "manifest.json").write_bytes(b"")


def _empty(home: Path, draw: random.Random) -> None:
    shutil.rmtree(home)
    home.mkdir()


_KINDS: tuple[Callable[[Path, random.Random], None], ...]
_KINDS = (_flip, _no_manifest, _no_arrays, _empty_manifest, _empty)
KINDS = (3, 5)  # quick, full


def run(seed: int, quick: bool, directory: Path) -> list[dict[str, Any]]:
    """The row of R5."""
    draw, tally = draws(seed, "R5"), Tally("R5 all checkpoints bad")
    whole, _ = small.unbroken(directory.parent)
    for damage in draw.sample(_KINDS, KINDS[not quick]):
        home = directory / damage.__name__.strip("_")
        config, out = small.write(home), home / "out"
        bad, other = draw.sample(results.runs(small.broken_off(directory.parent, out)), 2)
        for checkpoint in (bad / "checkpoints").iterdir():
            if checkpoint.name.isdecimal():
                damage(checkpoint, draw)
        before = results.contents(bad)
        wrong = []
        for _ in range(2):  # launching again must not wear it down
            ended = small.launch(config, out)
            wrong += ended.wrong(3)
            after = results.contents(bad)
            changed = sorted(k for k in {*before, *after} if before.get(k, 0) != after.get(k, 0))
            wrong += [f"{name} was changed" for name in changed]
            if bad.name not in ended.out + ended.err:
                wrong.append("the run is not named")
            if wrong:
                break
        wrong += results.run_differences(other, whole / other.name)
        tally.add(wrong, damage.__name__.strip("_"))
    return [tally.row()]

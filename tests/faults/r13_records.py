"""R13: damaged records of runs that are over. What is damaged is named and left out, the tables are
made all the same, and no table holds a number that the undamaged files do not give.
"""

from __future__ import annotations

import contextlib
import csv
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

from mha_jax import report
from mha_jax.report import figure, training
from tests.faults import results, small
from tests.faults.r03_flips import flipped
from tests.faults.tally import Tally, draws

TIMES = (4, 20)  # of each damage: quick, full
FLIPS = (40, 200)
_RECORDS = ("metrics.jsonl", "heads.csv", "summary.json", "indices.json", "run.json")
_TABLES = ("runs.csv", "frontier.csv", "heads.csv", "over_time.csv", "rises.csv")


def run(seed: int, quick: bool, directory: Path) -> list[dict[str, Any]]:
    """The rows of R13."""
    draw = draws(seed, "R13")
    whole, _ = small.unbroken(directory.parent)
    root = directory / small.NAME
    shutil.copytree(whole, root)
    plain = _tables(root, drawn=True)
    damaged, flips = Tally("R13 damaged records"), Tally("R13 flipped bits in records")
    events = Tally("R13 damaged event files")
    for name in _RECORDS:
        for how in ("torn", "garbage", "emptied", "cut", "deleted", "another kind"):
            for _ in range(TIMES[not quick]):
                path = draw.choice(results.runs(root)) / name
                good = path.read_bytes()
                _damage(path, good, how, draw)
                drawn = damaged.tried % 8 == 0
                damaged.add(_wrong(root, plain, path, drawn=drawn), f"{name} {how}")
                path.write_bytes(good)
    for i in range(FLIPS[not quick]):
        names = (*_RECORDS, "config.json")
        path = draw.choice(results.runs(root)) / names[i % len(names)]
        good, bit = path.read_bytes(), draw.randrange(8 * path.stat().st_size)
        path.write_bytes(flipped(good, bit))
        flips.add(_wrong(root, plain, path, harmless=True), f"bit {bit} of {path.name}")
        path.write_bytes(good)
    for _ in range(TIMES[not quick]):
        path = draw.choice(sorted(root.glob("*/tb/*run*")))
        good = path.read_bytes()
        kind = draw.choice(("flipped", "cut", "deleted"))
        path.write_bytes(flipped(good, draw.randrange(8 * len(good))))
        if kind == "cut":
            path.write_bytes(good[: draw.randrange(len(good))])
        elif kind == "deleted":
            path.unlink()
        told: list[str] = []
        same = _tables(root, told.append) == plain
        events.add([] if same and not told else ["a table changed"], kind)
        path.write_bytes(good)
    return [damaged.row(), flips.row(), events.row()]


def _damage(path: Path, good: bytes, how: str, draw: random.Random) -> None:
    lines = good.splitlines(keepends=True)
    at = draw.randrange(len(lines))
    if how == "torn":  # the middle of a line is lost
        middle = draw.randrange(1, max(2, len(lines[at]) - 1))
        path.write_bytes(b"".join([*lines[:at], lines[at][:middle], b"\n", *lines[at + 1 :]]))
    elif how == "garbage":
        junk = draw.randbytes(draw.randrange(1, 200)).replace(b"\n", b"") + b"\n"
        path.write_bytes(b"".join([*lines[:at], junk, *lines[at:]]))
    elif how == "emptied":
        path.write_bytes(b"")
    elif how == "cut":
        path.write_bytes(good[: draw.randrange(1, len(good))])
    elif how == "deleted":
        path.unlink()
    else:
        path.write_bytes(draw.choice((b"[]\n", b"{}\n", b"null\n", b'"text"\n', b"3\n")))


def _wrong(
    root: Path,
    plain: dict[str, list[dict[str, str]]],
    path: Path,
    *,
    harmless: bool = False,
    drawn: bool = False,
) -> list[str]:
    """What is wrong with the tables of a sweep in which a file is damaged."""
    told: list[str] = []
    try:
        now = _tables(root, told.append, drawn)
    except ValueError as error:  # a run that is not what its name says is refused
        refused = path.name == "config.json" and str(path) in str(error)
        return [] if refused else [f"no tables: {str(error)[:200]}"]
    except Exception as error:  # whatever it is, the tables were not made
        return [f"no tables: {type(error).__name__}: {str(error)[:200]}"]
    if any(path.parent.name in line and path.name in line for line in told):
        # What is left out may be missed in what is computed of several runs, never in the rows of
        # one: they are there as they were, or not at all.
        own = [row for row in now["heads.csv"] if row not in plain["heads.csv"]]
        others = [row for row in plain["runs.csv"] if row["label"] not in path.parent.name]
        own += [row for row in others if row not in now["runs.csv"]]
        return [f"rows changed: {own[:1]}"] if own else []
    if path.name == "summary.json" and not path.exists() and _unfinished(now, path):
        return []
    changed = [name for name in plain if now.get(name) != plain[name]]
    if changed:
        return [f"SILENT: {', '.join(changed)} changed and nothing is told of {path.name}"]
    return [] if harmless else [f"nothing is told of {path.name}"]


def _unfinished(now: dict[str, list[dict[str, str]]], path: Path) -> bool:
    """Whether runs.csv says of a run that it is not over: what it must, without summary.json."""
    return any(
        row["status"] == "unfinished" and row["hash"] == path.parent.name[-10:]
        for row in now["runs.csv"]
    )


def _tables(
    root: Path, tell: Callable[[str], None] = lambda line: None, drawn: bool = False
) -> dict[str, list[dict[str, str]]]:
    """The tables of a sweep, made anew; the figures, which take longer, where `drawn` says so."""
    with contextlib.ExitStack() as stack:
        if not drawn:
            for module, name in ((figure, "frontier"), (training, "draw")):
                stack.enter_context(mock.patch.object(module, name, lambda *args: {}))
        report.make(root, tell)
    found = {}
    for name in _TABLES:
        if (root / name).exists():
            with (root / name).open(newline="") as file:
                found[name] = list(csv.DictReader(file))
    return found

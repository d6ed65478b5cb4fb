"""What a sweep has left on the disk, and what must be equal when it is over."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_TABLES = ("runs.csv", "frontier.csv", "comparisons.csv", "heads.csv", "order.txt")
_TABLES += ("over_time.csv", "rises.csv")


def progress(root: Path) -> int:
    """The newest saved steps of all runs, added up."""
    return sum(saved(root).values())


def runs(root: Path) -> list[Path]:
    """The run directories of a sweep."""
    return sorted(path.parent for path in root.glob("*/config.json"))


def saved(root: Path) -> dict[str, int]:
    """The newest acknowledged step of each run: its checkpoint has its name."""
    found: dict[str, int] = {}
    for path in root.glob("*/checkpoints/*/manifest.json"):
        if path.parent.name.isdecimal():
            run = path.parents[2].name
            found[run] = max(int(path.parent.name), found.get(run, 0))
    return found


def rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a metrics.jsonl, without what a clock measured."""
    found = []
    for line in path.read_bytes().splitlines():
        row = json.loads(line)
        found.append({key: value for key, value in row.items() if not key.startswith("time/")})
    return found


def state(directory: Path) -> tuple[int, bytes]:
    """The step of a run's newest checkpoint and the bytes of its arrays, as they are in the files.

    Read without the product: what it makes of a checkpoint is in question.
    """
    newest = max(int(p.name) for p in (directory / "checkpoints").iterdir() if p.name.isdecimal())
    home = directory / "checkpoints" / str(newest)
    named = json.loads((home / "manifest.json").read_bytes())["data"]
    return newest, (home / named / "state" / "0").read_bytes()


def run_differences(run: Path, whole: Path) -> list[str]:
    """What a run that is over has otherwise than the same run that nothing happened to."""
    found = []
    for name, read in {
        "the final state": state,
        "metrics.jsonl": lambda d: rows(d / "metrics.jsonl"),
        "heads.csv": lambda d: (d / "heads.csv").read_bytes(),
        "indices.json": lambda d: (d / "indices.json").read_bytes(),
        "summary.json": _summary,
    }.items():
        try:
            if read(run) != read(whole):
                found.append(f"{run.name}: {name} differs")
        except (OSError, ValueError, KeyError) as error:
            found.append(f"{run.name}: {name}: {type(error).__name__} {error}")
    return found


def differences(root: Path, whole: Path) -> list[str]:
    """What a sweep that is over has otherwise than the same sweep that nothing happened to."""
    found = []
    if [path.name for path in runs(root)] != [path.name for path in runs(whole)]:
        found.append("other run directories")
    for directory in runs(whole):
        found += run_differences(root / directory.name, directory)
    for name in _TABLES:
        if not (root / name).exists():
            found.append(f"{name} is missing")
        elif (root / name).read_bytes() != (whole / name).read_bytes():
            found.append(f"{name} differs")
    found += [f"{path} is left over" for path in root.glob("*/checkpoints/*.tmp")]
    return found


def _summary(directory: Path) -> dict[str, Any]:
    """summary.json without what a clock measured and how often the run was tried."""
    told = json.loads((directory / "summary.json").read_bytes())
    return {key: told[key] for key in told if key not in ("timing", "attempts", "sha256", "files")}


def contents(directory: Path) -> dict[str, bytes | None]:
    """Every file below a directory, and the directories."""
    return {
        str(path.relative_to(directory)): path.read_bytes() if path.is_file() else None
        for path in directory.rglob("*")
    }

"""The records of runs row by row: `metrics.jsonl` and `heads.csv`. Imports no jax.

A row that is damaged is skipped and named, never guessed.
"""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path
from typing import Any

NON_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}  # as JSON holds them


def read_records(path: str | Path) -> tuple[list[dict[str, Any]], list[str]]:
    """The rows of a `metrics.jsonl`, and a line for each damaged one.

    A row is `{"step": int, "<name>": float, ...}`; "nan", "inf" and "-inf" become floats. A line
    that is not such an object (torn by a crash, edited) is skipped.
    """
    rows, problems = [], []
    for number, line in enumerate(Path(path).read_bytes().splitlines(), start=1):
        row = _record(line)
        if row is None:
            problems.append(f"{path}:{number}: not a record of metrics; line skipped")
        else:
            rows.append(row)
    return rows, problems


def _record(line: bytes) -> dict[str, Any] | None:
    try:
        row = json.loads(line)
    except ValueError:  # also UnicodeDecodeError
        return None
    if not isinstance(row, dict) or type(row.get("step")) is not int:
        return None
    out: dict[str, Any] = {}
    for name, value in row.items():
        if isinstance(value, str):
            value = NON_FINITE.get(value)
        if isinstance(value, bool) or not isinstance(value, int | float):
            return None
        out[name] = value
    return out


_HEAD_FIELDS = {
    **dict.fromkeys(("layer", "head", "kv_head", "n_rows"), int),
    **dict.fromkeys(("of", "role", "score"), str),
    **dict.fromkeys(("value", "baseline", "corrected", "low", "high", "share"), float),
}


def read_heads(path: str | Path) -> tuple[list[dict[str, Any]], list[str]]:
    """The typed rows of a run's `heads.csv`, and a line for each damaged one. An empty score is
    NaN.
    """
    rows, problems = [], []
    with open(path, newline="", encoding="utf-8", errors="replace") as file:
        reader = csv.DictReader(file, restkey="")
        for row in reader:
            try:
                if "" in row:
                    raise ValueError("too many fields")
                rows.append(
                    {
                        name: math.nan if kind is float and row[name] == "" else kind(row[name])
                        for name, kind in _HEAD_FIELDS.items()
                    }
                )
            except (KeyError, TypeError, ValueError):
                problems.append(f"{path}:{reader.line_num}: not a row of head scores; line skipped")
    return rows, problems

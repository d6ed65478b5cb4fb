"""A comparison of two sweeps as text and as JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from mha_jax.report import pairs
from mha_jax.report.across import Across, Match
from mha_jax.report.cells import CellRuns
from mha_jax.report.compare import Comparison


def to_json(result: Across) -> dict[str, Any]:
    """Plain JSON values; the numbers at full precision."""
    return {
        "a": str(result.roots[0]),
        "b": str(result.roots[1]),
        "b_differs": result.differs,
        "comparisons": [
            {
                "task": match.a.static.task.name,
                "matched_by": match.key,
                "config_hash_a": match.a.static_hash,
                "config_hash_b": match.b.static_hash,
                "metric": pairs.pair(match.a, match.b).scale,
                "lr_a": match.a.cell.lr,
                "lr_b": match.b.cell.lr,
                "mean_a": match.a.cell.mean,
                "mean_b": match.b.cell.mean,
                **dataclasses.asdict(found),
            }
            for match, found in zip(result.matches, result.found, strict=True)
        ],
        "only_in_a": [_cell(c) for c in result.alone[0]],
        "only_in_b": [_cell(c) for c in result.alone[1]],
    }


def to_text(result: Across) -> str:
    """The same for people: what differs, the table, and how to read it."""
    lines = [f"A: {result.roots[0]}", f"B: {result.roots[1]}"]
    lines += [f"B differs: {line}" for line in result.differs or ["in no field"]]
    rows = [_row(m, f) for m, f in zip(result.matches, result.found, strict=True)]
    columns = list(dict.fromkeys(name for row in rows for name in row))
    grid = [columns, *([row.get(name, "") for name in columns] for row in rows)]
    lines += ["", *_aligned(grid), ""]
    n_ranked = sum(found.p_holm is not None for found in result.found)
    lines += [
        "A - B over the shared (seed, data_seed), each cell at its own chosen learning rate; 95 % "
        "t intervals;",
        f"p holm: adjusted over the comparisons that are ranked, {n_ranked} of {len(rows)}.",
    ]
    for name, alone in zip("AB", result.alone, strict=True):
        lines += [f"only in {name}: {_cell(c)}" for c in alone]
    return "\n".join(lines)


def _row(match: Match, found: Comparison) -> dict[str, str]:
    a, b = match.a.cell, match.b.cell
    low, high = _number(found.ci_low), _number(found.ci_high)
    return {
        "task": match.a.static.task.name,
        **{name.rsplit(".", 1)[-1]: str(value) for name, value in match.key.items()},
        "metric": pairs.pair(match.a, match.b).scale,
        "lr A": _number(a.lr),
        "lr B": _number(b.lr),
        "A": _number(a.mean),
        "B": _number(b.mean),
        "pairs": str(found.n_pairs),
        "A - B": _number(found.mean_difference),
        "interval": f"{low} to {high}" if low else "",
        "p": _number(found.p),
        "p holm": _number(found.p_holm),
        "verdict": found.verdict,
    }


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"


def _aligned(grid: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*grid, strict=True)]
    return [
        "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
        for row in grid
    ]


def _cell(c: CellRuns) -> str:
    return f"{c.static.task.name}, {c.label}"

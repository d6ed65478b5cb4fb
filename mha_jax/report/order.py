"""`order.txt`: the cells of each task from best to worst, and which steps of that order hold.

attr, matched by d_ff (accuracy, higher is better)
  4 heads, MHA     0.9996
    not ranked: both solved
  8 heads, MHA     0.9995
    better than the next by 0.41 (95 % interval 0.38 to 0.44)
  2 heads, MHA     0.5842
not ranked: 1 head, MHA 0.341 (twice the steps change it)
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from mha_jax.report import verdict
from mha_jax.report.cells import CellRuns
from mha_jax.report.look import METRICS

Row = dict[str, Any]


def text(gathered: Sequence[CellRuns], comparisons: Sequence[Row]) -> str:
    """The whole file.

    Args:
      gathered: the cells.
      comparisons: rows of `comparisons.csv` about them.
    """
    tables: dict[tuple[Any, str], list[Row]] = {}
    by_hash = {c.static_hash: c for c in gathered}
    for row in comparisons:
        key = (by_hash[row["config_hash_a"]].static.task, row["match"])
        tables.setdefault(key, []).append(row)
    blocks = []
    for (task, policy), rows in tables.items():
        hashes = dict.fromkeys(row[k] for row in rows for k in ("config_hash_a", "config_hash_b"))
        heading = task.name if policy == "none" else f"{task.name}, matched by {policy}"
        blocks.append("\n".join(_block(heading, [by_hash[h] for h in hashes], rows)))
    return "\n\n".join(blocks) + "\n" if blocks else "no two cells to compare\n"


def _block(heading: str, members: Sequence[CellRuns], rows: Sequence[Row]) -> list[str]:
    spec = members[0].spec
    better = "higher" if spec.direction == "max" else "lower"
    lines = [f"{heading} ({METRICS[spec.metric]}, {better} is better)"]
    known = [c for c in members if c.cell.mean is not None]
    ranked = [c for c in known if c.cell.status == "converged"]
    ranked.sort(key=lambda c: _mean(c), reverse=spec.direction == "max")
    width = max((len(c.label) for c in ranked), default=0)
    found = {frozenset((row["config_hash_a"], row["config_hash_b"])): row for row in rows}
    for c, after in itertools.zip_longest(ranked, ranked[1:]):
        lines.append(f"  {c.label:{width}}  {_mean(c):.4g}")
        if after is not None:
            row = found.get(frozenset((c.static_hash, after.static_hash)))
            lines.append(f"    {_step(c, row)}")
    for c in known:
        if c.cell.status != "converged":
            reason = verdict.REASONS[c.cell.reason]
            lines.append(f"not ranked: {c.label} {_mean(c):.4g} ({reason})")
    return lines


def _mean(c: CellRuns) -> float:
    assert c.cell.mean is not None
    return c.cell.mean


def _step(c: CellRuns, row: Row | None) -> str:
    """What is known of a cell and the next one."""
    if row is None:
        return "not compared: another budget"
    if not row["verdict"].endswith("is better"):
        return row["verdict"]
    ends = [row["mean_difference"], row["ci_low"], row["ci_high"]]
    if row["config_hash_a"] != c.static_hash:
        ends = [-ends[0], -ends[2], -ends[1]]
    of = "" if row["metric"] == c.spec.metric else f" of {row['metric']}"
    if c.spec.direction == "min":
        ends = [-ends[0], -ends[2], -ends[1]]
    difference, low, high = (f"{end:.2g}" for end in ends)
    return f"better than the next by {difference}{of} (95 % interval {low} to {high})"

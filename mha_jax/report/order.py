"""`order.txt`: the cells of each task from best to worst, and which steps of that order hold.

attr, matched by d_ff to n_kv_heads=8 (accuracy, higher is better)
  8 heads, GQA-2   0.9999
    not ranked: both solved
  8 heads, MHA     0.9998
    better than the next by 0.25 (95 % interval 0.2 to 0.3)
  8 heads, MQA     0.745
not ranked: 4 heads, MHA 0.61 (twice the steps change it or how many seeds solve it, or diverge)
no result: 2 heads, MHA (every run diverged)
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from mha_jax.config import TaskRef
from mha_jax.report import pairs, verdict
from mha_jax.report.cells import CellRuns
from mha_jax.report.compare import POWER
from mha_jax.report.look import METRICS

Row = dict[str, Any]
Found = Mapping[frozenset[str], Row]  # the hashes of two cells -> their row


def text(gathered: Sequence[CellRuns], comparisons: Sequence[Row]) -> str:
    """The whole file.

    Args:
      gathered: the cells.
      comparisons: rows of `comparisons.csv` about them.
    """
    blocks, groups = [], pairs.groups(gathered)
    for (task, policy, to), members in groups.items():
        heading = task.name + _what_varies(task, [other for other, _, _ in groups])
        heading += "" if policy == "none" else f", matched by {policy} to {to}"
        found = {
            frozenset((row["config_hash_a"], row["config_hash_b"])): row
            for row in comparisons
            if row["match"] == policy
        }
        blocks.append("\n".join(_block(heading, members, found)))
    return "\n\n".join(blocks) + "\n"


def _what_varies(task: TaskRef, tasks: Sequence[TaskRef]) -> str:
    """The fields by which a task differs from others of its name: " with length=16, seed=1"."""
    fields = (*task.params, ("seed", task.seed))
    others = [dict((*t.params, ("seed", t.seed))) for t in tasks if t.name == task.name]
    varying = [f"{k}={v}" for k, v in fields if any(other[k] != v for other in others)]
    return f" with {', '.join(varying)}" if varying else ""


def _block(heading: str, members: Sequence[CellRuns], found: Found) -> list[str]:
    spec = members[0].spec
    better = "higher" if spec.direction == "max" else "lower"
    lines = [f"{heading} ({METRICS[spec.metric]}, {better} is better)"]
    ranked = [c for c in members if c.cell.status == "converged"]
    ranked.sort(key=_height, reverse=spec.direction == "max")
    width = max((len(c.label) for c in ranked), default=0)
    steps = [_step(*two, found) for two in itertools.pairwise(ranked)]
    for c, step in itertools.zip_longest(ranked, steps):
        lines.append(f"  {c.label:{width}}  {c.cell.mean:.4g}")
        if step is not None:
            lines.append(f"    {step}")
    # A step that was not seen may be seen over two: A, B and C can be told apart as A and C alone.
    for i, j in itertools.combinations(range(len(ranked)), 2):
        unseen = not any(step.startswith("better") for step in steps[i:j])
        step = _step(ranked[i], ranked[j], found)
        if j > i + 1 and unseen and step.startswith("better"):
            step = step.replace("the next", ranked[j].label, 1)
            lines.append(f"  and {ranked[i].label} is {step}")
    others = [c for c in members if c.cell.status != "converged" and c.cell.mean is not None]
    others.sort(key=_height, reverse=spec.direction == "max")
    for c, after in itertools.zip_longest(others, others[1:]):
        reason = verdict.REASONS[c.cell.reason]
        lines.append(f"not ranked: {c.label} {c.cell.mean:.4g} ({reason})")
        lines += [f"    {_so_far(c, after, found)}"] if after is not None else []
    for c in members:
        if c.cell.mean is None:
            lines.append(f"no result: {c.label} ({verdict.REASONS[c.cell.reason]})")
    return lines


def _height(c: CellRuns) -> float:
    """Where a cell stands, on the scale on which cells are compared."""
    return statistics.fmean(verdict.on_scale(seed.test, c.spec.metric) for seed in c.cell.seeds)


def _step(c: CellRuns, after: CellRuns, found: Found) -> str:
    """What is known of a cell and one that stands below it."""
    row = found.get(frozenset((c.static_hash, after.static_hash)))
    if row is None:
        return "not compared: another budget"
    if not row["verdict"].endswith("is better"):
        return row["verdict"]
    return f"better than the next by {_ahead(c, row)}"


def _so_far(c: CellRuns, after: CellRuns, found: Found) -> str:
    """The difference of two cells that are not ranked, which more steps may change."""
    row = found.get(frozenset((c.static_hash, after.static_hash)))
    if row is None or row["mdd"] is None:
        return "not compared: another budget, or fewer than two seeds"
    seen = f"{row['mdd']:.2g} is seen with {POWER:.0%} power"
    if row["ci_low"] <= 0 <= row["ci_high"]:
        return f"at this budget not told apart from the next: by {_ahead(c, row)}; {seen}"
    return f"at this budget ahead of the next by {_ahead(c, row)}; {seen}"


def _ahead(c: CellRuns, row: Row) -> str:
    """By how much a cell is better than the other one of a comparison; over seeds, and over the
    documents of a text.
    """
    sign = 1 if (row["config_hash_a"] == c.static_hash) == (c.spec.direction == "max") else -1
    low, high = sorted(sign * row[end] for end in ("ci_low", "ci_high"))
    of = "" if row["metric"] == c.spec.metric else f" of {row['metric']}"
    told = f"{sign * row['mean_difference']:.2g}{of} (95 % interval {low:.2g} to {high:.2g}"
    if row["n_documents"]:
        low, high = sorted(sign * row[end] for end in ("documents_low", "documents_high"))
        told += f", over {row['n_documents']} documents {low:.2g} to {high:.2g}"
    return told + ")"

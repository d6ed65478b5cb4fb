"""`order.txt`: the cells of each task from best to worst, and which steps of that order hold.

attr, matched by d_ff to n_kv_heads=8 (accuracy, higher is better)
  8 heads, GQA-2   0.9999
    not ranked: both solved
  8 heads, MHA     0.9998
    better than the next by 0.25 (95 % interval 0.2 to 0.3)
  8 heads, MQA     0.745
not ranked: 4 heads, MHA 0.61 (twice the steps change it, or diverge)
no result: 2 heads, MHA (every run diverged)
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from mha_jax.report import pairs, verdict
from mha_jax.report.cells import CellRuns
from mha_jax.report.look import METRICS

Row = dict[str, Any]
Found = Mapping[frozenset[str], Row]  # the hashes of two cells -> their row


def text(gathered: Sequence[CellRuns], comparisons: Sequence[Row]) -> str:
    """The whole file.

    Args:
      gathered: the cells.
      comparisons: rows of `comparisons.csv` about them.
    """
    blocks = []
    for (task, policy, to), members in pairs.groups(gathered).items():
        heading = task.name if policy == "none" else f"{task.name}, matched by {policy} to {to}"
        found = {
            frozenset((row["config_hash_a"], row["config_hash_b"])): row
            for row in comparisons
            if row["match"] == policy
        }
        blocks.append("\n".join(_block(heading, members, found)))
    return "\n\n".join(blocks) + "\n"


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
    for c in members:
        reason = verdict.REASONS.get(c.cell.reason, "")
        if c.cell.mean is None:
            lines.append(f"no result: {c.label} ({reason})")
        elif c.cell.status != "converged":
            lines.append(f"not ranked: {c.label} {c.cell.mean:.4g} ({reason})")
    return lines


def _height(c: CellRuns) -> float:
    """Where a cell stands, on the scale on which cells are compared."""
    return statistics.fmean(verdict.on_scale(seed.test, c.spec) for seed in c.cell.seeds)


def _step(c: CellRuns, after: CellRuns, found: Found) -> str:
    """What is known of a cell and one that stands below it."""
    row = found.get(frozenset((c.static_hash, after.static_hash)))
    if row is None:
        return "not compared: another budget"
    if not row["verdict"].endswith("is better"):
        return row["verdict"]
    ends = [row["mean_difference"], row["ci_low"], row["ci_high"]]
    if row["config_hash_a"] != c.static_hash:
        ends = [-ends[0], -ends[2], -ends[1]]
    if c.spec.direction == "min":
        ends = [-ends[0], -ends[2], -ends[1]]
    of = "" if row["metric"] == c.spec.metric else f" of {row['metric']}"
    difference, low, high = (f"{end:.2g}" for end in ends)
    return f"better than the next by {difference}{of} (95 % interval {low} to {high})"

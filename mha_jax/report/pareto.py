"""Which models are on the Pareto front of quality against what decoding keeps of a sequence.

A cell is on the front of its task unless another one keeps no more bytes and is as good or better,
and is not its equal in both. Quality is the mean over the reported seeds, so what a small step of
the front is worth is for `comparisons.csv` to say; cells that solve the task on every seed are
equally good. Only converged cells take part, as in `order.txt`: what more steps would change ranks
nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from mha_jax.report.cells import CellRuns


def fronts(gathered: Sequence[CellRuns]) -> dict[str, bool | None]:
    """`config_hash` of each cell -> whether it is on its task's front; None: it is not converged.

    Args:
      gathered: the cells of any tasks.
    """
    ranked = [c for c in gathered if c.cell.status == "converged"]
    on_front: dict[str, bool | None] = dict.fromkeys((c.static_hash for c in gathered), None)
    for c in ranked:
        rivals = (other for other in ranked if other.static.task == c.static.task)
        on_front[c.static_hash] = not any(_beats(other, c) for other in rivals)
    return on_front


def _beats(a: CellRuns, b: CellRuns) -> bool:
    (bytes_a, quality_a), (bytes_b, quality_b) = _place(a), _place(b)
    as_good = bytes_a <= bytes_b and quality_a >= quality_b
    return as_good and (bytes_a, quality_a) != (bytes_b, quality_b)


def _place(c: CellRuns) -> tuple[float, float]:
    """Bytes kept of a sequence of the task's length, and quality: more is better."""
    kept = c.runs[0].about["kv_bytes_resident"]
    if c.cell.success_rate == 1:
        return kept, math.inf
    assert c.cell.mean is not None  # it is converged
    return kept, c.cell.mean if c.spec.direction == "max" else -c.cell.mean

"""The learning rate of a cell, chosen by the mean validation metric of its runs."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Sequence

from mha_jax.report import verdict
from mha_jax.report.result import Result
from mha_jax.tasks import TaskSpec

_LEAST_STEP = 1.5  # between rates


@dataclasses.dataclass(frozen=True)
class Choice:
    """A rate with its weight decay, and where it lies in the grid."""

    lr: float | None  # None: there is nothing to choose from
    weight_decay: float | None
    n_lrs: int  # rates that were tried, with whatever weight decay
    grid: tuple[float, ...]  # those with this weight decay, ascending
    edge: str  # no | low | high | both (a grid of one)
    edge_gain: float | None  # at an edge: how much better than the rate next to it, on the scale

    def rises_at_edge(self, tol: float, spec: TaskSpec) -> bool:
        """Whether the best rate may lie beyond the grid: it is at an edge, and the last step of the
        grid, of a factor of 1.5 or more, still gained more than what counts as no change. A smaller
        step shows nothing.
        """
        if self.edge_gain is None:
            return False
        low, high = self.grid[:2] if self.edge == "low" else self.grid[-2:]
        return high < _LEAST_STEP * low or self.edge_gain > verdict.tolerance(tol, spec)


def choose(results: Sequence[Result], spec: TaskSpec) -> Choice:
    """The (lr, weight decay) with the smallest share of diverged runs, then the best mean
    validation metric. Of equal ones the rate nearest to the middle of the grid is taken: there is
    no evidence that the optimum lies at the edge.

    Args:
      results: runs that have ended, of one cell.
      spec: the task.
    """
    over = [r for r in results if r.is_done or r.is_diverged]
    if not over:
        return Choice(None, None, 0, (), "both", None)
    points = sorted({(r.lr, r.weight_decay) for r in over})
    lrs = sorted({lr for lr, _ in points})

    def rank(point: tuple[float, float]) -> tuple[float, ...]:
        at = [r for r in over if (r.lr, r.weight_decay) == point]
        mean = _mean(at)
        cost = math.inf if mean is None else -mean if spec.direction == "max" else mean
        from_middle = abs(lrs.index(point[0]) - (len(lrs) - 1) / 2)
        return (sum(r.is_diverged for r in at) / len(at), cost, from_middle, *point)

    lr, weight_decay = min(points, key=rank)
    grid = tuple(lr for lr, decay in points if decay == weight_decay)
    if len(grid) < 2:
        return Choice(lr, weight_decay, len(lrs), grid, "both", None)
    edge = {grid[0]: "low", grid[-1]: "high"}.get(lr, "no")
    gain = None
    if edge != "no":
        beside = grid[1] if edge == "low" else grid[-2]
        best, other = (
            _mean([r for r in over if (r.lr, r.weight_decay) == (rate, weight_decay)])
            for rate in (lr, beside)
        )
        gain = math.inf  # beside it every run diverged
        if best is not None and other is not None:
            gain = verdict.gain(best, other, spec)
    return Choice(lr, weight_decay, len(lrs), grid, edge, gain)


def _mean(results: Sequence[Result]) -> float | None:
    """Mean validation metric of the runs that have one."""
    finite = [r.validation for r in results if r.is_done and math.isfinite(r.validation)]
    return statistics.fmean(finite) if finite else None

"""From the runs of one static config to one cell: which learning rate, which seeds, which interval,
and what may be said.

Rules (they hold for every table and figure):

- The learning rate (with its weight decay) is chosen by the mean **validation** metric; the cell
  reports the **test** metric of the seeds at that rate. A rate at which fewer runs diverged is
  preferred before any mean is looked at.
- Intervals are 95 % Student t over seeds; one seed has none.
- A diverged run has no metric worth averaging: it is left out of mean, median, minimum, maximum and
  interval, but it is counted (`n_diverged`, `diverged`), counts as a failure in `success_rate`, has
  its row in `runs.csv` and its mark in the figure.
- A cell is `converged` only if its rate is not at the edge of the grid, its seeds agree, and the
  interval's worse end reaches the ceiling (less 0.01) or the value that counts as solved.
  Convergence is never read off a slope.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Sequence

from mha_jax.report import verdict
from mha_jax.tasks import TaskSpec

MIN_SEEDS_RANKED = 5  # seeds below which a cell is an illustration


@dataclasses.dataclass(frozen=True)
class Result:
    """What the statistics need of a run."""

    hash: str
    seed: int
    data_seed: int
    lr: float
    weight_decay: float
    status: str  # of store.STATUSES
    validation: float  # NaN where there is none
    test: float  # NaN where there is none
    outputs: tuple[float, ...]  # test metric of each read-out head; (test,) if there is one
    ceiling: float | None
    steps_to_threshold: int | None

    @property
    def is_done(self) -> bool:
        """Trained to the end, with a finite test metric."""
        return self.status == "done" and math.isfinite(self.test)

    @property
    def is_diverged(self) -> bool:
        """Ran, but left no usable metric."""
        return self.status == "diverged" or (self.status == "done" and not self.is_done)

    def solved(self, spec: TaskSpec) -> bool | None:
        """Whether a run that is done solved its task; None if the task does not say when."""
        return verdict.solved(self.test, self.outputs, self.ceiling, spec)


@dataclasses.dataclass(frozen=True)
class Cell:
    """All runs of one static config, summed up. `None` where a number is not defined."""

    lr: float | None  # the chosen one
    weight_decay: float | None
    n_lrs: int  # learning rates with a finished or diverged run
    lr_edge: str  # no | low | high | both (a grid of one)
    seeds: tuple[Result, ...]  # the finished runs at the chosen rate, by seed
    n_runs: int  # of the cell, at every rate
    n_done: int
    n_diverged: int
    n_failed: int
    n_unfinished: int
    diverged: int  # at the chosen rate
    validation_mean: float | None
    mean: float | None
    ci_low: float | None
    ci_high: float | None
    median: float | None
    min: float | None
    max: float | None
    outputs: tuple[float, ...]  # mean of each read-out head
    success_rate: float | None
    steps_to_threshold: float | None
    ceiling: float | None
    status: str  # converged | unconverged | unverified | unfinished
    reason: str


def t_interval(values: Sequence[float]) -> tuple[float | None, float | None]:
    """95 % Student t interval of the mean; (None, None) for fewer than two values."""
    n = len(values)
    if n < 2:
        return None, None
    from scipy.special import stdtrit  # scipy.stats.t.ppf is this, but takes seconds to import

    mean = statistics.fmean(values)
    half = float(stdtrit(n - 1, 0.975)) * statistics.stdev(values) / math.sqrt(n)
    return mean - half, mean + half


def cell(results: Sequence[Result], spec: TaskSpec) -> Cell:
    """The cell of runs that share a static config (at least one)."""
    done = [r for r in results if r.is_done]
    diverged = [r for r in results if r.is_diverged]
    failed = [r for r in results if r.status == "failed"]
    lr, weight_decay = _choose(done + diverged, spec)
    grid = sorted({r.lr for r in done + diverged if r.weight_decay == weight_decay})
    at_rate = [r for r in done + diverged if (r.lr, r.weight_decay) == (lr, weight_decay)]
    seeds = sorted((r for r in at_rate if r.is_done), key=lambda r: (r.seed, r.data_seed))
    test = [r.test for r in seeds]
    low, high = t_interval(test)
    successes = [r.solved(spec) for r in seeds] + [False for r in at_rate if r.is_diverged]
    known = bool(seeds) and None not in successes
    success_rate = sum(map(bool, successes)) / len(successes) if known else None
    ceiling = next((r.ceiling for r in seeds), None)
    n_unfinished = len(results) - len(done) - len(diverged) - len(failed)
    edge = _edge(lr, grid)
    status, reason = verdict.status(
        n_results=len(done) + len(diverged),
        n_failed=len(failed),
        n_unfinished=n_unfinished,
        edge=edge,
        n_seeds=len(successes),
        success_rate=success_rate,
        worse_end=low if spec.direction == "max" else high,
        any_done=bool(test),
        ceiling=ceiling,
        spec=spec,
    )
    return Cell(
        lr=lr,
        weight_decay=weight_decay,
        n_lrs=len({r.lr for r in done + diverged}),
        lr_edge=edge,
        seeds=tuple(seeds),
        n_runs=len(results),
        n_done=len(done),
        n_diverged=len(diverged),
        n_failed=len(failed),
        n_unfinished=n_unfinished,
        diverged=len(at_rate) - len(seeds),
        validation_mean=_mean([r.validation for r in seeds]),
        mean=_mean(test),
        ci_low=low,
        ci_high=high,
        median=statistics.median(test) if test else None,
        min=min(test, default=None),
        max=max(test, default=None),
        outputs=tuple(
            statistics.fmean(head) for head in zip(*(r.outputs for r in seeds), strict=True)
        ),
        success_rate=success_rate,
        steps_to_threshold=_median_steps([r.steps_to_threshold for r in seeds]),
        ceiling=ceiling,
        status=status,
        reason=reason,
    )


def _choose(results: Sequence[Result], spec: TaskSpec) -> tuple[float | None, float | None]:
    """The (lr, weight decay) with the smallest share of diverged runs, then the best mean
    validation metric. Of equal ones the rate nearest to the middle of the grid is taken: there is
    no evidence that the optimum lies at the edge.
    """
    if not results:
        return None, None
    points = sorted({(r.lr, r.weight_decay) for r in results})
    lrs = sorted({lr for lr, _ in points})

    def rank(point: tuple[float, float]) -> tuple[float, ...]:
        at = [r for r in results if (r.lr, r.weight_decay) == point]
        mean = _mean([r.validation for r in at if r.is_done])
        cost = math.inf if mean is None else -mean if spec.direction == "max" else mean
        from_middle = abs(lrs.index(point[0]) - (len(lrs) - 1) / 2)
        return (sum(r.is_diverged for r in at) / len(at), cost, from_middle, *point)

    return min(points, key=rank)


def _edge(lr: float | None, grid: Sequence[float]) -> str:
    if lr is None or len(grid) < 2:
        return "both"
    return {grid[0]: "low", grid[-1]: "high"}.get(lr, "no")


def _mean(values: Sequence[float]) -> float | None:
    finite = [v for v in values if math.isfinite(v)]
    return statistics.fmean(finite) if finite else None


def _median_steps(steps: Sequence[int | None]) -> float | None:
    """Median over seeds, a seed that never got there counted as later than all; None if the median
    never got there.
    """
    if not steps:
        return None
    middle = statistics.median([math.inf if s is None else s for s in steps])
    return middle if math.isfinite(middle) else None

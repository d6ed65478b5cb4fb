"""From the runs of one static config to one cell: which learning rate, which seeds, which interval,
and what may be said.

Rules (they hold for every table and figure):

- The learning rate (with its weight decay) is chosen by the mean **validation** metric of the
  selection seeds, or of all runs where there are none; the cell reports the **test** metric of the
  other seeds at that rate. A rate at which fewer runs diverged is preferred before any mean is
  looked at.
- Intervals are 95 % Student t over seeds; one seed has none.
- A diverged run has no metric worth averaging: it is left out of mean, median, minimum, maximum and
  interval, but it is counted (`n_diverged`, `diverged`), counts as a failure in `success_rate`, has
  its row in `runs.csv` and its mark in the figure.
- A cell is `converged` only if its rate is not at an edge of the grid at which the metric still
  rises, its seeds agree, and either the interval's worse end reaches the ceiling (less 0.01) or the
  value that counts as solved, or twice the steps change the mean validation metric by no more than
  `converge.tol` or the standard error of that change. Convergence is never read off a slope.
"""

from __future__ import annotations

import collections
import dataclasses
import math
import statistics
from collections.abc import Sequence

from mha_jax.report import select, verdict
from mha_jax.report.intervals import t_interval
from mha_jax.report.result import Result
from mha_jax.report.twin import Twin, twin
from mha_jax.tasks import TaskSpec

MIN_SEEDS_RANKED = 5  # seeds below which a cell is an illustration


@dataclasses.dataclass(frozen=True)
class Cell:
    """All runs of one static config, summed up. `None` where a number is not defined."""

    choice: select.Choice  # the learning rate
    seeds: tuple[Result, ...]  # the finished reported runs at the chosen rate, by seed
    n_runs: int  # of the cell, at every rate
    n_done: int
    n_diverged: int
    n_failed: int
    n_unfinished: int
    n_selection: int  # seeds that chose the rate and are not reported; 0: the reported ones did
    diverged: int  # reported runs at the chosen rate
    validation_mean: float | None
    initial_mean: float | None  # of the validation metric before the first step
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
    twin: Twin | None  # what twice the steps did; None: they were not tried
    status: str  # converged | unconverged | unverified | unfinished
    reason: str

    @property
    def lr(self) -> float | None:
        """The chosen learning rate."""
        return self.choice.lr


def cell(
    results: Sequence[Result],
    spec: TaskSpec,
    twins: Sequence[Result] = (),
    tol: float = 0.01,
) -> Cell:
    """The cell of runs that share a static config (at least one).

    Args:
      results: its runs.
      spec: the task.
      twins: runs of the same config with twice the steps.
      tol: `converge.tol`.
    """
    selection = [r for r in results if r.purpose == "selection"]
    reported = [r for r in results if r.purpose != "selection"]
    choice = select.choose(selection or results, spec)
    at_rate = [r for r in reported if (r.lr, r.weight_decay) == (choice.lr, choice.weight_decay)]
    seeds = sorted((r for r in at_rate if r.is_done), key=lambda r: r.pair)
    n_diverged = sum(r.is_diverged for r in at_rate)
    test = [r.test for r in seeds]
    low, high = t_interval(test)
    successes = [r.solved(spec) for r in seeds] + [False] * n_diverged
    known = bool(seeds) and None not in successes
    success_rate = sum(map(bool, successes)) / len(successes) if known else None
    ceiling = next((r.ceiling for r in seeds), None)
    count = collections.Counter(_outcome(r) for r in results)
    paired = twin(seeds, twins, spec, tol)
    status, reason = verdict.status(
        n_results=len(seeds) + n_diverged,
        n_failed=count["failed"],
        n_unfinished=count["unfinished"],
        edge=choice.edge,
        rises_at_edge=choice.rises_at_edge(tol, spec),
        twin_moved=paired.moved if paired else None,
        n_seeds=len(successes),
        n_diverged=n_diverged,
        success_rate=success_rate,
        worse_end=low if spec.direction == "max" else high,
        any_done=bool(test),
        ceiling=ceiling,
        spec=spec,
    )
    return Cell(
        choice=choice,
        seeds=tuple(seeds),
        n_runs=len(results),
        n_done=count["done"],
        n_diverged=count["diverged"],
        n_failed=count["failed"],
        n_unfinished=count["unfinished"],
        n_selection=len({r.pair for r in selection}),
        diverged=n_diverged,
        validation_mean=_mean([r.validation for r in seeds]),
        initial_mean=_mean([r.initial for r in seeds if r.initial is not None]),
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
        twin=paired,
        status=status,
        reason=reason,
    )


def _outcome(result: Result) -> str:
    if result.is_done or result.is_diverged:
        return "done" if result.is_done else "diverged"
    return "failed" if result.status == "failed" else "unfinished"


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

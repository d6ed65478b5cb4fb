"""The twin of a cell: the same runs with twice the steps, from the same constant trunk.

A curve that is flat at the end of a schedule whose rate falls to zero says nothing: it would be
flat in any case. Whether more training would have changed the number is found by more training.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Mapping, Sequence

from mha_jax.report import verdict
from mha_jax.report.result import Result
from mha_jax.tasks import TaskSpec


@dataclasses.dataclass(frozen=True)
class Twin:
    """What doubling the budget did to a cell."""

    validation_mean: float | None  # of the twin; None: every run of it diverged
    change: float | None  # mean paired change of the validation metric on the scale; > 0: better
    allowed: float  # the larger of the tolerance and the standard error of that change
    tests: Mapping[tuple[int, int], float]  # (seed, data seed) -> test metric of the twin
    crossed: bool  # some seed solves the task with one budget and not with the other

    @property
    def moved(self) -> bool:
        """Whether the cell was not converged. A twin that diverged has moved, and one of which
        another seed solves the task."""
        return self.change is None or self.crossed or abs(self.change) > self.allowed


def twin(
    seeds: Sequence[Result], results: Sequence[Result], spec: TaskSpec, tol: float
) -> Twin | None:
    """Pairs a cell with its twin.

    Args:
      seeds: the reported runs of the cell, at its chosen rate.
      results: runs of the twin, at any rate.
      spec: the task.
      tol: `converge.tol`.

    Returns:
      None while a reported run has no twin that has ended.
    """
    over = {(r.lr, r.weight_decay, r.pair): r for r in results if r.is_done or r.is_diverged}
    paired = [(r, over.get((r.lr, r.weight_decay, r.pair))) for r in seeds]
    found = [(r, other) for r, other in paired if other is not None]
    if not found or len(found) < len(paired):
        return None
    tolerance = verdict.tolerance(tol, spec)
    done = [other for _, other in found if other.is_done]
    tests = {other.pair: other.test for other in done}
    validation = statistics.fmean(other.validation for other in done) if done else None
    if len(done) < len(found):
        return Twin(validation, None, tolerance, tests, crossed=False)
    changes = [verdict.gain(other.validation, r.validation, spec) for r, other in found]
    n = len(changes)
    error = statistics.stdev(changes) / math.sqrt(n) if n > 1 else 0.0
    crossed = any(r.solved(spec) != other.solved(spec) for r, other in found)
    return Twin(validation, statistics.fmean(changes), max(tolerance, error), tests, crossed)

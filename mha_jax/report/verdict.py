"""What may be said of a cell: is it solved, and has it been shown to be converged?"""

from __future__ import annotations

import math
from collections.abc import Sequence

from mha_jax.tasks import TaskSpec

# Why a cell is not converged, for people.
REASONS = {
    "no_finished_run": "no finished run",
    "diverged": "every run diverged",
    "unfinished_runs": "some runs are not finished",
    "failed_runs": "some runs failed",
    "budget": "twice the steps change it or how many seeds solve it, or diverge",
    "one_lr": "one learning rate",
    "lr_edge": "still rising at the edge of the learning rates",
    "seeds_split": "some seeds solve it, some do not",
    "seeds_diverged": "some seeds diverge",
    "one_seed": "one seed",
    "no_twin": "no result of twice the steps",
}
_SMALLEST_ERROR = 1e-14  # squared rounding of float32: below it an nmse says nothing
CEILING_TOLERANCE = 0.01  # how near to its ceiling a score counts as having reached it
MIN_SEEDS_SPLIT = 3  # seeds from which "some solve it, some do not" is said


def on_scale(value: float, metric: str) -> float:
    """A metric on the scale on which differences are judged. The errors of a task's models span
    decades where the metric is an nmse, so it is its log10.
    """
    return math.log10(max(value, _SMALLEST_ERROR)) if metric == "nmse" else value


def gain(value: float, other: float, spec: TaskSpec) -> float:
    """How much better `value` is than `other`, on the scale."""
    difference = on_scale(value, spec.metric) - on_scale(other, spec.metric)
    return difference if spec.direction == "max" else -difference


def tolerance(tol: float, spec: TaskSpec) -> float:
    """`converge.tol` on the scale: .01 of an accuracy, of R^2 or of a bit; a tenth of a decade."""
    return 10 * tol if spec.metric == "nmse" else tol


def solved(
    test: float, outputs: Sequence[float], ceiling: float | None, spec: TaskSpec
) -> bool | None:
    """Whether a run solved its task.

    Every read-out head is at `solved_at`; where the task names no such value, the metric is within
    0.01 of its ceiling. None where there is neither.
    """
    if spec.solved_at is not None:
        return all(reaches(value, spec.solved_at, spec) for value in outputs)
    if ceiling is not None:
        return reaches(test, near(ceiling, spec), spec)
    return None


def status(
    *,
    n_results: int,
    n_failed: int,
    n_unfinished: int,
    edge: str,
    rises_at_edge: bool,
    twin_moved: bool | None,
    n_seeds: int,
    n_diverged: int,
    success_rate: float | None,
    worse_end: float | None,
    any_done: bool,
    ceiling: float | None,
    spec: TaskSpec,
) -> tuple[str, str]:
    """What may be said of a cell, and why; the first rule that applies decides.

    `twin_moved` is None without a twin; `rises_at_edge` is `select.Choice.rises_at_edge`.
    """
    if not n_results:
        return "unfinished", "no_finished_run"
    if not any_done:
        return "unconverged", "diverged"
    if n_unfinished or n_failed:
        return "unverified", "unfinished_runs" if n_unfinished else "failed_runs"
    if twin_moved:
        return "unconverged", "budget"
    if edge == "both":
        return "unverified", "one_lr"
    if rises_at_edge:
        return "unconverged", "lr_edge"
    if success_rate is not None and 0 < success_rate < 1 and n_seeds >= MIN_SEEDS_SPLIT:
        return "unconverged", "seeds_split"
    if n_diverged:
        return "unconverged", "seeds_diverged"
    if worse_end is None:
        return "unverified", "one_seed"
    # The mean over read-out heads may pass `solved_at` while one head does not: success is judged
    # head by head.
    if (
        success_rate == 1
        and spec.solved_at is not None
        and reaches(worse_end, spec.solved_at, spec)
    ):
        return "converged", "solved"
    # For an error, 0.01 above its floor can be far from solved: the task's own value decides where
    # it names one.
    by_ceiling = spec.direction == "max" or spec.solved_at is None
    if by_ceiling and ceiling is not None and reaches(worse_end, near(ceiling, spec), spec):
        return "converged", "ceiling"
    return ("converged", "twin") if twin_moved is False else ("unverified", "no_twin")


def reaches(value: float, goal: float, spec: TaskSpec) -> bool:
    """Whether a metric is at a value or better."""
    return value >= goal if spec.direction == "max" else value <= goal


def near(ceiling: float, spec: TaskSpec) -> float:
    """The value from which a ceiling counts as reached."""
    return ceiling - CEILING_TOLERANCE if spec.direction == "max" else ceiling + CEILING_TOLERANCE

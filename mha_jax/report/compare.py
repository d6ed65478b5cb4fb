"""Which of two cells is better, and what a table of such questions may claim.

Rules (they hold for every table of comparisons):

- Two cells are compared on the seeds that they share, as differences A - B: a pair starts from the
  same draws and reads the same batches, so what it has in common drops out. A seed that diverged in
  either cell is no pair.
- The interval is 95 % Student t over the differences, p is that of the two-sided paired t test, and
  `p_holm` is adjusted over all comparisons of the table (Holm 1979). At a level of 4 % the chance
  of any false "better" in a table is below 5 %; at 5 % it would be exactly that for a lone pair.
- An nmse is compared as its log10, since errors span decades: a difference of -1 is a tenth of the
  error.
- A comparison is a ranking, so it is made only between converged cells with at least five shared
  seeds. Any other keeps its row, with the reason, and takes no part in the adjustment.
- Where both cells were also trained with twice the budget, a "better" is withdrawn if that reverses
  the difference, or moves the two cells by as much as they differ. Cells that both solve their
  task, or differ by no more than what counts as converged, are not ranked either: more steps may
  swap them.
- No difference shown is no proof of equality: the verdict names the difference that the table had
  80 % power to show.
- Cells whose learning rates come from different grids are not ranked. A grid that was widened is
  still the same one.

All differences equal: at zero p is 1; elsewhere it is 0 and the interval a point, the limits of the
t test. This happens where neither outcome depends on the seed. Differences below `RESOLUTION` are
rounding, and count as zero.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import statistics
from collections.abc import Mapping, Sequence

from mha_jax.report.intervals import t_interval
from mha_jax.report.stats import MIN_SEEDS_RANKED
from mha_jax.report.verdict import on_scale

Values = Mapping[tuple[int, int], float]  # (seed, data_seed) -> a run's test metric

ALPHA = 0.04
POWER = 0.8
RESOLUTION = 1e-6  # metrics are float32 means: eps 1.2e-7, and a few roundings


@dataclasses.dataclass(frozen=True)
class Side:
    """One of two cells."""

    values: Values
    status: str  # of stats.Cell
    reason: str
    twin: Values | None = None  # the same cell, trained with twice the budget; None: it was not


@dataclasses.dataclass(frozen=True)
class Pair:
    """Two cells that are asked which is better by a metric."""

    a: Side
    b: Side
    metric: str
    direction: str  # max | min
    tolerance: float = 0.0  # on `scale`: a difference up to this is none
    unlike: str = ""  # why they are not tuned alike; "": they are

    @property
    def scale(self) -> str:
        """What is subtracted: the metric, or its log10."""
        return f"log10 {self.metric}" if self.metric == "nmse" else self.metric

    def differences(self) -> list[float]:
        """A - B for each seed that both have a finite value of, by seed, on `scale`."""
        return self._subtract(self.a.values, self.b.values)

    def is_reordered(self) -> bool:
        """Whether the doubled budget contradicts the mean difference, or could. A cell for which it
        was not run, since it reaches its ceiling, stays as it is.

        It could where the cells' means moved, together, by no less than what they differ by.
        """
        a, b = self.a, self.b
        doubled = self._subtract(a.twin or a.values, b.twin or b.values)
        moves = [self._subtract(side.twin or side.values, side.values) for side in (a, b)]
        if not (doubled and all(moves)):
            return False
        mean = statistics.fmean(self.differences())
        moved = sum(abs(statistics.fmean(move)) for move in moves)
        return statistics.fmean(doubled) * mean <= 0 or abs(mean) <= moved

    def _subtract(self, a: Values, b: Values) -> list[float]:
        shared = sorted(
            s for s in a.keys() & b.keys() if math.isfinite(a[s]) and math.isfinite(b[s])
        )
        at = [[on_scale(side[s], self.metric) for s in shared] for side in (a, b)]
        differences = [of_a - of_b for of_a, of_b in zip(*at, strict=True)]
        return [d if abs(d) >= RESOLUTION else 0.0 for d in differences]


@dataclasses.dataclass(frozen=True)
class Comparison:
    """One row of a table. `None` where a number is not defined."""

    n_pairs: int
    mean_difference: float | None  # A - B, on `Pair.scale`
    ci_low: float | None
    ci_high: float | None
    p: float | None
    p_holm: float | None  # None: not ranked
    mdd: float | None  # the difference that the table shows with 80 % power
    verdict: str


def compare(pairs: Sequence[Pair]) -> list[Comparison]:
    """The comparisons of one table, in order."""
    differences = [pair.differences() for pair in pairs]
    p_values = [paired_p(d) for d in differences]
    excluded = [_not_ranked(pair, len(d)) for pair, d in zip(pairs, differences, strict=True)]
    family = [
        p for p, reason in zip(p_values, excluded, strict=True) if p is not None and not reason
    ]
    adjusted = iter(holm(family))
    level = ALPHA / (len(family) or len(pairs) or 1)
    rows = []
    for pair, d, p, reason in zip(pairs, differences, p_values, excluded, strict=True):
        p_holm, verdict = None, reason
        mdd = minimum_detectable(statistics.stdev(d), len(d), level) if len(d) > 1 else None
        if not reason and mdd is not None:
            p_holm = next(adjusted)
            verdict = _verdict(pair, statistics.fmean(d), p_holm, mdd)
        low, high = t_interval(d)
        mean = statistics.fmean(d) if d else None
        rows.append(Comparison(len(d), mean, low, high, p, p_holm, mdd, verdict))
    return rows


def paired_p(differences: Sequence[float]) -> float | None:
    """p of the two-sided paired t test; None for fewer than two pairs."""
    n = len(differences)
    if n < 2:
        return None
    from scipy.special import stdtr

    mean, sd = statistics.fmean(differences), statistics.stdev(differences)
    if sd == 0:
        return 0.0 if mean else 1.0
    return 2 * float(stdtr(n - 1, -abs(mean) / (sd / math.sqrt(n))))


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusted p of a family of tests: a null hypothesis is rejected where it is <= ALPHA.

    The step-down procedure of Holm 1979, "A simple sequentially rejective multiple test procedure".
    It asks nothing of the dependence between the tests.
    """
    adjusted = [0.0] * len(p_values)
    largest = 0.0
    for rank, i in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[i]))
        adjusted[i] = largest
    return adjusted


def minimum_detectable(sd: float, n: int, alpha: float = ALPHA) -> float:
    """The mean difference that a two-sided paired t test at level alpha shows with 80 % power.

    It is c * sd / sqrt(n), where a noncentral t with n - 1 degrees of freedom and noncentrality c
    exceeds the critical value with probability 0.8. (The other tail, below 1e-5, is left out.)

    In a table of m comparisons alpha / m is the level at which Holm rejects whatever the other
    comparisons say, so there the power is at least 80 %.

    Args:
      sd: standard deviation of the differences.
      n: pairs, at least 2.
    """
    return _noncentrality(n - 1, alpha) * sd / math.sqrt(n)


@functools.cache
def _noncentrality(df: int, alpha: float) -> float:
    from scipy.special import nctdtrinc, stdtrit

    return float(nctdtrinc(df, 1 - POWER, stdtrit(df, 1 - alpha / 2)))


def _not_ranked(pair: Pair, n_pairs: int) -> str:
    """Why a pair takes no part in the ranking; "" if it does."""
    sides = {"A": pair.a, "B": pair.b}
    open_ = [f"{k} {s.status} ({s.reason})" for k, s in sides.items() if s.status != "converged"]
    if open_:
        return f"not ranked: {', '.join(open_)}"
    if pair.unlike:
        return f"not ranked: {pair.unlike}"
    if pair.a.reason == pair.b.reason == "solved":
        return "not ranked: both solved"
    if n_pairs < MIN_SEEDS_RANKED:
        return f"not ranked: too few seeds ({n_pairs} shared, {MIN_SEEDS_RANKED} needed)"
    return ""


def _verdict(pair: Pair, mean: float, p_holm: float, mdd: float) -> str:
    if mdd == mean == 0:
        return "not distinguishable (equal on every seed)"
    if p_holm > ALPHA:
        return f"not distinguishable (a difference of {mdd:.2g} is seen with {POWER:.0%} power)"
    if abs(mean) <= pair.tolerance:
        return f"no difference above {pair.tolerance:g}, up to which it counts as none"
    if pair.is_reordered():
        return "not ranked: a doubled budget would reorder them"
    return f"{'A' if (mean > 0) == (pair.direction == 'max') else 'B'} is better"

"""Intervals of one sample: of a mean, and of a fraction. Numbers in, numbers out.

`scipy.stats` has both and takes seconds to import. The quantile of t comes from `scipy.special`,
which does not, that of the normal distribution from Python itself.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

LEVEL = 0.95


def t_interval(values: Sequence[float]) -> tuple[float | None, float | None]:
    """95 % Student t interval of the mean; (None, None) for fewer than two values."""
    n = len(values)
    if n < 2:
        return None, None
    from scipy.special import stdtrit

    mean = statistics.fmean(values)
    half = float(stdtrit(n - 1, (1 + LEVEL) / 2)) * statistics.stdev(values) / math.sqrt(n)
    return mean - half, mean + half


def wilson(k: int, n: int) -> tuple[float | None, float | None]:
    """95 % interval of the probability behind k successes in n trials; (None, None) for no trial.

    The score interval without continuity correction (Wilson 1927, "Probable inference, the law of
    succession, and statistical inference"): unlike mean +- error it stays within [0, 1], and has a
    width where all trials agree.

    Raises:
      ValueError: k is not from 0 to n.
    """
    if not 0 <= k <= n:
        raise ValueError(f"{k} successes in {n} trials")
    if n == 0:
        return None, None
    z = statistics.NormalDist().inv_cdf((1 + LEVEL) / 2)
    centre = (k + z * z / 2) / (n + z * z)
    half = z / (n + z * z) * math.sqrt(k * (n - k) / n + z * z / 4)
    # At k = 0 and k = n the ends are exactly 0 and 1; the formula rounds.
    return (centre - half if k else 0.0), (centre + half if k < n else 1.0)

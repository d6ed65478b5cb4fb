"""The intervals are those of scipy.stats, which is too slow to import for the reports."""

import math
import statistics

import numpy as np
import pytest

from mha_jax.report.intervals import t_interval, wilson


@pytest.mark.parametrize("values", [[1.0, 2.0], [0.3, 0.1, 0.9, 0.4, 0.4], [5.0] * 3])
def test_interval_is_that_of_scipy(values: list[float]) -> None:
    from scipy.stats import t

    low, high = t_interval(values)
    error = statistics.stdev(values) / math.sqrt(len(values))
    with np.errstate(all="raise"):
        want = (
            t.interval(0.95, len(values) - 1, statistics.mean(values), error)
            if error
            else (5.0, 5.0)
        )
    assert (low, high) == pytest.approx(want, rel=1e-12)


def test_interval_of_one_value_does_not_exist() -> None:
    assert t_interval([0.5]) == t_interval([]) == (None, None)


def test_wilson_is_that_of_scipy() -> None:
    from scipy.stats import binomtest

    for n in (1, 2, 5, 20, 1000):
        for k in range(0, n + 1, max(1, n // 20)):
            want = binomtest(k, n).proportion_ci(0.95, method="wilson")
            # abs: scipy does not take the ends 0 and 1 as exact.
            assert wilson(k, n) == pytest.approx((want.low, want.high), rel=1e-12, abs=1e-15)


def test_wilson_ends() -> None:
    for n in range(1, 100):
        assert wilson(0, n)[0] == 0 and wilson(n, n)[1] == 1
    assert wilson(0, 0) == (None, None)
    for k, n in ((-1, 5), (6, 5), (1, 0)):
        with pytest.raises(ValueError, match=f"{k} successes in {n} trials"):
            wilson(k, n)

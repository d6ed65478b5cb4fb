"""Scores from sums: intervals against a slow loop and on simulated data; scores of many heads."""

from __future__ import annotations

import numpy as np
import pytest

from mha_jax.analysis import bootstrap
from mha_jax.analysis.bootstrap import above_offset, finish, resampled, sink_rate
from mha_jax.analysis.scores import Sums


def sums_of(value: np.ndarray, n_rows: np.ndarray, chance: float = 0.0) -> Sums:
    """value [b, n] as sums over n_rows rows of which each has the same baseline."""
    return Sums(value, chance * n_rows, n_rows, n_rows + 1)


def random_sums(b: int, n: int, rng: np.random.Generator) -> tuple[Sums, float]:
    """b sequences of 1 to 9 rows, n heads, baseline .2, and the true value: every sequence has a
    level of its own, about which its rows scatter.
    """
    n_rows = rng.integers(1, 10, b)
    level = rng.beta(2, 1, (b, n))
    value = rng.binomial(n_rows[:, None], level)
    return sums_of(value.astype(np.float64), n_rows, 0.2), 2 / 3


def test_against_a_slow_loop(assert_close) -> None:
    """A ratio of sums over drawn sequences, and percentiles of it."""
    sums, _ = random_sums(12, 3, np.random.default_rng(0))
    score = finish(sums, n_draws=50, seed=3)
    counts = resampled(np.eye(12), 50, 3)
    assert (counts.sum(1) == 12).all() and (counts >= 0).all() and (counts == counts.round()).all()
    for n in range(3):
        total = sum(sums.value[:, n])
        assert_close(score.value[n], total / sum(sums.n_rows))
        assert_close(score.corrected[n], (total / sum(sums.n_rows) - 0.2) / 0.8)
        drawn = []
        for draw in counts.astype(int):
            b = np.repeat(np.arange(12), draw)
            drawn.append((sums.value[b, n].sum() / sums.n_rows[b].sum() - 0.2) / 0.8)
        assert_close((score.low[n], score.high[n]), tuple(np.quantile(drawn, (0.025, 0.975))))
    assert_close((score.baseline, score.share), (0.2, sum(sums.n_rows) / sum(sums.n_rows + 1)))
    assert score.n_rows == sum(sums.n_rows)


def test_further_axes_are_scores_of_their_own(assert_close) -> None:
    parts = [random_sums(6, 2, np.random.default_rng(i))[0] for i in range(3)]
    whole = finish(Sums(*(np.stack(x, -1) for x in zip(*parts, strict=True))))
    for i, part in enumerate(parts):
        assert_close(tuple(x[..., i] for x in whole), tuple(finish(part)))


def test_intervals_are_the_same_every_time(assert_close) -> None:
    sums, _ = random_sums(20, 2, np.random.default_rng(1))
    one, other = finish(sums), finish(sums, seed=1)
    bootstrap._counts.cache_clear()  # as in another process
    again = finish(sums)
    assert (one.low == again.low).all() and (one.low != other.low).any()
    assert (one.low < one.corrected).all() and (one.corrected < one.high).all()


def test_the_interval_covers_the_truth() -> None:
    """95 % intervals over 60 sequences hold the true value 95 times in 100, less what a percentile
    interval is known to lack at this size, about 1; 4,000 tables have a standard error of .35.
    """
    rng = np.random.default_rng(2)
    inside = []
    for _ in range(40):
        sums, truth = random_sums(60, 100, rng)
        score, corrected = finish(sums), (truth - 0.2) / 0.8
        inside.append((score.low <= corrected) & (corrected <= score.high))
    assert 0.925 < np.mean(inside) < 0.96


def test_rows_are_not_taken_for_independent() -> None:
    """100 equal rows a sequence tell as much as one, so the interval must not shrink by 10."""
    level = np.random.default_rng(3).integers(0, 2, (40, 1)).astype(np.float64)
    one, many = (finish(sums_of(level * n, np.full(40, n))) for n in (1, 100))
    assert np.isclose(one.high - one.low, many.high - many.low)
    assert one.high - one.low > 0.2


def test_what_is_undefined_is_nan() -> None:
    none = finish(sums_of(np.zeros((4, 2)), np.zeros(4, int)))
    assert all(np.isnan(x).all() for x in none[:5]) and (none.n_rows, none.share) == (0, 0)
    certain = finish(sums_of(np.full((4, 1), 3.0), np.full(4, 3), chance=1.0))
    assert certain.value == 1 and np.isnan(certain.corrected).all() and np.isnan(certain.low).all()
    # One sequence, or one that has rows, says nothing of how sequences differ.
    for n_rows in (np.array([5]), np.array([5, 0, 0])):
        alone = finish(sums_of(0.5 * n_rows[:, None], n_rows))
        assert alone.corrected == 0.5 and np.isnan(alone.low) and np.isnan(alone.high)
    # A resample without either of the two is left out.
    two = finish(sums_of(np.array([[5.0], [4], [0], [0]]), np.array([5, 5, 0, 0])))
    assert np.isfinite(two.low) and two.low < two.corrected == 0.9 < two.high
    unknown = finish(sums_of(np.array([[np.nan, 1], [1, 1]]), np.array([2, 2])))
    assert np.isnan(unknown.value[0]) and np.isnan(unknown.low[0]) and unknown.value[1] == 0.5


def test_ideal_zero_turns_the_scale_round(assert_close) -> None:
    """Entropy 1 of 4 nats at most is .75 of the way from uniform to certain."""
    score = finish(sums_of(np.full((3, 1), 2.0), np.full(3, 2), chance=4.0), ideal=0.0)
    assert_close((score.value, score.baseline, score.corrected), ([1.0], 4.0, [0.75]))


def alpha(share: np.ndarray, length: int, b: int = 5) -> Sums:
    """`mass` on the first position of heads that put `share` there beside uniform attention."""
    chance = (1 / np.arange(1, length + 1)).sum()
    value = np.broadcast_to(chance + share * (length - chance), (b, len(share)))
    rows = np.full(b, length)
    return Sums(value, np.full(b, chance), rows, rows)


def test_sink_rate(assert_close) -> None:
    """At length 4 uniform attention has alpha .52 > .3, so every head counts; corrected, only those
    with a sink. At length 64 it has .07.
    """
    short = sink_rate([alpha(np.array([0, 0.2, 0.4]), 4), alpha(np.array([0.9]), 4)])
    assert_close((short.value, short.baseline, short.corrected), (1.0, 1.0, 2 / 4))
    assert_close((short.low, short.high), (0.5, 0.5))  # all sequences are alike
    long = sink_rate([alpha(np.array([0, 0.28, 0.4]), 64), alpha(np.array([0.9]), 64)])
    assert_close((long.value, long.baseline, long.corrected), (3 / 4, 0.0, 2 / 4))
    assert sink_rate([alpha(np.array([0.9, 0.4]), 64)], eps=0.5).value == 0.5


def test_sink_rate_of_layers_that_see_different_keys(assert_close) -> None:
    """A layer whose window hides the first position on most rows counts the rows where it is seen,
    and uniform attention exceeds eps there alone.
    """
    window, causal = alpha(np.array([0.0]), 3), alpha(np.array([0.0, 0.0, 0.5]), 64)
    score = sink_rate([window, causal])
    assert_close((score.value, score.baseline, score.corrected), (2 / 4, 1 / 4, 1 / 4))
    assert score.n_rows == 5 * 3


def test_sink_rate_has_an_interval() -> None:
    rng = np.random.default_rng(4)
    rows = np.full(30, 10)
    value = 10 * rng.beta(1, 2, (30, 20))  # mean 1/3, near eps
    score = sink_rate([sums_of(value, rows)])
    assert score.low < score.corrected < score.high


def test_above_offset(assert_close) -> None:
    """Accuracies .8 and .3 beside offsets of which the best has .6 of the same rows."""
    rows = np.full(6, 10)
    offsets = sums_of(np.tile([0.0, 1, 6, 2, 0, 0], (6, 1)), rows)
    score = above_offset(sums_of(np.tile([8.0, 3.0], (6, 1)), rows, 0.1), offsets)
    assert_close((score.value, score.baseline), ([0.8, 0.3], 0.6))
    assert_close(score.corrected, [0.5, -0.75])
    assert_close((score.low, score.high), (score.corrected, score.corrected))  # all alike


def test_above_offset_is_paired_and_looks_for_the_best_again(assert_close) -> None:
    """A head that does what offset 2 does has no advantage, in no resample."""
    rng = np.random.default_rng(5)
    rows = np.full(30, 10)
    fixed = rng.binomial(10, 0.5, (30, 6)).astype(np.float64)
    score = above_offset(sums_of(fixed[:, [2]], rows), sums_of(fixed, rows))
    assert (score.high <= 1e-12).all() and (score.low < 0).all()


@pytest.mark.parametrize("b", [2, 7])
def test_resamples_are_of_as_many_sequences(b: int) -> None:
    assert (resampled(np.ones((b, 2, 3)), 4, 0) == b).all()

"""Paired comparisons: the numbers are scipy's, and the words claim no more than the numbers."""

import dataclasses
import itertools
import math
import random

import numpy as np
import pytest

from mha_jax.report.compare import (
    ALPHA,
    Comparison,
    Pair,
    Side,
    compare,
    holm,
    minimum_detectable,
    paired_p,
)

LOW = [0.50, 0.52, 0.49, 0.51, 0.50]
HIGH = [0.60, 0.61, 0.60, 0.63, 0.59]
NEAR = [0.51, 0.51, 0.50, 0.50, 0.51]
MAX = ("accuracy", "max")


def side(values: list[float], status: str = "converged", first: int = 0, **fields) -> Side:
    reason = "twin" if status == "converged" else "budget"
    return Side(by_seed(values, first), status, reason, **fields)


def by_seed(values: list[float], first: int = 0) -> dict[tuple[int, int], float]:
    return {(seed, seed): value for seed, value in enumerate(values, start=first)}


def one(a: Side, b: Side, metric: str = "accuracy", direction: str = "max") -> Comparison:
    (row,) = compare([Pair(a, b, metric, direction)])
    return row


@pytest.mark.parametrize(("a", "b"), [(LOW, HIGH), (LOW, NEAR), (LOW[:2], NEAR[:2])])
def test_numbers_are_those_of_scipy(a: list[float], b: list[float]) -> None:
    from scipy.stats import ttest_rel

    want = ttest_rel(a, b)
    row = one(side(a), side(b))
    interval = want.confidence_interval(0.95)
    assert row.n_pairs == len(a)
    assert row.mean_difference == pytest.approx(np.mean(a) - np.mean(b), rel=1e-12)
    assert (row.ci_low, row.ci_high) == pytest.approx((interval.low, interval.high), rel=1e-9)
    assert row.p == pytest.approx(want.pvalue, rel=1e-9)


def test_pairs_are_the_shared_seeds() -> None:
    """By seed and data seed, whatever their order; a diverged seed is no pair."""
    a = {(0, 1): 0.5, (1, 1): 0.6, (2, 2): math.nan, (3, 3): 0.4, (9, 9): 7.0}
    b = {(3, 3): 0.3, (2, 2): 0.1, (1, 1): 0.4, (0, 2): 9.0, (0, 1): 0.4}
    pair = Pair(Side(a, "converged", ""), Side(b, "converged", ""), "accuracy", "max")
    assert pair.differences() == pytest.approx([0.1, 0.2, 0.1])


@pytest.mark.parametrize("n", range(7))
def test_holm_is_closed_testing(n: int) -> None:
    """A hypothesis is rejected if and only if every subset that holds it is, by Bonferroni."""
    generator = random.Random(n)
    for _ in range(50):
        p_values = [generator.choice([0.0, 0.01, 0.04, generator.random() ** 3]) for _ in range(n)]
        want = [0.0] * n
        for size in range(1, n + 1):
            for subset in itertools.combinations(range(n), size):
                bound = min(1.0, size * min(p_values[i] for i in subset))
                for i in subset:
                    want[i] = max(want[i], bound)
        assert holm(p_values) == pytest.approx(want, rel=1e-12)


@pytest.mark.parametrize("n", [5, 10, 30])
@pytest.mark.parametrize("alpha", [ALPHA, ALPHA / 10])
def test_power_at_the_minimum_detectable_difference(n: int, alpha: float) -> None:
    """By scipy's noncentral t, whose far tail has no weight here."""
    from scipy.stats import nct, t

    sd = 0.3
    shift = minimum_detectable(sd, n, alpha) * math.sqrt(n) / sd
    critical = t.ppf(1 - alpha / 2, n - 1)
    assert nct.sf(critical, n - 1, shift) == pytest.approx(0.8, abs=1e-6)


@pytest.mark.parametrize(
    ("metric", "direction", "verdict"),
    [("accuracy", "max", "B is better"), ("bits_per_byte", "min", "A is better")],
)
def test_direction(metric: str, direction: str, verdict: str) -> None:
    row = one(side(LOW), side(HIGH), metric, direction)
    assert row.mean_difference < 0 and row.verdict == verdict
    swapped = one(side(HIGH), side(LOW), metric, direction)
    assert swapped.verdict == verdict.translate(str.maketrans("AB", "BA"))


def test_nmse_is_compared_in_decades() -> None:
    """One seed with a large error must not hide a tenfold error on every seed."""
    low = [1e-5, 2e-5, 1e-4, 1e-3, 1e-1]
    high = [9 * v for v in low[:3]] + [11 * v for v in low[3:]]
    pair = Pair(side(low), side(high), "nmse", "min")
    (row,) = compare([pair])
    assert pair.scale == "log10 nmse" and row.mean_difference == pytest.approx(-1, abs=0.05)
    assert row.verdict == "A is better"
    assert one(side(low), side(high), "r2").verdict.startswith("not distinguishable")
    # An error of zero is float32 rounding, not minus infinity.
    assert one(side([0.0] * 5), side([1e-14] * 5), "nmse", "min").mean_difference == 0


def test_not_distinguishable_names_what_would_have_been_seen() -> None:
    row = one(side(LOW), side(NEAR))
    sd = np.std(np.subtract(LOW, NEAR), ddof=1)
    assert row.mdd == pytest.approx(minimum_detectable(sd, 5, ALPHA))
    assert row.verdict == (
        f"not distinguishable (a difference of {row.mdd:.2g} is seen with 80% power)"
    )


def test_what_would_have_been_seen_grows_with_the_table() -> None:
    pair = Pair(side(LOW), side(NEAR), "accuracy", "max")
    alone, among = compare([pair])[0], compare([pair] * 10)[0]
    sd = np.std(np.subtract(LOW, NEAR), ddof=1)
    assert among.mdd == pytest.approx(minimum_detectable(sd, 5, ALPHA / 10))
    assert among.mdd > alone.mdd and among.p == alone.p


def test_holm_over_the_table() -> None:
    """A difference that is seen alone is not claimed among many questions."""
    apart = Pair(side(LOW), side([v + d for v, d in zip(LOW, (0, 1, 2, 1, 1), strict=True)]), *MAX)
    (alone,) = compare([apart])
    assert ALPHA / 3 < alone.p < ALPHA
    assert alone.verdict == "B is better" and alone.p_holm == alone.p
    near = Pair(side(LOW), side(NEAR), *MAX)
    rows = compare([near, apart, near])
    assert rows[1].p_holm == pytest.approx(3 * alone.p)
    assert [row.p_holm for row in rows] == pytest.approx(holm([row.p for row in rows]))
    assert rows[1].verdict.startswith("not distinguishable")


def test_only_converged_cells_are_ranked() -> None:
    row = one(side(LOW), side(HIGH, "unconverged"))
    assert row.verdict == "not ranked: B unconverged (budget)"
    assert row.p_holm is None
    sd = np.std(np.subtract(LOW, HIGH), ddof=1)
    assert row.mdd == pytest.approx(minimum_detectable(sd, 5, ALPHA))
    assert row.mean_difference < 0 and row.ci_high < 0 and row.p < ALPHA
    both = one(side(LOW, "unverified"), side(HIGH, "unfinished"))
    assert both.verdict == "not ranked: A unverified (budget), B unfinished (budget)"


@pytest.mark.parametrize("n", range(5))
def test_fewer_than_five_shared_seeds_do_not_rank(n: int) -> None:
    row = one(side(LOW), side(HIGH, first=5 - n))
    assert row.verdict == f"not ranked: too few seeds ({n} shared, 5 needed)"
    assert row.n_pairs == n and row.p_holm is None
    assert (row.p is None, row.ci_low is None) == (n < 2, n < 2)
    assert (row.mean_difference is None) == (n == 0)


def test_what_is_not_ranked_takes_no_part_in_the_adjustment() -> None:
    ranked = Pair(side(LOW), side(HIGH), *MAX)
    others = [
        Pair(side(LOW), side(HIGH, "unconverged"), *MAX),
        Pair(side(LOW), side(HIGH[:4]), *MAX),
        Pair(side([]), side(HIGH), *MAX),
    ]
    (alone,) = compare([ranked])
    rows = compare([*others, ranked])
    assert rows[-1] == alone
    assert [row.p_holm for row in rows[:-1]] == [None] * 3


def test_equal_cells_are_not_distinguishable() -> None:
    row = one(side(LOW), side(LOW))
    assert (row.mean_difference, row.ci_low, row.ci_high, row.p) == (0, 0, 0, 1)
    assert row.verdict.startswith("not distinguishable")


def test_a_constant_difference_is_the_limit_of_the_test() -> None:
    row = one(side([1.0] * 5), side([0.0625] * 5))
    assert (row.mean_difference, row.ci_low, row.ci_high) == (0.9375,) * 3
    assert (row.p, row.p_holm, row.mdd, row.verdict) == (0, 0, 0, "A is better")


def test_rounding_is_no_difference() -> None:
    row = one(side([0.9 + 6e-8] * 5), side([0.9] * 5))
    assert row.p == 1 and row.verdict.startswith("not distinguishable")


@pytest.mark.parametrize(
    ("a", "b", "withdrawn"),
    [
        (LOW, HIGH, False),
        (HIGH, LOW, True),  # the other sign
        (HIGH, HIGH, True),  # no difference left
        ([v + 0.02 for v in LOW], [v + 0.06 for v in HIGH], False),
        ([v + 0.04 for v in LOW], [v + 0.07 for v in HIGH], True),  # moved by .11, differ by .10
        ([v + 0.04 for v in LOW], [v - 0.02 for v in HIGH], False),
        (None, LOW, True),  # A has none, and B comes down to where A stands
        (None, HIGH, False),
        (LOW, None, False),
    ],
)
@pytest.mark.parametrize("direction", ["max", "min"])
def test_a_doubled_budget_may_withdraw_a_verdict(
    a: list[float] | None, b: list[float] | None, withdrawn: bool, direction: str
) -> None:
    twins = [None if values is None else by_seed(values) for values in (a, b)]
    row = one(side(LOW, twin=twins[0]), side(HIGH, twin=twins[1]), "accuracy", direction)
    better = "B is better" if direction == "max" else "A is better"
    assert row.verdict == (
        "not ranked: a doubled budget would reorder them" if withdrawn else better
    )
    assert row.p_holm == row.p  # it was tested, and counts in the adjustment


def test_twins_of_some_seeds_may_have_the_other_sign() -> None:
    """Nothing moved, but the seed that was trained on is the one that goes against the mean."""
    a, b = [0.62, *LOW], [0.60, *HIGH]
    assert one(side(a), side(b)).verdict == "B is better"
    row = one(side(a, twin=by_seed(a[:1])), side(b, twin=by_seed(b[:1])))
    assert row.verdict == "not ranked: a doubled budget would reorder them"


def test_twins_of_other_seeds_say_nothing() -> None:
    other = {seed: 1 - value for seed, value in by_seed(HIGH, first=7).items()}
    assert one(side(LOW, twin=other), side(HIGH, twin=other)).verdict == "B is better"


def test_twins_of_what_is_not_distinguishable_change_nothing() -> None:
    a, b = side(LOW, twin=by_seed(HIGH)), side(NEAR, twin=by_seed(LOW))
    plain = [dataclasses.replace(s, twin=None) for s in (a, b)]
    assert one(a, b) == one(*plain)


def test_no_pair_no_row() -> None:
    assert compare([]) == [] and paired_p([]) is None


def test_cells_that_both_solve_the_task_are_not_ranked() -> None:
    """Neither was trained longer to see whether it moves."""
    solved = [dataclasses.replace(side(values), reason="solved") for values in (LOW, HIGH)]
    assert one(*solved).verdict == "not ranked: both solved"
    assert one(solved[0], side(HIGH)).verdict == "B is better"


@pytest.mark.parametrize(("tolerance", "better"), [(0.09, True), (0.11, False)])
def test_a_difference_that_counts_as_converged_is_none(tolerance: float, better: bool) -> None:
    """LOW and HIGH differ by .102."""
    (row,) = compare([Pair(side(LOW), side(HIGH), "accuracy", "max", tolerance)])
    none = f"no difference above {tolerance:g}, up to which it counts as none"
    assert row.verdict == ("B is better" if better else none)


def test_cells_that_are_equal_on_every_seed_say_so() -> None:
    assert one(side(LOW), side(LOW)).verdict == "not distinguishable (equal on every seed)"


def test_a_cell_that_overtakes_one_without_a_twin_is_not_ranked_below_it() -> None:
    """The better cell solved its task and was not trained longer; the other comes past it."""
    solved = dataclasses.replace(side(HIGH), reason="solved")
    later = side(LOW, twin=by_seed([v + 0.2 for v in LOW]))
    assert one(solved, later).verdict == "not ranked: a doubled budget would reorder them"
    still = side(LOW, twin=by_seed([v + 0.01 for v in LOW]))
    assert one(solved, still).verdict == "A is better"


def test_cells_tuned_on_different_grids_are_not_ranked() -> None:
    (row,) = compare([Pair(side(LOW), side(HIGH), *MAX, unlike="tuned on other rates")])
    assert row.verdict == "not ranked: tuned on other rates" and row.p_holm is None

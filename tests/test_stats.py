"""What a cell says of its runs: the interval, the chosen learning rate, the verdict."""

import dataclasses
import math

import pytest

from configs.base import get_config
from mha_jax.report import stats
from mha_jax.report.result import Result
from mha_jax.report.stats import cell
from mha_jax.tasks import TaskSpec, relations, text

RELATIONS = relations.spec(relations.Config(**get_config().task.relations))
TEXT = text.spec(text.Config(**get_config().task.text))
NMSE = dataclasses.replace(
    RELATIONS, outputs=("y",), metric="nmse", direction="min", chance=1.0, solved_at=1e-4
)
R2 = dataclasses.replace(RELATIONS, outputs=("y",), metric="r2", chance=0.0, solved_at=0.99)
GRID = (1e-3, 3e-3, 1e-2)


def run(test: float = 0.5, lr: float = 3e-3, seed: int = 0, **fields) -> Result:
    outputs = fields.pop("outputs", (test,))
    base = Result("", seed, seed, lr, 0.0, "sweep", "done", test, test, outputs, None, None, None)
    return dataclasses.replace(base, **fields)


def runs(tests: list[float], lrs: tuple[float, ...] = GRID, **fields) -> list[Result]:
    """Every rate of a grid with these seeds; the middle rate has the best validation metric."""
    sign = -1 if fields.pop("down", False) else 1
    worse = {lr: sign * 0.02 * abs(i - len(lrs) // 2) for i, lr in enumerate(lrs)}
    return [
        run(t, lr, seed, validation=t - worse[lr], **fields)
        for lr in lrs
        for seed, t in enumerate(tests)
    ]


def test_interval_of_one_seed_does_not_exist() -> None:
    assert cell([run(1.0, outputs=(1.0,) * 4)], RELATIONS).ci_low is None


def test_rate_by_validation_score_from_test() -> None:
    """The test metric must not take part in the choice."""
    results = [
        run(0.9, 1e-3, seed=0, validation=0.1),
        run(0.9, 1e-3, seed=1, validation=0.2),
        run(0.5, 3e-3, seed=0, validation=0.7),
        run(0.7, 3e-3, seed=1, validation=0.1),
        run(0.6, 1e-2, seed=0, validation=0.3),
    ]
    got = cell(results, R2)
    assert (got.lr, got.choice.n_lrs, got.choice.edge) == (3e-3, 3, "no")
    assert (got.mean, got.median, got.min, got.max) == (0.6, 0.6, 0.5, 0.7)
    assert got.validation_mean == pytest.approx(0.4)
    assert (got.n_runs, got.n_done, len(got.seeds)) == (5, 5, 2)
    down = cell([dataclasses.replace(r, validation=-r.validation) for r in results], NMSE)
    assert down.lr == 3e-3


def test_weight_decay_is_chosen_with_the_rate() -> None:
    results = [
        run(0.5, lr, weight_decay=wd, validation=lr * 10 + wd) for lr in GRID for wd in (0.0, 0.1)
    ]
    got = cell(results, R2)
    assert (got.lr, got.choice.weight_decay, got.choice.edge) == (1e-2, 0.1, "high")


def test_the_edge_is_that_of_the_chosen_weight_decay() -> None:
    """A rate that was tried with one weight decay only says nothing about another."""
    results = [run(0.5, lr) for lr in GRID] + [run(0.9, 3e-3, weight_decay=0.1, validation=0.9)]
    got = cell(results, R2)
    assert (got.choice.weight_decay, got.choice.n_lrs, got.choice.edge) == (0.1, 3, "both")


def test_equal_rates_give_the_middle_one() -> None:
    got = cell([run(1.0, lr, outputs=(1.0,) * 4) for lr in GRID], RELATIONS)
    assert (got.lr, got.choice.edge) == (3e-3, "no")


def test_a_rate_at_which_runs_diverge_is_not_preferred() -> None:
    results = runs([0.9, 0.9], lrs=(1e-3, 3e-3, 1e-2))
    results[2] = dataclasses.replace(results[2], status="diverged", test=math.nan)
    assert cell(results, R2).lr == 1e-3


def test_diverged_runs_are_counted_and_not_averaged() -> None:
    results = [
        run(0.8, seed=0),
        run(0.6, seed=1),
        run(math.nan, seed=2, status="diverged", validation=math.nan),
        run(math.inf, seed=3),  # says "done", but has no usable metric
    ]
    got = cell(results, R2)
    assert (got.mean, got.n_diverged, got.diverged, got.n_done) == (0.7, 2, 2, 2)
    assert got.success_rate == 0
    lost = cell([run(math.nan, status="diverged")], R2)
    assert (lost.mean, lost.success_rate, lost.status, lost.reason) == (
        *(None, None),
        *("unconverged", "diverged"),
    )


def test_success_is_judged_on_every_read_out_head() -> None:
    good, bad = (0.995, 0.99, 1.0, 1.0), (1.0, 1.0, 1.0, 0.98)
    got = cell([run(0.99, seed=0, outputs=good), run(0.995, seed=1, outputs=bad)], RELATIONS)
    assert got.success_rate == 0.5
    assert got.outputs == pytest.approx((0.9975, 0.995, 1.0, 0.99))


def test_success_without_a_solved_value_is_the_ceiling() -> None:
    spec = dataclasses.replace(R2, solved_at=None)
    results = [run(0.531, seed=0, ceiling=0.54), run(0.529, seed=1, ceiling=0.54)]
    assert cell(results, spec).success_rate == 0.5
    assert cell([run(3.0)], TEXT).success_rate is None


@pytest.mark.parametrize(
    ("results", "spec", "want"),
    [
        (runs([1.0, 0.995, 1.0], outputs=(1.0,) * 4), RELATIONS, ("converged", "solved")),
        (runs([0.99, 0.99], outputs=(1.0, 1.0, 1.0, 0.97)), RELATIONS, ("unverified", "no_twin")),
        (runs([1.0, 0.6, 1.0]), R2, ("unconverged", "seeds_split")),
        (runs([1.0, 0.6]), R2, ("unverified", "no_twin")),
        (runs([0.536, 0.537, 0.538], ceiling=0.54), R2, ("converged", "ceiling")),
        (runs([0.50, 0.53, 0.54], ceiling=0.54), R2, ("unverified", "no_twin")),
        (runs([1.0, 1.0], lrs=(3e-3,)), R2, ("unverified", "one_lr")),
        (runs([1.0], lrs=GRID), R2, ("unverified", "one_seed")),
        (runs([1.0, 1.0], lrs=(1e-3, 3e-3)), R2, ("unconverged", "lr_edge")),
        (runs([3e-5, 4e-5, 3e-5], down=True), NMSE, ("converged", "solved")),
        (runs([3e-4, 3e-4], down=True), NMSE, ("unverified", "no_twin")),
        # Within 0.01 of an error of zero is far from solved.
        (runs([3e-4, 3e-4], down=True, ceiling=0.0), NMSE, ("unverified", "no_twin")),
        (runs([2.9, 2.9], down=True), TEXT, ("unverified", "no_twin")),
        ([run(math.nan, status="unfinished")], R2, ("unfinished", "no_finished_run")),
        ([run(math.nan, status="failed")], R2, ("unfinished", "no_finished_run")),
        (
            [*runs([1.0, 1.0]), run(math.nan, seed=2, status="unfinished")],
            R2,
            ("unverified", "unfinished_runs"),
        ),
        (
            [*runs([1.0, 1.0]), run(math.nan, seed=2, status="failed")],
            R2,
            ("unverified", "failed_runs"),
        ),
    ],
)
def test_verdict(results: list[Result], spec: TaskSpec, want: tuple[str, str]) -> None:
    got = cell(results, spec)
    assert (got.status, got.reason) == want


def test_one_diverged_seed_of_three_splits_the_seeds() -> None:
    results = runs([1.0, 1.0, 1.0])
    results = [
        dataclasses.replace(r, status="diverged", test=math.nan) if r.seed == 2 else r
        for r in results
    ]
    got = cell(results, R2)
    assert (got.status, got.reason, got.diverged) == ("unconverged", "seeds_split", 1)


def test_order_of_the_runs_does_not_matter() -> None:
    results = runs([0.11, 0.73, 0.42, 0.97])
    assert cell(results[::-1], R2) == cell(results, R2)


def test_steps_to_threshold_is_a_median_in_which_never_is_late() -> None:
    def steps(*values: int | None) -> float | None:
        return cell(
            [run(seed=i, steps_to_threshold=v) for i, v in enumerate(values)], R2
        ).steps_to_threshold

    assert steps(500, 1000, None) == 1000
    assert steps(500, None, None) is None
    assert steps(500, 1000) == 750
    assert stats.MIN_SEEDS_RANKED == 5


def test_the_edge_counts_only_where_the_metric_still_rises() -> None:
    """The last step of the grid gained .02 in the first case, and .005 in the second."""
    rising = [run(0.50, 1e-3, s) for s in range(2)] + [run(0.52, 3e-3, s) for s in range(2)]
    flat = [run(0.515, 1e-3, s) for s in range(2)] + [run(0.52, 3e-3, s) for s in range(2)]
    got = cell(rising, R2)
    assert (got.choice.edge, got.reason) == ("high", "lr_edge")
    assert got.choice.edge_gain == pytest.approx(0.02)
    got = cell(flat, R2)
    assert (got.choice.edge, got.reason) == ("high", "no_twin")
    # A tenth of a decade of an nmse is a factor 1.26.
    for worse, reason in ((1.5e-3, "lr_edge"), (1.2e-3, "no_twin")):
        errors = [run(worse, 1e-3, s) for s in range(2)] + [run(1e-3, 3e-3, s) for s in range(2)]
        assert cell(errors, NMSE).reason == reason
    lost = [run(math.nan, 1e-3, s, status="diverged") for s in range(2)]
    assert cell(lost + [run(0.5, 3e-3, s) for s in range(2)], R2).reason == "lr_edge"


def test_selection_seeds_choose_and_are_not_reported() -> None:
    """At 1e-2 the reported seed is best, and must not take part in the choice."""
    results = [
        run(0.9, lr, seed=100 + seed, validation=value, purpose="selection")
        for lr, value in zip(GRID, (0.2, 0.5, 0.3), strict=True)
        for seed in range(2)
    ]
    got = cell(results, R2)
    assert (got.lr, got.status, got.mean) == (3e-3, "unfinished", None)
    reported = [run(0.4 + 0.01 * seed, 3e-3, seed) for seed in range(3)]
    got = cell([*results, *reported, run(1.0, 1e-2, seed=0)], R2)
    assert (got.lr, len(got.seeds), got.n_selection, got.choice.n_lrs) == (3e-3, 3, 2, 3)
    assert got.mean == pytest.approx(0.41)


def twins(by: list[float], of: list[float], **fields) -> list[Result]:
    """Twins of `runs(of)` at its best rate: the metric changes by `by`."""
    return [
        run(test + change, 3e-3, seed, purpose="twin", **fields)
        for seed, (test, change) in enumerate(zip(of, by, strict=True))
    ]


@pytest.mark.parametrize(
    ("by", "want"),
    [
        ([0.0, 0.009, -0.009], ("converged", "twin")),
        ([0.02, 0.021, 0.019], ("unconverged", "budget")),
        ([-0.02, -0.021, -0.019], ("unconverged", "budget")),
        # The mean moves by .02, its standard error is .0265: no more than chance.
        ([0.07, 0.01, -0.02], ("converged", "twin")),
    ],
)
def test_twice_the_steps_decide(by: list[float], want: tuple[str, str]) -> None:
    tests = [0.50, 0.51, 0.52]
    got = cell(runs(tests), R2, twins(by, tests))
    assert (got.status, got.reason) == want
    assert got.twin is not None
    assert got.twin.change == pytest.approx(sum(by) / 3)
    assert got.twin.tests[2, 2] == pytest.approx(0.52 + by[2])


def test_an_untuned_cell_that_twice_the_steps_move_is_unconverged() -> None:
    tests = [0.39, 0.39]
    got = cell(runs(tests, lrs=(3e-3,)), R2, twins([0.5, 0.5], tests))
    assert (got.status, got.reason) == ("unconverged", "budget")
    got = cell(runs(tests, lrs=(3e-3,)), R2, twins([0.0, 0.0], tests))
    assert (got.status, got.reason) == ("unverified", "one_lr")


def test_an_error_moves_in_decades() -> None:
    tests = [1e-3, 1e-3]
    for factor, want in ((0.5, "budget"), (0.85, "twin")):
        others = twins([(factor - 1) * t for t in tests], tests)
        got = cell(runs(tests, down=True), NMSE, others)
        assert got.reason == want
        assert got.twin is not None and got.twin.change == pytest.approx(-math.log10(factor))


def test_a_twin_needs_every_reported_seed_and_the_same_rate() -> None:
    tests = [0.5, 0.5]
    assert cell(runs(tests), R2, twins([0.0, 0.0], tests)[:1]).twin is None
    assert cell(runs(tests), R2, twins([0.0, 0.0], tests, status="failed")).twin is None
    other = [dataclasses.replace(r, lr=1e-2) for r in twins([0.0, 0.0], tests)]
    assert cell(runs(tests), R2, other).twin is None


def test_a_twin_that_diverges_has_moved() -> None:
    tests = [0.5, 0.5]
    others = twins([0.0, 0.0], tests)
    others[1] = dataclasses.replace(others[1], status="diverged", test=math.nan)
    got = cell(runs(tests), R2, others)
    assert (got.status, got.reason) == ("unconverged", "budget")


def test_survivors_are_not_ranked() -> None:
    """Three of eight seeds diverge where no value counts as solved."""
    tests = [2.9] * 8
    results = [
        dataclasses.replace(r, status="diverged", test=math.nan) if r.seed > 4 else r
        for r in runs(tests, down=True)
    ]
    got = cell(results, TEXT, twins([0.0] * 5, tests[:5]))
    assert (got.status, got.reason, got.diverged) == ("unconverged", "seeds_diverged", 3)


def test_a_seed_that_solves_the_task_with_twice_the_steps_is_a_move() -> None:
    """The mean moves by no more than its standard error, and yet it is a phase change."""
    tests = [0.6] * 5
    got = cell(runs(tests), R2, twins([0.4, 0, 0, 0, 0], tests))
    assert got.twin is not None and abs(got.twin.change) <= got.twin.allowed + 1e-12
    assert (got.status, got.reason) == ("unconverged", "budget")


def test_a_grid_of_tiny_steps_shows_nothing() -> None:
    near = [run(0.5, lr, s) for lr in (1e-3, 1.1e-3) for s in range(2)]
    assert cell(near, R2).reason == "lr_edge"

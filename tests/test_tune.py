"""Learning rates: the grid, the seeds that choose and those that are reported, the wider grid."""

import pytest

from configs.base import get_config
from mha_jax import schema, tune
from mha_jax.tune import SELECTION_SEEDS, Tuning, rates

TUNING = Tuning((1e-3, 2e-3, 4e-3), 2, 3, 2, seed=7, data_seed=9)


def plain(**changes):
    config = get_config().to_dict()
    for key, value in changes.items():
        section, leaf = key.split("__")
        config[section][leaf] = value
    return config


def test_rates_of_a_comma_string():
    assert rates("") == ()
    assert rates("1e-3, 2e-3,.004") == (1e-3, 2e-3, 4e-3)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("1e-3,x", "'x' is none"),
        ("1e-3,,2e-3", "'' is none"),
        ("nan", "not nan"),
        ("0", "not 0"),
        ("1e-3,-1", "not -1"),
        ("101", "not 101"),
        ("2e-3,1e-3", "must ascend"),
        ("1e-3,1e-3", "must ascend"),
    ],
)
def test_a_bad_grid_is_one_line(text, told):
    _, problems = schema.resolve(plain(tune__lrs=text))
    assert len(problems) == 1
    assert problems[0].key == "tune.lrs" and told in str(problems[0])


def test_a_grid_of_one_cannot_widen():
    _, problems = schema.resolve(plain(tune__lrs="1e-3", tune__widen=1))
    assert [p.key for p in problems] == ["tune.widen"]
    _, problems = schema.resolve(plain(tune__widen=1))
    assert [p.key for p in problems] == ["tune.widen"]


def test_seeds_leave_room_for_those_that_choose():
    assert schema.resolve(plain(train__seed=2**31 - 1))[1] == []
    _, problems = schema.resolve(plain(train__seed=2**31 - 1, tune__lrs="1e-3"))
    assert [p.key for p in problems] == ["train.seed"]


def test_no_seed_both_chooses_and_is_reported():
    run, _ = schema.resolve(plain())
    chosen = TUNING.selection(run, TUNING.lrs)
    assert len(chosen) == 6
    assert {r.hypers.lr for r in chosen} == set(TUNING.lrs)
    assert {r.hypers.seed for r in chosen} == {SELECTION_SEEDS + 7, SELECTION_SEEDS + 8}
    assert {r.hypers.data_seed for r in chosen} == {SELECTION_SEEDS + 9, SELECTION_SEEDS + 10}
    reported = TUNING.reported(run, 2e-3)
    assert [r.hypers.seed for r in reported] == [7, 8, 9]
    assert [r.hypers.data_seed for r in reported] == [9, 10, 11]
    assert {r.static for r in chosen + reported} == {run.static}
    assert tune.keys(reported[1]) == {"optim.lr": 2e-3, "train.seed": 8, "train.data_seed": 10}


def test_a_grid_grows_by_its_own_step_and_not_for_ever():
    assert TUNING.wider(TUNING.lrs, "high") == 8e-3
    assert TUNING.wider(TUNING.lrs, "low") == 5e-4
    assert TUNING.wider((*TUNING.lrs, 8e-3), "high") == 16e-3
    assert TUNING.wider((5e-4, *TUNING.lrs, 8e-3), "high") is None
    # A rate between those of the grid, of an older one, does not make it wider.
    assert TUNING.wider((1e-3, 1.5e-3, 2e-3, 3e-3, 4e-3), "high") == pytest.approx(5.33333e-3)


@pytest.mark.parametrize("grid", [[1e-3, 2e-3], (1e-3, 2e-3), 1e-3])
def test_a_grid_that_is_no_string_is_told_how_to_write_one(grid):
    (problem,) = schema.resolve(plain(tune__lrs=grid))[1]
    assert 'write it like "1e-3,2e-3,4e-3,8e-3"' in str(problem)

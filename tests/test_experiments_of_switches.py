"""The experiments that turn a piece of attention off: what they compare differs in nothing else."""

import dataclasses
from pathlib import Path

import pytest

from mha_jax import config, load
from mha_jax.sweep import PlannedRun, expand

EXPERIMENTS = Path(__file__).resolve().parent.parent / "experiments"
SIZES = {
    "sqrt_dk": ("init", "quick", "full"),
    "without_wo": ("quick", "full"),
    "shared_qkv": ("quick", "full"),
}
ALL = [(name, size) for name, sizes in SIZES.items() for size in sizes]


def planned(name: str, size: str) -> list[PlannedRun]:
    found = expand(load.load(str(EXPERIMENTS / f"{name}.py"), size))
    assert not found.problems, [str(problem) for problem in found.problems]
    assert found.experiment == f"{name}.{size}"
    return found.runs


def by_rest(runs: list[PlannedRun], switch: str) -> dict[config.Run, list[object]]:
    """The values of a switch of the model, by all else that a run is."""
    out: dict[config.Run, list[object]] = {}
    for one in runs:
        static = one.run.static
        model = dataclasses.replace(static.model, **{switch: "any"})
        rest = dataclasses.replace(one.run, static=dataclasses.replace(static, model=model))
        out.setdefault(rest, []).append(getattr(static.model, switch))
    return out


@pytest.mark.parametrize("name", SIZES)
def test_other_sizes_are_refused(name: str) -> None:
    for size in ("fulll", None):
        found = expand(load.load(str(EXPERIMENTS / f"{name}.py"), size))
        assert "takes :quick or :full" in str(found.problems[0]), found.problems


@pytest.mark.parametrize("name", SIZES)
def test_full_is_tuned_on_other_seeds_and_doubled(name: str) -> None:
    for one in planned(name, "full"):
        assert one.about["converge"]["confirm"]
    rates = {one.run.hypers.lr for one in planned(name, "full")}
    assert len(rates) >= 4


@pytest.mark.parametrize("size", SIZES["sqrt_dk"])
def test_each_shape_comes_with_and_without_the_scaling(size: str) -> None:
    runs = planned("sqrt_dk", size)
    assert all(sorted(values) == [False, True] for values in by_rest(runs, "scale").values())
    shapes = {(len(r.run.static.model.layers), r.run.static.model.layers[0].d_head) for r in runs}
    assert len(shapes) == (4 if size == "quick" else 9)


def test_init_records_the_gradient_of_fresh_models() -> None:
    for one in planned("sqrt_dk", "init"):
        assert one.run.static.train.n_steps == one.about["log"]["every"] == 1
        assert one.run.hypers.lr < 1e-9


@pytest.mark.parametrize("size", SIZES["shared_qkv"])
def test_every_task_is_shared_in_every_way(size: str) -> None:
    found = by_rest(planned("shared_qkv", size), "share")
    assert all(values == ["none", "qk", "kv", "qkv"] for values in found.values())


@pytest.mark.parametrize("size", SIZES["without_wo"])
def test_only_a_map_behind_the_heads_combines_them(size: str) -> None:
    """By the ceilings of what is planned: k heads with a map reach all, without one a pattern."""
    for one in planned("without_wo", size):
        static = one.run.static
        params, (layer,) = dict(static.task.params), static.model.layers
        mapped = static.model.use_wo or params["readout"] == "linear"
        ceiling = static.task.ceiling(static.model)
        if layer.n_heads >= params["n_taps"] and mapped:
            assert ceiling == pytest.approx(1)
        elif not mapped:
            assert 0.25 < ceiling < 0.3

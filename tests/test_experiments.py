"""Every experiment plans runs that have no problem, and refuses a size that it does not know."""

from pathlib import Path

import pytest

from mha_jax import load
from mha_jax.sweep import Sweep, expand

EXPERIMENTS = Path(__file__).resolve().parent.parent / "experiments"
NAMES = sorted(path.stem for path in EXPERIMENTS.glob("*.py") if path.stem != "__init__")
SIZED = [name for name in NAMES if name not in ("quickstart", "demonstration")]


def plan(name: str, arg: str | None) -> Sweep:
    return expand(load.load(str(EXPERIMENTS / f"{name}.py"), arg))


@pytest.mark.parametrize("name", NAMES)
def test_experiments_expand(name: str) -> None:
    sizes = {arg: plan(name, arg) for arg in (("quick", "full") if name in SIZED else (None,))}
    for sweep in sizes.values():
        assert not sweep.problems, sweep.problems
    assert len({sweep.experiment for sweep in sizes.values()}) == len(sizes)
    counts = [len(sweep.runs) for sweep in sizes.values()]
    assert counts[0] > 0 and counts == sorted(counts)


@pytest.mark.parametrize("name", SIZED)
def test_an_unknown_size_is_refused(name: str) -> None:
    for arg in ("huge", None):
        assert any("takes :quick or :full" in str(one) for one in plan(name, arg).problems)


def test_induction_phase_can_see_the_window() -> None:
    """One and two layers that differ in nothing else, probed more often than any window is wide."""
    for arg in ("quick", "full"):
        runs = plan("induction_phase", arg).runs
        assert {run.about["probe"]["every"] for run in runs} == {10}
        assert {len(run.run.static.model.layers) for run in runs} == {1, 2}


def test_specialization_holds_the_width() -> None:
    """More heads are slices of one width; fewer kv heads are the only other change."""
    for arg in ("quick", "full"):
        for planned in plan("specialization", arg).runs:
            for layer in planned.run.static.model.layers:
                assert layer.n_heads * layer.d_head == planned.run.static.model.d_model == 64


def test_cache_frontier_hides_the_needle() -> None:
    """Out of sight of a window in both layers and of the sinks, and in sight of all the others."""
    for arg in ("quick", "full"):
        runs = {
            planned.run.group_hash: planned.run.static
            for planned in plan("cache_frontier", arg).runs
        }
        needles = [static for static in runs.values() if static.task.name == "needle"]
        hidden = []
        for static in needles:
            cfg, layers = static.task.config, static.model.layers
            windows = [layer.window for layer in layers]
            if all(windows):
                hidden.append(layers[0].n_sinks)
                assert cfg.distance > sum(window - 1 for window in windows)
                assert cfg.length - 1 - cfg.distance >= max(layer.n_sinks for layer in layers)
        assert sorted(hidden) == [0, 2] and len(needles) == 10
        assert {static.task.name for static in runs.values()} == {"attr", "needle", "text"}

"""The training benchmarks at a tiny size: what they measure is the same work on both sides."""

import json
from pathlib import Path
from typing import Any

import jax
import pytest
from flax import nnx

from mha_jax.bench import growth, sides, train, train_ours, training, whole
from mha_jax.bench import help as help_bench
from mha_jax.bench import sweep as sweep_bench
from mha_jax.bench.peers import nnx_loop
from mha_jax.config import StaticConfig
from tests.test_bench import script

TINY = {"model.d_model": 8, "model.d_ff": 16, "task.text.length": 8, "train.batch_size": 2}


class Tiny:
    """The configs of the script, smaller."""

    def __init__(self) -> None:
        self.configs = script()["Configs"]()

    def one(self, name: str, changes: dict[str, Any]) -> StaticConfig:
        return self.configs.one(name, TINY | changes)

    def swept(self, name: str, changes: dict[str, Any]) -> list[StaticConfig]:
        return self.configs.swept(name, TINY | changes)


@pytest.fixture(scope="module")
def tiny() -> Tiny:
    return Tiny()


@pytest.fixture(scope="module")
def ours(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """What our side wrote, and what it says of its steps; in this process."""
    at = tmp_path_factory.mktemp("ours") / "arrays.npz"
    train_ours.build(training.run_json(tiny.one("B", {})), 1, str(at), 4)
    return at, train_ours.losses(4)


def theirs(tiny: Tiny, at: Path) -> dict[str, Any]:
    """What the NNX loop says of the same steps."""
    with jax.numpy_rank_promotion("allow"):  # flax's own modules promote
        nnx_loop.build(training.run_json(tiny.one("B", {})), 2, str(at))
        told = nnx_loop.losses(4)
        n_programs = nnx_loop.train_step.jitted_fn._cache_size()
        nnx_loop.steps(1)
        assert nnx_loop.train_step.jitted_fn._cache_size() == n_programs, "nothing timed compiles"
    return told


def test_the_nnx_loop_takes_our_steps(tiny: Tiny, ours: tuple[Path, dict[str, Any]]) -> None:
    told = training.parity(ours[1], theirs(tiny, ours[0]), 1e-4)
    assert told["equal"] and told["loss_error"] < 1e-5 and told["steps"] == 4


@pytest.mark.parametrize("change", ["causal", "decay", "batch"])
def test_another_peer_fails_the_parity_check(
    tiny: Tiny, ours: tuple[Path, dict[str, Any]], monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    # Traced anew.
    monkeypatch.setattr(nnx_loop, "train_step", nnx.jit(nnx_loop.train_step.__wrapped__))
    if change == "causal":
        attend = nnx.MultiHeadAttention.__call__
        monkeypatch.setattr(
            nnx.MultiHeadAttention,
            "__call__",
            lambda self, x, is_causal: attend(self, x, is_causal=False),
        )
    elif change == "decay":  # shows in the second loss, not in the gradient
        whole_adamw = nnx_loop._adamw
        monkeypatch.setattr(
            nnx_loop,
            "_adamw",
            lambda run: whole_adamw({**run, "hypers": {**run["hypers"], "lr": 0.3}}),
        )
    elif change == "batch":
        take = nnx_loop._step

        def later(i: int) -> Any:
            nnx_loop._built["step"] += 1
            return take(i)

        monkeypatch.setattr(nnx_loop, "_step", later)
    told = training.parity(ours[1], theirs(tiny, ours[0]), 1e-4)
    assert not told["equal"]


def test_parity_in_numbers() -> None:
    ours = {"losses": [2.0, 1.0], "grad_norms": [4.0, 9.9]}
    theirs = {"losses": [2.0, 1.001], "grad_norms": [4.0, 1.1]}
    told = training.parity(ours, theirs, 1e-4)
    assert told["loss_error"] == pytest.approx(1e-3) and told["grad_norm_error"] == 0
    assert not told["equal"] and training.parity(ours, theirs, 2e-3)["equal"]
    nan = {"losses": [2.0, float("nan")], "grad_norms": [4.0]}
    assert (
        not training.parity(ours, nan, 1e9)["equal"] and not training.parity(nan, nan, 1)["equal"]
    )


def compared(equal: bool) -> training.Compared:
    def took(*seconds: float) -> sides.Took:
        return sides.Took(tuple({"seconds": s, "cpu_s": s, "minor_faults": 8.0} for s in seconds))

    times = {"ours": took(2.0, 1.0, 3.0), "nnx": took(5.0, 5.0, 5.0), "nnx plain": took(6.0)}
    told = {"equal": equal}
    return training.Compared(times, {"nnx": told, "nnx plain": told})


def test_rows_of_a_comparison() -> None:
    row = compared(True).row("train_A", "nnx", 1.8, 2.5)
    assert row.ratio == 2.5 and row.kept and row.figures["ratio to the default allocator"] == 3.0
    failed = compared(False).row("train_A", "nnx", 1.8, 2.5)
    assert failed.ratio is None and not failed.kept and "parity failed" in failed.note
    absent = compared(True).row("train_A", "torch", 1.0, 1.3)
    assert absent.ratio is None and absent.kept and "python3.11 -m venv" in absent.note
    text = sides.rows_to_text([one.to_json() for one in (row, failed, absent)])
    assert "nnx   2.50  at least 1.8  2.5    3.00      kept" in text and "NOT KEPT" in text


@pytest.mark.slow
def test_train_and_sweep_without_torch(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MHA_JAX_PEERS", str(tmp_path))
    asked = {"configs": ["A"], "reps": 2, "steps": 1, "cores": "one"}
    told = json.loads(json.dumps(train.measure(asked, tiny, print)))
    by_peer = {row["peer"]: row for row in told["rows"]}
    nnx = by_peer["nnx"]
    assert nnx["name"] == "train_A" and nnx["figures"]["parity"]["equal"]
    ours, theirs = nnx["figures"]["ours"], nnx["figures"]["peer"]
    assert nnx["ratio"] == pytest.approx(theirs["seconds"] / ours["seconds"]) and ours["reps"] == 2
    assert by_peer["torch"]["ratio"] is None and by_peer["torch"]["kept"]
    faults = by_peer["the default allocator"]
    assert faults["ratio"] == faults["figures"]["ours"] and faults["less"]
    assert "train_A" in train.to_text(told)


@pytest.mark.slow
def test_a_sweep_of_runs(tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MHA_JAX_PEERS", str(tmp_path))
    monkeypatch.setattr(sweep_bench.host, "cores", lambda: [0, 0])
    told = sweep_bench.measure({"runs": 4, "reps": 2, "steps": 3}, tiny, print)
    (torch_row, nnx_row), speeds = told["rows"], told["models_steps_per_s"]
    assert torch_row["ratio"] is None and nnx_row["ratio"] > 0
    assert speeds["ours"] == pytest.approx(4 * 3 / nnx_row["figures"]["ours"]["seconds"])
    assert speeds["nnx"] == pytest.approx(speeds["ours"] / nnx_row["ratio"])


def test_a_team_shares_runs_evenly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep_bench.host, "cores", lambda: [0, 1])
    with pytest.raises(ValueError, match="--runs=3 must be a multiple of the 2 cores"):
        sweep_bench.measure({"runs": 3}, Tiny(), print)


def test_growth_is_told_beside_the_cost_model(tiny: Tiny) -> None:
    asked = {"lengths": [4, 8], "widths": [8], "lanes": [2], "reps": 1}
    told = growth.measure(asked, tiny, print)
    rows = {(row["name"], row["size"]): row for row in told["rows"]}
    width, two = rows["growth_width", 8], rows["growth_runs", 2]
    d, t, f, v = 8, 8, 32, 256
    matrices = 2 * (4 * d * d + 2 * d * f) + d * v
    scores = 2 * 2 * d * t  # layers, and scores and values of all heads together
    assert width["flops"] == 3 * 2 * 2 * t * (matrices + scores)
    assert two["flops"] == 2 * rows["growth_length", 8]["flops"]
    assert two["bytes"] > rows["growth_length", 8]["bytes"] > rows["growth_length", 4]["bytes"]
    assert two["flops_per_s"] == pytest.approx(two["flops"] / two["ms"] * 1e3)
    assert "(2.0x)" in growth.to_text(told)


@pytest.mark.slow
def test_a_whole_sweep_and_its_second_launch() -> None:
    """Through the script; two shapes of one run, at the smallest number of steps."""
    configs = script()["Configs"]()
    asked = {"shapes": 1, "runs": 1, "steps": 4, "alone": 1}
    (row,) = whole.measure(asked, configs, print)["rows"]
    assert row["ratio"] > 1 and row["less"] and not row["kept"]
    assert row["figures"]["shapes"] == 1 and len(row["figures"]["peer"]["step_s"]) == 1


def test_help_is_quicker_than_jax() -> None:
    (row,) = help_bench.measure({"reps": 1}, Tiny(), print)["rows"]
    assert row["sound"] and row["figures"]["imports jax"] is False
    assert row["ratio"] == row["figures"]["peer"]["seconds"] / row["figures"]["ours"]["seconds"]


def test_sizes_are_those_of_the_table(tiny: Tiny) -> None:
    sizes = {"A": (128, 128, 64), "B": (64, 64, 32), "C": (256, 256, 16)}
    for name, size in sizes.items():
        static = tiny.configs.one(name, {})
        (first, second), spec = static.model.layers, static.task.spec
        assert (static.model.d_model, spec.length, static.train.batch_size) == size
        assert first == second and first.d_ff == 4 * size[0] and first.n_heads == 4
        assert spec.input_sizes == (256,) and static.optim.clip == 1.0
    shapes = {static.model.layers[0] for static in tiny.configs.swept("A,12,9", {})}
    assert len(shapes) == 12

"""Sinks: a head that was built to rest on position 0, against numpy, and one that does not."""

import dataclasses
import json
import math
import runpy
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mha_jax import evaluate, rng
from mha_jax.run import LoadedRun
from tests.saved import program_and_state, saved, with_states
from tests.synthetic import make_run, static

ROOT = Path(__file__).resolve().parent.parent
V, D, LENGTH, W = 4, 16, 32, 8
WHOLE = static(
    "markov", 1, d_head=D, length=LENGTH, model={"d_model": D, "norm": "rms", "residual": True}
)
SPEC = dataclasses.replace(
    WHOLE, train=dataclasses.replace(WHOLE.train, n_eval=128, n_test=512, n_probe=32)
)


def script(*argv: str) -> int:
    return runpy.run_path(str(ROOT / "scripts" / "sinks.py"))["main"](list(argv))


def resting() -> dict[str, np.ndarray]:
    """The matrices of a head that looks at position 0, whose value the norm makes small; where it
    cannot, it adds the mean of the values it sees, and the read-out is far too sure of that."""
    embed, positions = np.zeros((V, D)), np.zeros((LENGTH, D))
    embed[:, :V] = np.eye(V)
    positions[0, -2], positions[1:, -1] = 1000, 1
    wq, wk, wv, readout = np.zeros((D, D)), np.zeros((D, D)), np.zeros((D, D)), np.zeros((D, V))
    wq[-1, 0], wk[-2, 0] = 5, 5
    wv[:V, :V] = 3 * np.eye(V)
    wo = np.roll(np.eye(D), V, axis=1)  # beside the token itself
    readout[V : 2 * V] = 10 * np.eye(V)
    return {
        **{"embed": embed, "positions": positions, "wq": wq, "wk": wk, "wv": wv, "wo": wo},
        "readout": readout,
    }


def with_sink(root: Path) -> LoadedRun:
    made = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), resting())
    state = program_and_state(SPEC, 0)[1]
    params = dict(state.params)
    params["encoder"] = {"embed": {"0": made["embed"]}}
    params["positions"] = made["positions"]
    of_layer = params["layers"]["0"]
    mixer = {name: made[name] for name in of_layer["mixer"]}
    params["layers"] = {"0": {**of_layer, "mixer": mixer}}
    params["readout"] = {"out": {"w": made["readout"]}}
    return with_states(root, SPEC, {10: state._replace(params=params)})


def losses(x_bt: np.ndarray, y_bt: np.ndarray, n_sinks: int, window: int) -> np.ndarray:
    """Loss of each sequence from position W on, float64: the model of `resting`, by hand."""
    made, (t, s) = resting(), np.ogrid[:LENGTH, :LENGTH]
    seen_ts = (s <= t) & ((t - s < window) | (s < n_sinks))

    def norm(x: np.ndarray) -> np.ndarray:
        return x / np.sqrt(np.square(x).mean(-1, keepdims=True) + 1e-6)

    x_btd = made["embed"][x_bt] + made["positions"]
    q_btd, k_btd, v_btd = (norm(x_btd) @ made[name] for name in ("wq", "wk", "wv"))
    scores_bts = np.where(seen_ts, q_btd @ k_btd.swapaxes(1, 2) / math.sqrt(D), -np.inf)
    weights_bts = np.exp(scores_bts - scores_bts.max(-1, keepdims=True))
    weights_bts /= weights_bts.sum(-1, keepdims=True)
    logits_btv = norm(x_btd + weights_bts @ v_btd @ made["wo"]) @ made["readout"]
    log_z_bt = np.log(np.exp(logits_btv).sum(-1))
    nats_bt = log_z_bt - np.take_along_axis(logits_btv, y_bt[..., None], -1)[..., 0]
    return nats_bt[:, W:].sum(1)


def test_a_sink_is_missed_when_it_is_evicted(tmp_path: Path, capsys: Any) -> None:
    run = with_sink(tmp_path)
    assert script(str(run.directory), f"--window={W}", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["n_slots"] == W and told["n_sequences"] == SPEC.train.n_test and told["step"] == 10
    assert told["sink_rate"] == 1 and told["alpha"]["l0.n0"]["mean"] > 0.9

    draw, size = rng.stream(SPEC.task.seed, "test"), evaluate.batch_size(SPEC)
    batches = [
        run.program.sample(jax.random.fold_in(draw, i), {}, size)
        for i in range(SPEC.train.n_test // size)
    ]
    x_bt = np.concatenate([batch.inputs for batch in batches])
    y_bt = np.concatenate([batch.targets[..., 0] for batch in batches])
    whole, *few = (losses(x_bt, y_bt, *view) for view in ((0, LENGTH), (0, 8), (1, 7), (4, 4)))
    n_answers = len(x_bt) * (LENGTH - W)
    # float32 against float64, over a mean of 10^4 answers whose logits reach 50
    assert told["loss"] == pytest.approx(whole.sum() / n_answers, abs=1e-4)
    for n, of_few in zip(("0", "1", "4"), few, strict=True):
        rise = (of_few - whole).sum() / n_answers
        assert told["rises"][n]["mean"] == pytest.approx(rise, abs=1e-3)
    assert told["rises"]["0"]["low"] > 1 and abs(told["rises"]["1"]["mean"]) < 1e-3
    spread = (few[0] - few[1]).std() / (LENGTH - W) / math.sqrt(len(x_bt))
    assert told["kept"]["mean"] == pytest.approx((few[0] - few[1]).sum() / n_answers, abs=1e-3)
    width = told["kept"]["high"] - told["kept"]["low"]
    assert width == pytest.approx(2 * 1.96 * spread, rel=0.1)  # 1,000 resamples
    assert "kept in the place of the oldest of the window it takes" in told["verdict"]


def test_without_a_sink_it_says_so(tmp_path: Path, capsys: Any) -> None:
    run = saved(tmp_path, static("markov", 2, n_layers=2, length=LENGTH), steps=(10,))
    assert script(str(run.directory)) == 0
    shown = capsys.readouterr().out
    assert "no sink was measured: the largest alpha is 0.0" in shown
    assert "heads with a sink, alpha above 0.3: 0%" in shown
    assert "0 + 8" in shown and "4 + 4" in shown and "l1.n1" in shown


def test_bad_input_is_told_in_one_line(tmp_path: Path, capsys: Any) -> None:
    run = make_run(tmp_path, static("markov", 1, length=LENGTH), 0.5)
    early = make_run(tmp_path, static("modular_addition", 1), 0.5)
    attr = make_run(tmp_path, static("attr", 1), 0.5)
    int8 = make_run(tmp_path, static("copy", 1, model={"kv_quant": "int8"}), 0.5)
    diverged = make_run(tmp_path, static("markov", 2, length=LENGTH), status="diverged")
    for argv, says in (
        ([str(run), "--window=5"], "--window=5 must be 6 or more and less than the task"),
        ([str(run), "--window=32"], "length=32"),
        ([str(run), "--window=x"], "--window=x must be a number"),
        ([str(early)], "must be 6 or more"),
        ([str(attr)], "the context_query mask of the task 'attr' has no window"),
        ([str(int8)], "model.kv_quant='int8' has no window"),
        ([str(diverged)], "the run diverged"),
        ([str(run)], "no checkpoint"),
        ([str(tmp_path)], "not a run directory"),
        ([], "takes one run"),
    ):
        assert script(*argv) == 2
        shown = capsys.readouterr()
        assert shown.out == "" and shown.err.count("\n") == 1 and says in shown.err, shown.err

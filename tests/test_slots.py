"""Slots: the Jacobian against finite differences, their quality against loops, and the script."""

import json
import runpy
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from mha_jax import examine
from mha_jax.analysis import slots
from tests.saved import saved
from tests.synthetic import static

ROOT = Path(__file__).resolve().parent.parent
B, T, N, H = 2, 3, 4, 2


def test_blocks_of_a_linear_map_are_those_of_its_matrix(assert_close):
    wo = np.random.default_rng(0).normal(size=(N * H, 12)).astype(np.float32)
    z = jnp.ones((B, T, N, H))
    got = slots.jacobian_blocks(lambda z: z.reshape(B, T, -1) @ wo, z)
    for i in range(N):
        for j in range(N):
            block = wo[j * H : (j + 1) * H, i * 3 : (i + 1) * 3]  # head j, slot i
            assert_close(got[i, j], np.linalg.norm(block))


def test_without_a_map_the_blocks_are_diagonal(assert_close):
    z = jnp.ones((B, T, N, H))
    got = np.asarray(slots.jacobian_blocks(lambda z: z.reshape(B, T, -1), z))
    assert_close(got, np.sqrt(H) * np.eye(N))
    assert slots.diagonal_share(got) == 1
    assert slots.diagonal_share(np.ones((N, N))) == pytest.approx(1 / N)
    assert np.isnan(slots.diagonal_share(np.zeros((N, N))))


def test_blocks_of_a_curved_map_are_finite_differences():
    wo = np.random.default_rng(1).normal(size=(N * H, 8))
    z = np.random.default_rng(2).normal(size=(B, T, N, H))

    def answer(z):
        return jnp.tanh(z.reshape(B, T, -1) @ wo) + z.reshape(B, T, -1).mean(1, keepdims=True)

    got, step = slots.jacobian_blocks(answer, jnp.asarray(z, jnp.float32)), 1e-3
    want = np.zeros((N, N))
    for j, h in np.ndindex(N, H):
        up, down = z.copy(), z.copy()
        up[:, :, j, h] += step  # at all positions alike
        down[:, :, j, h] -= step
        slope = (np.asarray(answer(up), np.float64) - np.asarray(answer(down))) / (2 * step)
        want[:, j] += np.square(slope).mean((0, 1)).reshape(N, 2).sum(1)
    np.testing.assert_allclose(got, np.sqrt(want), rtol=2e-3)  # float32 differences


def test_quality_of_each_slot(assert_close):
    rng = np.random.default_rng(3)
    y, out, asked = rng.normal(2, 1, (B, T, 8)), rng.normal(size=(B, T, 8)), np.ones((B, T, 8))
    asked[0, 0] = 0
    out[..., :2], y[0, 0] = y[..., :2], 1e6
    asked[..., 2:4] = 0
    got = slots.slot_r2(out, y, asked, 4)
    rows = [(b, t) for b, t in np.ndindex(B, T) if (b, t) != (0, 0)]
    for i in (0, 2, 3):
        columns = range(2 * i, 2 * i + 2)
        error = sum((out[b, t, c] - y[b, t, c]) ** 2 for b, t in rows for c in columns)
        means = {c: np.mean([y[b, t, c] for b, t in rows]) for c in columns}
        spread = sum((y[b, t, c] - means[c]) ** 2 for b, t in rows for c in columns)
        assert_close(got[i], 1 - error / spread)
    assert got[0] == 1 and np.isnan(got[1])
    with pytest.raises(ValueError, match="8 columns have no 3 equal slots"):
        slots.slot_r2(out, y, asked, 3)


def script(*argv: str) -> int:
    return runpy.run_path(str(ROOT / "scripts" / "slots.py"))["main"](list(argv))


def told(root: Path, capsys: Any, **of_task: Any) -> Any:
    """What the script says of a fresh run of four heads."""
    model = of_task.pop("model", {}) | {"qk_from": "positions"}
    run = saved(root, static("wide_taps", 4, model=model, **of_task), steps=(10,))
    assert script(str(run.directory), "--json") == 0
    return run, json.loads(capsys.readouterr().out)


def test_without_wo_each_slot_is_one_head_s(tmp_path: Path, capsys: Any, assert_close: Any) -> None:
    run, of_run = told(tmp_path, capsys, readout="none", model={"use_wo": False})
    assert_close(np.array(of_run["blocks"]), 4 * np.eye(4))  # 16 entries, each its own column
    assert of_run["diagonal_share"] == 1 and of_run["step"] == 10
    assert of_run["one_pattern"] == pytest.approx([0.2887, 0.2748, 0.2813, 0.2798], abs=1e-4)
    batches = [
        examine.probe_batch(run.program, run.probe_constants(), i)
        for i in range(examine.n_batches(run.program))
    ]
    assert len(batches) > 1  # on the whole probe draw
    out = np.concatenate([run.apply(batch) for batch in batches])[:, 4:].astype(np.float64)
    y = np.concatenate([batch.targets for batch in batches])[:, 4:].astype(np.float64)
    error = np.square(out - y).sum((0, 1, 3))
    spread = np.square(y - y.mean((0, 1))).sum((0, 1, 3))
    assert of_run["r2"] == pytest.approx((1 - error / spread).tolist(), abs=1e-4)
    assert script(str(run.directory)) == 0
    assert "one pattern at best of each slot: 0.289" in capsys.readouterr().out


def test_with_wo_or_a_readout_every_head_writes_everywhere(tmp_path: Path, capsys: Any) -> None:
    with_wo = told(tmp_path / "a", capsys, readout="none")
    readout = told(tmp_path / "b", capsys, readout="linear", model={"use_wo": False})
    for run, of_run in (with_wo, readout):
        params = run.params()
        wo = params["layers"]["0"]["mixer"].get("wo")
        matrix = params["readout"]["out"]["w"] if wo is None else wo
        norms = np.linalg.norm(np.asarray(matrix).reshape(4, 16, 4, 16), axis=(1, 3)).T
        np.testing.assert_allclose(of_run["blocks"], norms, rtol=1e-4)
        assert 0.2 < of_run["diagonal_share"] < 0.3


def test_a_task_of_classes_has_blocks_and_no_r2(tmp_path: Path, capsys: Any) -> None:
    run = saved(tmp_path, static("relations", 4, n_layers=2), steps=(10,))
    assert script(str(run.directory), "--json") == 0
    of_run = json.loads(capsys.readouterr().out)
    assert of_run["r2"] is None and of_run["one_pattern"] is None
    assert np.shape(of_run["blocks"]) == (4, 4)


def test_bad_input_is_told_in_one_line(tmp_path: Path, capsys: Any) -> None:
    run = saved(tmp_path, static("copy", 3, d_head=4), steps=(10,))  # 19 columns
    for argv, says in (
        ([str(run.directory)], "columns have no 3 equal slots"),
        ([], "takes one run"),
        ([str(run.directory), "--jsn"], "--json"),
        ([str(run.directory), "--at=0x"], "last, best or a step"),
        ([str(tmp_path)], "not a run directory"),
        ([str(run.directory), "--at=11"], "11"),
    ):
        assert script(*argv) == 2
        shown = capsys.readouterr()
        assert shown.out == "" and shown.err.count("\n") == 1 and says in shown.err, shown.err

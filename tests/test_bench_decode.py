"""The decoding benchmark at a tiny size: the same model on both sides, and rows that say so."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mha_jax.bench import decode, decode_ours, sides
from mha_jax.config import run_from_json
from tests.test_bench import script

TINY = {
    **decode._MODEL,
    "task.copy.vocab": 30,
    "model.d_model": 16,
    "model.n_layers": 2,
    "model.n_heads": 4,
    "model.d_ff": 24,
}
CASE = decode.Case(2, 64, 2, dtypes=("float32", "bfloat16"), generate=(0, 1))

needs_peers = pytest.mark.skipif(
    sides.peers_python() is None, reason="no environment for the peers"
)


@pytest.fixture
def configs(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(decode, "_MODEL", TINY)
    monkeypatch.setattr(decode, "_prompts", lambda b: [list(range(1, 9))] * b)
    return script()["Configs"]()


def test_the_model_of_the_table() -> None:
    static = run_from_json(
        decode.run_of(script()["Configs"](), decode.CASES["b16_gqa"], "bfloat16")
    )
    model, spec = static.static.model, static.static.task.spec
    assert (model.d_model, len(model.layers), model.activation) == (512, 4, "swiglu")
    assert (model.norm, model.positions, model.residual) == ("rms", "rope", True)
    assert (model.compute_dtype, model.cache_dtype) == ("bfloat16", "bfloat16")
    assert (spec.input_sizes, spec.output_size) == ((8192,), 8192)
    for layer in model.layers:
        assert (layer.n_heads, layer.n_kv_heads, layer.d_head, layer.d_ff) == (8, 2, 64, 1408)


def test_ours_makes_tokens_and_takes_time(configs: Any, tmp_path: Path) -> None:
    run, at = decode.run_of(configs, CASE, "float32"), tmp_path / "made.npz"
    told = decode_ours.build(run, 2, 64, str(tmp_path / "params.npz"))
    decode_ours.tokens([[1, 2, 3], [4, 5, 6]], 5, str(at))
    with np.load(at) as made, np.load(tmp_path / "params.npz") as params:
        assert made["tokens"].shape == (2, 5) and made["logits"].shape == (2, 31)
        n_params = sum(x.size for x in params.values()) - params["encoder/embed/0"].size
    assert told["bytes_read"] == 4 * (n_params + 2 * 2 * 64 * 2 * 2 * 4)
    assert decode_ours.steps(5)["seconds"] > 0
    assert int(decode_ours._built["state"].length_b[0]) == 64


def test_parity_in_numbers(tmp_path: Path) -> None:
    def saved(name: str, logits: float, token: int) -> Path:
        at = tmp_path / f"{name}.npz"
        np.savez(at, logits=np.array([[4.0, logits]]), tokens=np.array([[1, token]]))
        return at

    ours = saved("ours", 1.0, 2)
    assert decode.agree(ours, saved("b", 1.0001, 2), "float32")["equal"]
    assert not decode.agree(ours, saved("c", 1.01, 2), "float32")["equal"]
    assert decode.agree(ours, saved("c", 1.01, 3), "bfloat16")["equal"]
    assert not decode.agree(ours, saved("d", 1.0, 3), "float32")["equal"]
    nan = saved("e", float("nan"), 2)
    assert not decode.agree(ours, nan, "bfloat16")["equal"]


@pytest.mark.slow
def test_rows_without_peers(configs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MHA_JAX_PEERS", str(tmp_path))
    for name in ("b1", "b16_mha", "b16_gqa"):
        one = CASE._replace(n_kv_heads=4 if name == "b16_mha" else 2, dtypes=("float32",))
        monkeypatch.setitem(decode.CASES, name, one)
    told = decode.measure({"cases": ["b1", "bandwidth", "gqa_pays"], "reps": 2}, configs, print)
    static, generate, bandwidth, pays = told["rows"]
    for row in (static, generate):
        assert row["ratio"] is None and row["kept"] and "venv" in row["note"]
    figures = bandwidth["figures"]
    assert bandwidth["ratio"] == figures["bytes_per_s"] / figures["probe_bytes_per_s"]
    took = pays["figures"]
    assert pays["ratio"] == took["peer"]["seconds"] / took["ours"]["seconds"]
    assert took["bytes_ratio"] > 1
    assert "gqa_pays" in decode.to_text(told)


@needs_peers
@pytest.mark.slow
def test_llama_says_what_ours_says(configs: Any) -> None:
    rows = decode.compared("tiny", CASE, configs, 1, print)
    for row in rows:
        assert row.sound and row.ratio is not None and row.figures["parity"]["equal"]
    static, generate = (row.peer for row in rows)
    assert (static, generate) == ("hf static", "hf generate")


@needs_peers
@pytest.mark.parametrize("change", ["rope", "swiglu"])
def test_another_llama_fails_the_parity_check(configs: Any, tmp_path: Path, change: str) -> None:
    run, made, out = decode.run_of(configs, CASE, "float32"), tmp_path / "a.npz", tmp_path / "b.npz"
    params = tmp_path / "params.npz"
    decode_ours.build(run, 2, 64, str(params))
    decode_ours.tokens(decode._prompts(2), 4, str(made))
    with np.load(params) as file:
        arrays = dict(file)
    if change == "rope":  # the pairs of neighbours, as in the paper, in place of halves
        for name in ("layers/0/mixer/wq", "layers/0/mixer/wk"):
            w = arrays[name].reshape(16, -1, 2, 2)
            arrays[name] = w.swapaxes(2, 3).reshape(16, -1)
    else:
        wi, wg = "layers/0/mlp/wi/w", "layers/0/mlp/wg/w"
        arrays[wi], arrays[wg] = arrays[wg], arrays[wi]
    np.savez(params, **arrays)
    module = "mha_jax.bench.peers.hf_decode"
    with sides.Side("hf", module, python=sides.peers_python()) as peer, np.load(made) as file:
        like = {"run": run, "b": 2, "capacity": 64, "dtype": "float32", "read": str(params)}
        peer.ask("build", **like)
        given = file["tokens"].tolist()
        peer.ask("tokens", prompts=decode._prompts(2), given=given, write=str(out))
    assert not decode.agree(made, out, "float32")["equal"]

"""The attention benchmark at a tiny size: the same maths on all sides, and rows that say so."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mha_jax.bench import attention, attention_ours, sides
from mha_jax.bench.peers import jax_attention


@pytest.fixture
def drawn(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    sizes = {"q": (2, 20, 4, 8), "k": (2, 20, 2, 8), "v": (2, 20, 2, 8), "dz": (2, 20, 4, 8)}
    arrays: dict[str, Any] = {name: rng.standard_normal(size) for name, size in sizes.items()}
    at = tmp_path / "in.npz"
    np.savez(at, **{name: x.astype(np.float32) for name, x in arrays.items()})
    return at


def agreed(drawn: Path) -> dict[str, Any]:
    """What the parity check says of ours and jax's own; both in this process."""
    for name, module in (("ours", attention_ours), ("peer", jax_attention)):
        told = module.build(str(drawn), str(drawn.parent / f"{name}.npz"))
        assert told["temp_bytes"] > 0
        assert module.steps(2)["seconds"] > 0
    return attention.agree(drawn.parent / "ours.npz", drawn.parent / "peer.npz")


def test_the_peer_does_the_same(drawn: Path) -> None:
    told = agreed(drawn)
    assert told["equal"] and set(told) == {
        *("tolerance", "equal"),
        *(f"{name}_error" for name in ("z", "dq", "dk", "dv")),
    }


@pytest.mark.parametrize("change", ["mask", "values"])
def test_another_peer_fails_the_parity_check(
    drawn: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    whole = jax_attention.jax.nn.dot_product_attention

    def other(q: Any, k: Any, v: Any, **more: Any) -> Any:
        more["is_causal"] = change != "mask"
        v = v[:, :, ::-1] if change == "values" else v
        return whole(q, k, v, **more)

    monkeypatch.setattr(jax_attention.jax.nn, "dot_product_attention", other)
    assert not agreed(drawn)["equal"]


def test_a_number_that_is_none_is_no_parity(tmp_path: Path) -> None:
    for name, dq in (("a", 1.0), ("b", float("nan"))):
        np.savez(tmp_path / f"{name}.npz", z=np.ones(3), dq=np.array([1.0, dq]))
    assert not attention.agree(tmp_path / "a.npz", tmp_path / "b.npz")["equal"]
    assert attention.agree(tmp_path / "a.npz", tmp_path / "a.npz")["equal"]


def test_the_shapes_of_the_table() -> None:
    assert attention.shape(512, 2) == (8, 512, 8, 2, 64)
    assert attention.shape(2048, 8) == (1, 2048, 8, 8, 64)


@pytest.mark.slow
def test_rows_without_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MHA_JAX_PEERS", str(tmp_path))
    monkeypatch.setattr(attention, "_BOUNDS", {16: attention.Bound((0, 4), (0.7, 1), (0, 9))})
    asked = {"lengths": [16], "kv_heads": [2, 3], "reps": 2}
    told = attention.measure(asked, None, print)  # type: ignore[arg-type]
    by_jax, by_torch, memory = told["rows"]
    ours, theirs = (by_jax["figures"][side] for side in ("ours", "peer"))
    assert by_jax["name"] == "attention_16" and by_jax["figures"]["parity"]["equal"]
    assert by_jax["ratio"] == pytest.approx(theirs["seconds"] / ours["seconds"])
    assert (by_jax["must"], by_jax["aim"], by_jax["kept"]) == (0, 4, True)
    assert by_torch["ratio"] is None and by_torch["kept"] and "venv" in by_torch["note"]
    bytes_of = memory["figures"]
    assert memory["ratio"] == bytes_of["peer"] / bytes_of["ours"] and memory["aim"] == 9
    (grown,) = told["growth"]
    assert grown["flops"] == 8 * 8 * (16 * 17 // 2) * 7 * 2 * 64
    assert grown["array_bytes"] == 4 * 8 * 16 * 64 * (8 + 2 + 2 + 8)
    assert "8 x 16" in attention.to_text(told)


@pytest.mark.skipif(sides.peers_python() is None, reason="no environment for the peers")
def test_torch_does_the_same(drawn: Path) -> None:
    ours, theirs = drawn.parent / "ours.npz", drawn.parent / "torch.npz"
    attention_ours.build(str(drawn), str(ours))
    module = "mha_jax.bench.peers.torch_attention"
    with sides.Side("torch", module, python=sides.peers_python()) as torch:
        torch.ask("build", read=str(drawn), write=str(theirs))
        assert attention.agree(ours, theirs)["equal"]
        assert torch.ask("steps", n=1)["seconds"] > 0

"""A cache in bfloat16 while a loop adds tokens: the same as one that takes them one by one."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

from mha_jax import token_loop, train
from mha_jax.decode import Decoder
from tests.synthetic import static

PROMPTS = ([5, 9, 13], [7], list(range(20, 31)))
VARIANTS: dict[str, dict[str, Any]] = {
    "GQA, rope": {"n_kv_heads": 2, "positions": "rope"},
    "window": {"window": 6},
    "sinks and window": {"window": 5, "n_sinks": 2, "positions": "rope"},
    "MLA": {"mixer": "mla", "n_kv_heads": 1, "d_latent": 8},
}


def _decoder(**changes: Any) -> Decoder:
    dtypes = {"compute_dtype": "bfloat16", "cache_dtype": "bfloat16"}
    spec = static("text", 4, d_head=8, n_layers=2, length=48, model=dtypes | changes)
    program = train.Program.of(spec)
    params = program.model.init(jax.random.key(0))
    # Sharper than a fresh model, so that tokens differ.
    return Decoder(program, jax.tree.map(lambda x: 3 * x, params))


def _generated(one: Decoder, stop: int | None) -> tuple[list[np.ndarray], Any]:
    state = one.prefill([np.array(p) for p in PROMPTS], 48)
    made = []
    for n in (9, 1, 4):
        tokens, state = one.generate(state, n, stop=stop)
        made.append(tokens)
    return made, jax.device_get(state)


@pytest.mark.parametrize(
    ("name", "stops"),
    [("GQA, rope", True), ("sinks and window", False), ("window", True), ("MLA", False)],
)
def test_a_staged_cache_ends_as_one_that_is_written_at_each_token(monkeypatch, name, stops):
    """Blocks of 4 turns, so that 9 tokens are three of them; a sequence may end in the middle."""
    one = _decoder(**VARIANTS[name])
    monkeypatch.setattr(token_loop, "_stages", lambda program, kept: False)
    token_loop.generate.clear_cache()
    stop = int(_generated(one, None)[0][0][1, 4]) if stops else None
    token_loop.generate.clear_cache()
    plain, after = _generated(one, stop)
    monkeypatch.undo()
    assert token_loop._stages(one.program, one.prefill([[1]], 48).kept)
    monkeypatch.setattr(token_loop, "_BLOCK", 4)
    token_loop.generate.clear_cache()
    staged, after_staged = _generated(one, stop)
    token_loop.generate.clear_cache()
    for a, b in zip(plain, staged, strict=True):
        np.testing.assert_array_equal(a, b)
    assert stop is None or (staged[0] == -1).any()
    for a, b in zip(jax.tree.leaves(after.kept), jax.tree.leaves(after_staged.kept), strict=True):
        assert a.dtype == np.uint16
        # Rounding of bfloat16: products over two parts add up in another order.
        np.testing.assert_allclose(_numbers(a), _numbers(b), rtol=0.02, atol=0.02)
    np.testing.assert_array_equal(after.length_b, after_staged.length_b)
    np.testing.assert_allclose(after.logits_bv, after_staged.logits_bv, atol=0.05)


def _numbers(bits: np.ndarray) -> np.ndarray:
    return (bits.astype(np.uint32) << 16).view(np.float32)

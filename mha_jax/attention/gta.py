"""Grouped tied attention, GTA (Zadouri, Strauss and Dao 2025, arXiv:2505.21487, section 3.3).

Each kv head stores one vector, which is its value and whose first half is the first half of its
key; the second half is one key for all heads, the only part that is rotated. That is about half of
what GQA with as many kv heads stores.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from mha_jax.attention import cache, core
from mha_jax.attention.arguments import KERNELS, check_choice, check_heads, check_rope
from mha_jax.attention.init import normal
from mha_jax.attention.kind import Kind, Projected, Whole, switches
from mha_jax.attention.positions import rope as rotate
from mha_jax.attention.stops import Context
from mha_jax.config import LayerSpec, ModelSpec


class TiedAttention(Kind):
    """Self-attention of `n_heads` query heads over `n_kv_heads` tied keys and values.

    Parameters: wq [d, n*h], wkv [d, k*h], wkr [d, h/2], wo [n*h, d].

    Args:
      d_model, n_heads, n_kv_heads, d_head: as in `grouped.Attention`; d_head is even, and with
        rope a multiple of 4.
      window, n_sinks, scale, use_wo, gate, sink_logit, rope, bias, kernel, dtype, cache_dtype: as
        there.
      rngs: `nnx.Rngs`; one `params` key is taken from it, nothing is stored.

    Raises:
      ValueError: numbers that do not fit together; the text names the argument and the rule.
    """

    def __init__(
        self,
        d_model: int,
        n_heads: int,
        n_kv_heads: int | None = None,
        d_head: int | None = None,
        *,
        window: int = 0,
        n_sinks: int = 0,
        scale: bool = True,
        use_wo: bool = True,
        gate: bool = False,
        sink_logit: bool = False,
        rope: bool = False,
        bias: bool = False,
        kernel: str = "auto",
        dtype: Any = jnp.float32,
        cache_dtype: Any = jnp.float32,
        rngs: nnx.Rngs,
    ):
        n_kv_heads = n_heads if n_kv_heads is None else n_kv_heads
        check_heads(d_model, n_heads, n_kv_heads, d_head)
        check_choice("kernel", kernel, KERNELS)
        h = d_model // n_heads if d_head is None else d_head
        if h % 2:
            raise ValueError(f"a tied key has two halves, so d_head={h} must be even")
        check_rope(h // 2, rope)
        self.n_heads, self.n_kv_heads, self.d_head = n_heads, n_kv_heads, h
        self.mask = core.Mask("causal", 0, window, n_sinks).check()
        self.scale = h**-0.5 if scale else 1.0
        self.rope, self.kernel = rope, kernel
        self.dtype, self.cache_dtype = dtype, cache_dtype
        self.borrows, self.quantised = False, None

        key, inner = rngs.params(), n_heads * h
        self.width = d_model if use_wo else inner
        self.wq = nnx.Param(normal(key, "wq", (d_model, inner)))
        self.wkv = nnx.Param(normal(key, "wkv", (d_model, n_kv_heads * h)))
        self.wkr = nnx.Param(normal(key, "wkr", (d_model, h // 2)))
        self.wg = nnx.Param(normal(key, "wg", (d_model, inner))) if gate else None
        self.wo = nnx.Param(normal(key, "wo", (inner, d_model))) if use_wo else None
        self.bq, self.bkv, self.bkr, self.bg, self.bo = (
            nnx.Param(jnp.zeros(w.shape[1])) if bias and w is not None else None
            for w in (self.wq, self.wkv, self.wkr, self.wg, self.wo)
        )
        self.sink = nnx.Param(jnp.zeros(n_heads)) if sink_logit else None

    def whole(self, x: jax.Array, b: int, t: int, context: Context) -> Whole:
        """Keys of both halves."""
        q_btkgh, new, gate = self._rows(x, b, t)
        first, second = jnp.split(q_btkgh, 2, axis=-1)
        key_bs1e = new["rope_key"]
        if self.rope:
            second, key_bs1e = rotate(second), rotate(key_bs1e)
        kv_bskh, key_bs1e = self.rounded(new["kv"]), self.rounded(key_bs1e)
        shared = jnp.broadcast_to(key_bs1e, (b, t, self.n_kv_heads, self.d_head // 2))
        k_bskh = jnp.concatenate([kv_bskh[..., : self.d_head // 2], shared], axis=-1)
        return Whole(jnp.concatenate([first, second], axis=-1), k_bskh, kv_bskh, gate)

    def project(self, x: jax.Array, step: cache.Step) -> Projected:
        """The first half of a query, with zeros behind it, reads all of the tied vector: half of a
        stored array would be copied out to be multiplied.
        """
        b, c = step.position_bc.shape
        q_bckgh, new, gate = self._rows(x, b, c)
        first, second = jnp.split(q_bckgh, 2, axis=-1)
        if self.rope:
            like: dict[str, Any] = {"at": step.position_bc, "n_positions": step.capacity}
            second = rotate(second, **like)
            new = {**new, "rope_key": rotate(new["rope_key"], **like)}
        padded = jnp.concatenate([first, jnp.zeros_like(first)], axis=-1)
        return Projected((padded, second), new, gate)

    def stored(self) -> dict[str, tuple[int, int]]:
        """The tied vectors, and the second half of the keys of all heads."""
        return {"kv": (self.n_kv_heads, self.d_head), "rope_key": (1, self.d_head // 2)}

    def read(
        self, arrays: cache.Cache, position_bs: jax.Array, capacity: int
    ) -> tuple[tuple[jax.Array, ...], jax.Array]:
        """Keys are what is stored, values the tied vectors."""
        return (arrays["kv"], arrays["rope_key"]), arrays["kv"]

    def _rows(
        self, x: jax.Array, b: int, t: int
    ) -> tuple[jax.Array, cache.Cache, jax.Array | None]:
        """q_btkgh, what is stored, neither rotated yet, and the rows of the gate."""
        n, k, h = self.n_heads, self.n_kv_heads, self.d_head
        x = x.astype(self.dtype)
        q_btkgh = self.times(x, "q").reshape(b, t, k, n // k, h)
        new = {
            "kv": self.times(x, "kv").reshape(b, t, k, h),
            "rope_key": self.times(x, "kr").reshape(b, t, 1, h // 2),
        }
        return q_btkgh, new, None if self.wg is None else self.times(x, "g")


def Mixer(layer: LayerSpec, model: ModelSpec, *, key: jax.Array) -> TiedAttention:
    """The mixer `gta`: `TiedAttention` as a LayerSpec and a ModelSpec describe it."""
    return TiedAttention(
        n_kv_heads=layer.n_kv_heads,
        rope=model.positions == "rope",
        rngs=nnx.Rngs(key),
        **switches(layer, model),
    )

"""Multi-head, grouped-query and multi-query attention: one module, one path.

MHA is n_kv_heads = n_heads (Vaswani et al. 2017), MQA is n_kv_heads = 1 (Shazeer 2019), GQA all
between (Ainslie et al. 2023). Query head i reads kv head i // g with g = n_heads // n_kv_heads.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from mha_jax.attention import cache, core, per_head
from mha_jax.attention.arguments import (
    KERNELS,
    check_choice,
    check_heads,
    check_rope,
    check_share,
    check_stored,
)
from mha_jax.attention.init import normal
from mha_jax.attention.kind import Kind, Projected, Whole, switches
from mha_jax.attention.positions import rope as rotate
from mha_jax.attention.product import product
from mha_jax.attention.quantised import Quantised
from mha_jax.attention.stops import Context
from mha_jax.config import LayerSpec, ModelSpec

# The letters of the matrices that make queries, keys and values.
SHARES = {"none": "qkv", "qk": "qqv", "kv": "qkk", "qkv": "qqq"}


class Attention(Kind):
    """Self-attention of `n_heads` query heads over `n_kv_heads` key/value heads.

    Parameters: wq [d, n*h], wk and wv [d, k*h], wo [n*h, d], 2-D and apart: with n*h fixed the head
    split is a reshape, and every head count starts from identical weights. The forward joins the
    first three for one product.

    Args:
      d_model: width of the input and of the output, d.
      n_heads: query heads, n.
      n_kv_heads: key/value heads, k; divides n. None: n (MHA); 1: MQA.
      d_head: width of a head, h. None: d_model // n_heads, which must divide.
      mask: `causal`, `full` or `context_query` (all read the first `n_context` positions only).
      n_context: positions of the context, with `context_query`.
      window, n_sinks: with `causal`, a query reads the `window` newest keys, its own included, and
        the first `n_sinks` positions; window=0: all keys.
      scale: divide the scores by sqrt(d_head).
      use_wo: multiply the concatenated heads by wo; without, the output is [b, t, n*h].
      share: which of queries, keys and values one matrix makes: none, qk, kv, qkv. With qk and qkv
        k = n.
      qk_norm: RMS-normalise queries and keys of each head, with learned scales [h] (Dehghani et
        al. 2023, with RMS in place of layer norm).
      gate: multiply each head's z by sigmoid(x @ wg), wg [d, n*h] (Qiu et al. 2025).
      sink_logit: each head has a learned logit, 0 at first, in the denominator of its softmax.
      rope: rotary positions; needs an even d_head.
      bias: add a bias, zero at first, to every linear map.
      kv_init: how fewer kv heads start. `mean`: the MHA draw [d, n*h], averaged over the g heads of
        each group and multiplied by sqrt(g), which keeps the variance; `fresh`: a draw of its own.
        The two are equal for k = n.
      borrows: keys and values are those of an earlier layer (Brandon et al. 2024), which the
        caller passes on; there are no wk and wv.
      quantised: keys and values are stored in few bits; None: as they are.
      kernel: `auto` and `fast` are the fast form, `cudnn` and `splash` fused kernels of a GPU and
        a TPU (`kernels.py`), unless weights are asked for; `reference`.
      dtype: of the products; parameters and softmax are float32.
      cache_dtype: what keys and values are rounded to and stored in.
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
        mask: str = "causal",
        n_context: int = 0,
        window: int = 0,
        n_sinks: int = 0,
        scale: bool = True,
        use_wo: bool = True,
        share: str = "none",
        qk_norm: bool = False,
        gate: bool = False,
        sink_logit: bool = False,
        rope: bool = False,
        bias: bool = False,
        kv_init: str = "mean",
        borrows: bool = False,
        quantised: Quantised | None = None,
        kernel: str = "auto",
        dtype: Any = jnp.float32,
        cache_dtype: Any = jnp.float32,
        rngs: nnx.Rngs,
    ):
        n_kv_heads = n_heads if n_kv_heads is None else n_kv_heads
        check_heads(d_model, n_heads, n_kv_heads, d_head)
        check_share(share, tuple(SHARES), n_heads, n_kv_heads)
        check_choice("kv_init", kv_init, ("mean", "fresh"))
        check_choice("kernel", kernel, KERNELS)
        check_stored(share, borrows, quantised is not None, window)
        self.n_heads, self.n_kv_heads = n_heads, n_kv_heads
        self.d_head = check_rope(d_model // n_heads if d_head is None else d_head, rope)
        self.mask = core.Mask(mask, n_context, window, n_sinks).check()
        self.scale = self.d_head**-0.5 if scale else 1.0
        self.share, self.rope, self.borrows, self.quantised = share, rope, borrows, quantised
        self.kernel, self.dtype, self.cache_dtype = kernel, dtype, cache_dtype

        key, inner = rngs.params(), n_heads * self.d_head
        self.width = d_model if use_wo else inner  # columns of the output
        made = "q" if borrows else SHARES[share]
        self.wq = nnx.Param(normal(key, "wq", (d_model, inner)))
        self.wk = self._kv_param(key, "wk", d_model, kv_init) if "k" in made else None
        self.wv = self._kv_param(key, "wv", d_model, kv_init) if "v" in made else None
        self.wg = nnx.Param(normal(key, "wg", (d_model, inner))) if gate else None
        self.wo = nnx.Param(normal(key, "wo", (inner, d_model))) if use_wo else None
        self.bq, self.bk, self.bv, self.bg, self.bo = (
            nnx.Param(jnp.zeros(w.shape[1])) if bias and w is not None else None
            for w in (self.wq, self.wk, self.wv, self.wg, self.wo)
        )
        self.q_norm = nnx.Param(jnp.ones(self.d_head)) if qk_norm else None
        self.k_norm = nnx.Param(jnp.ones(self.d_head)) if qk_norm and not borrows else None
        self.sink = nnx.Param(jnp.zeros(n_heads)) if sink_logit else None

    def _kv_param(self, key: jax.Array, name: str, d: int, kv_init: str) -> nnx.Param:
        n, k, h = self.n_heads, self.n_kv_heads, self.d_head
        if kv_init == "fresh":
            return nnx.Param(normal(key, name, (d, k * h)))
        w_dkgh = normal(key, name, (d, n * h)).reshape(d, k, n // k, h)
        return nnx.Param((math.sqrt(n // k) * w_dkgh.mean(axis=2)).reshape(d, k * h))

    def whole(self, x: jax.Array, b: int, t: int, context: Context) -> Whole:
        """Keys and values are the lender's where this layer has none of its own."""
        q_btkgh, new, gate = self._rows(x, b, t, context.qk_rows)
        q_btkgh = rotate(q_btkgh) if self.rope else q_btkgh
        if self.borrows:
            assert context.lent is not None
            return Whole(q_btkgh, *context.lent, gate)
        if "kv" in new:  # rounded before keys are made of it
            v_bskh = self.rounded(new["kv"])
            k_bskh = self._normed(v_bskh)
            return Whole(q_btkgh, rotate(k_bskh) if self.rope else k_bskh, v_bskh, gate)
        k_bskh = rotate(new["k"]) if self.rope else new["k"]
        return Whole(q_btkgh, self.rounded(k_bskh), self.rounded(new["v"]), gate)

    def project(self, x: jax.Array, step: cache.Step) -> Projected:
        """Keys are rotated before they are stored, unless they are stored as values too."""
        b, c = step.position_bc.shape
        q_bckgh, new, gate = self._rows(x, b, c, step.qk_rows)
        if self.rope:
            q_bckgh = rotate(q_bckgh, at=step.position_bc, n_positions=step.capacity)
        if self.rope and "k" in new:
            new = new | {"k": rotate(new["k"], at=step.position_bc, n_positions=step.capacity)}
        q = jnp.split(q_bckgh, 2, axis=-1) if self._turns_when_read() else [q_bckgh]
        return Projected(tuple(q), new, gate)

    def stored(self) -> dict[str, tuple[int, int]]:
        """Keys and values, or what both are made of."""
        names = ("kv",) if self.share in ("kv", "qkv") else ("k", "v")
        return {name: (self.n_kv_heads, self.d_head) for name in names}

    def read(
        self, arrays: cache.Cache, position_bs: jax.Array, capacity: int
    ) -> tuple[tuple[jax.Array, ...], jax.Array]:
        """What is stored, or keys made of it: rotated, in halves, which joined were written out."""
        if "kv" not in arrays:
            return (arrays["k"],), arrays["v"]
        keys_bksh = self._normed(arrays["kv"].astype(self.dtype))
        if not self._turns_when_read():
            return (keys_bksh,), arrays["kv"]
        at = jnp.maximum(position_bs, 0)[:, None]
        keys_bksh = rotate(keys_bksh, 2, at=at, n_positions=capacity)
        return tuple(jnp.split(keys_bksh, 2, axis=-1)), arrays["kv"]

    def _rows(
        self, x: jax.Array, b: int, t: int, qk_rows: jax.Array | None
    ) -> tuple[jax.Array, cache.Cache, jax.Array | None]:
        """q_btkgh, what is stored of the tokens, neither rotated yet, and the rows of the gate."""
        n, k, h = self.n_heads, self.n_kv_heads, self.d_head
        if qk_rows is None:
            made = self._project(x, "qkvg")
        else:
            made = self._project(x, "vg") | self._project(qk_rows, "qk")
        letters = SHARES[self.share]
        q_btkgh = made["q"].reshape(b, t, k, n // k, h)
        if self.q_norm is not None:
            q_btkgh = per_head.rms(q_btkgh, self.q_norm[...])
        if self.borrows:
            return q_btkgh, {}, made.get("g")
        key, value = (made[letter].reshape(b, t, k, h) for letter in letters[1:])
        one = letters[1] == letters[2]
        new = {"kv": value} if one else {"k": self._normed(key), "v": value}
        return q_btkgh, new, made.get("g")

    def _turns_when_read(self) -> bool:
        """Whether keys are rotated when they are read: what is stored are the values."""
        return self.rope and self.share in ("kv", "qkv")

    def _normed(self, keys: jax.Array) -> jax.Array:
        return keys if self.k_norm is None else per_head.rms(keys, self.k_norm[...])

    def _project(self, x: jax.Array, which: str) -> dict[str, jax.Array]:
        """Rows of queries, keys, values and gate, by letter, from one product."""
        letters = [letter for letter in which if getattr(self, f"w{letter}") is not None]
        matrices = [getattr(self, f"w{letter}")[...] for letter in letters]
        if not letters:
            return {}
        y = product(x, jnp.concatenate(matrices, axis=1), self.dtype)
        if self.bq is not None:
            biases = jnp.concatenate([getattr(self, f"b{letter}")[...] for letter in letters])
            y = y + biases.astype(self.dtype)[None]
        ends = list(itertools.accumulate(w.shape[1] for w in matrices[:-1]))
        return dict(zip(letters, jnp.split(y, ends, axis=1), strict=True))


def Mixer(layer: LayerSpec, model: ModelSpec, *, key: jax.Array) -> Attention:
    """The mixer `grouped`: `Attention` as a LayerSpec and a ModelSpec describe it."""
    return Attention(
        n_kv_heads=layer.n_kv_heads,
        share=model.share,
        qk_norm=model.qk_norm,
        rope=model.positions == "rope",
        kv_init=model.kv_init,
        borrows=layer.kv_from is not None,
        quantised=Quantised.of(model),
        rngs=nnx.Rngs(key),
        **switches(layer, model),
    )

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
from mha_jax.attention.arguments import check_choice, check_heads, check_rope, check_share
from mha_jax.attention.init import normal
from mha_jax.attention.positions import rope as rotate
from mha_jax.attention.stops import Context
from mha_jax.config import LayerSpec, ModelSpec

# The letters of the matrices that make queries, keys and values.
SHARES = {"none": "qkv", "qk": "qqv", "kv": "qkk", "qkv": "qqq"}


class Attention(nnx.Module):
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
      rope: rotary positions; needs an even d_head.
      bias: add a bias, zero at first, to every linear map.
      kv_init: how fewer kv heads start. `mean`: the MHA draw [d, n*h], averaged over the g heads of
        each group and multiplied by sqrt(g), which keeps the variance; `fresh`: a draw of its own.
        The two are equal for k = n.
      kernel: `auto` and `fast` are the fast form unless weights are asked for; `reference`.
      dtype: of the products; parameters and softmax are float32.
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
        rope: bool = False,
        bias: bool = False,
        kv_init: str = "mean",
        kernel: str = "auto",
        dtype: Any = jnp.float32,
        rngs: nnx.Rngs,
    ):
        n_kv_heads = n_heads if n_kv_heads is None else n_kv_heads
        check_heads(d_model, n_heads, n_kv_heads, d_head)
        check_share(share, tuple(SHARES), n_heads, n_kv_heads)
        check_choice("kv_init", kv_init, ("mean", "fresh"))
        check_choice("kernel", kernel, ("auto", "fast", "reference"))
        self.n_heads, self.n_kv_heads = n_heads, n_kv_heads
        self.d_head = check_rope(d_model // n_heads if d_head is None else d_head, rope)
        self.mask = core.Mask(mask, n_context, window, n_sinks).check()
        self.scale = self.d_head**-0.5 if scale else 1.0
        self.share, self.rope, self.kernel, self.dtype = share, rope, kernel, dtype

        key, inner = rngs.params(), n_heads * self.d_head
        self.width = d_model if use_wo else inner  # columns of the output
        made = SHARES[share]
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
        self.k_norm = nnx.Param(jnp.ones(self.d_head)) if qk_norm else None

    def _kv_param(self, key: jax.Array, name: str, d: int, kv_init: str) -> nnx.Param:
        n, k, h = self.n_heads, self.n_kv_heads, self.d_head
        if kv_init == "fresh":
            return nnx.Param(normal(key, name, (d, k * h)))
        w_dkgh = normal(key, name, (d, n * h)).reshape(d, k, n // k, h)
        return nnx.Param((math.sqrt(n // k) * w_dkgh.mean(axis=2)).reshape(d, k * h))

    def __call__(self, x_btd: jax.Array, *, return_weights: bool = False) -> Any:
        """Attend.

        Args:
          x_btd: [b, t, d_model].
          return_weights: also return the weights; takes the reference form.

        Returns:
          [b, t, d_model], or that and the attention weights, float32 [b, n, t, s].
        """
        b, t, d = x_btd.shape
        context = Context(self.mask, wants_stops=return_weights)
        y, stops = self.mix(x_btd.reshape(b * t, d), b=b, t=t, context=context)
        y_btd = y.reshape(b, t, self.width)
        if not return_weights:
            return y_btd
        return y_btd, stops["weights_bkgts"].reshape(b, self.n_heads, t, t)

    def mix(
        self, x: jax.Array, *, b: int, t: int, context: Context
    ) -> tuple[jax.Array, dict[str, jax.Array]]:
        """The same on rows [b*t, d], with stops: the mixer of `mha_jax.attention`."""
        n, k, h = self.n_heads, self.n_kv_heads, self.d_head
        q_btkgh, k_bskh, v_bskh, gate = self._heads(x, b, t, context.qk_rows)
        if self.rope:
            q_btkgh, k_bskh = rotate(q_btkgh), rotate(k_bskh)
        if context.kv_mask is not None:
            v_bskh = v_bskh * context.kv_mask.astype(self.dtype).reshape(-1, 1, k, 1)
        q_btkgh = context.put("q_btkgh", q_btkgh)
        k_bskh, v_bskh = context.put("k_bskh", k_bskh), context.put("v_bskh", v_bskh)
        stops = {"q_btkgh": q_btkgh, "k_bskh": k_bskh, "v_bskh": v_bskh}
        mask = context.mask._replace(window=self.mask.window, n_sinks=self.mask.n_sinks)
        changed = {"scores_bkgts", "weights_bkgts"} & set(context.replace)
        if context.wants_stops or changed or self.kernel == "reference":
            attended = core.reference(q_btkgh, k_bskh, v_bskh, mask, self.scale, context.put)
            stops |= attended._asdict()
        else:
            stops["z_btkgh"] = core.fast(q_btkgh, k_bskh, v_bskh, mask, self.scale)
        stops["z_btkgh"] = context.put("z_btkgh", stops["z_btkgh"])

        heads_btnh = stops["z_btkgh"].reshape(b, t, n, h)
        if context.head_mask is not None:
            heads_btnh = heads_btnh * context.head_mask.astype(self.dtype).reshape(-1, 1, n, 1)
        heads = per_head.gated(heads_btnh.reshape(b * t, n * h), gate)
        wo = None if self.wo is None else self.wo[...].astype(self.dtype)
        y = heads if wo is None else heads @ wo
        if context.wants_stops or "head_out_btnd" in context.replace:
            out_btnd = per_head.head_out(heads.reshape(b, t, n, h), wo)
            stops["head_out_btnd"] = context.put("head_out_btnd", out_btnd)
            if "head_out_btnd" in context.replace:
                y = stops["head_out_btnd"].sum(axis=2).reshape(b * t, self.width)
        y = y if self.bo is None else y + self.bo[...].astype(self.dtype)[None]
        return y, stops if context.wants_stops else {}

    def init_cache(self, b: int, capacity: int, dtype: Any) -> cache.Cache:
        """The cache of b sequences of up to `capacity` tokens, without any yet.

        Raises:
          ValueError: a mask that is not causal.
        """
        layout = cache.Layout.of(self.mask, capacity)
        return cache.empty(b, self.n_kv_heads, self.d_head, layout, dtype)

    def extend(
        self, x: jax.Array, kept: cache.Cache, *, step: cache.Step
    ) -> tuple[jax.Array, cache.Cache]:
        """`mix` of the next tokens, rows [b*c, d], with what is kept of those before."""
        b, c = step.position_bc.shape
        q_bckgh, k_bckh, v_bckh, gate = self._heads(x, b, c, step.qk_rows)
        if self.rope:
            q_bckgh, k_bckh = (
                rotate(x, at=step.position_bc, n_positions=step.capacity) for x in (q_bckgh, k_bckh)
            )
        new = {"k_bckh": k_bckh, "v_bckh": v_bckh}
        z_bckgh, kept = cache.extend(kept, q_bckgh, new, step, self.mask, self.scale)
        heads = per_head.gated(z_bckgh.astype(self.dtype).reshape(b * c, -1), gate)
        y = heads if self.wo is None else heads @ self.wo[...].astype(self.dtype)
        return y if self.bo is None else y + self.bo[...].astype(self.dtype)[None], kept

    def _heads(
        self, x: jax.Array, b: int, t: int, qk_rows: jax.Array | None
    ) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array | None]:
        """q_btkgh, k_bskh and v_bskh, not rotated yet, and the rows of the gate."""
        n, k, h = self.n_heads, self.n_kv_heads, self.d_head
        if qk_rows is None:
            made = self._project(x, "qkvg")
        else:
            made = self._project(x, "vg") | self._project(qk_rows, "qk")
        q, key, v = (made[letter] for letter in SHARES[self.share])
        q_btkgh, k_bskh = q.reshape(b, t, k, n // k, h), key.reshape(b, t, k, h)
        if self.q_norm is not None and self.k_norm is not None:
            q_btkgh, k_bskh = (
                per_head.rms(q_btkgh, self.q_norm[...]),
                per_head.rms(k_bskh, self.k_norm[...]),
            )
        return q_btkgh, k_bskh, v.reshape(b, t, k, h), made.get("g")

    def _project(self, x: jax.Array, which: str) -> dict[str, jax.Array]:
        """Rows of queries, keys, values and gate, by letter, from one product."""
        letters = [letter for letter in which if getattr(self, f"w{letter}") is not None]
        matrices = [getattr(self, f"w{letter}")[...] for letter in letters]
        y = x.astype(self.dtype) @ jnp.concatenate(matrices, axis=1).astype(self.dtype)
        if self.bq is not None:
            biases = jnp.concatenate([getattr(self, f"b{letter}")[...] for letter in letters])
            y = y + biases.astype(self.dtype)[None]
        ends = list(itertools.accumulate(w.shape[1] for w in matrices[:-1]))
        return dict(zip(letters, jnp.split(y, ends, axis=1), strict=True))


def Mixer(layer: LayerSpec, model: ModelSpec, *, key: jax.Array) -> Attention:
    """The mixer `grouped`: `Attention` as a LayerSpec and a ModelSpec describe it."""
    return Attention(
        model.d_model,
        layer.n_heads,
        layer.n_kv_heads,
        layer.d_head,
        window=layer.window,
        n_sinks=layer.n_sinks,
        scale=model.scale,
        use_wo=model.use_wo,
        share=model.share,
        qk_norm=model.qk_norm,
        gate=model.gate,
        rope=model.positions == "rope",
        bias=model.bias,
        kv_init=model.kv_init,
        kernel=model.kernel,
        dtype=jnp.dtype(model.compute_dtype),
        rngs=nnx.Rngs(key),
    )

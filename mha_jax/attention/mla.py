"""Attention over latents: what is stored of a token is small, and each head makes its keys of it.

With one latent this is MLA (DeepSeek-AI 2024, arXiv:2405.04434, section 2.1), with more, each for
its own query heads, GLA (Zadouri, Strauss and Dao 2025, arXiv:2505.21487). A token's latent is
c = x wc; head i has the key c wuk_i, beside one rotated key x wkr for all heads, and the value
c wuv_i.

A score is (q_i wuk_i^T) c: the query takes on the map of the keys, and so heads read the latents
themselves, as in MQA. Decoding does that, and so do the stops: keys and values there are latents.
Whole sequences otherwise make the keys and values of every head, which is less to multiply.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from mha_jax.attention import cache, core, fast, per_head
from mha_jax.attention.arguments import check_choice, check_heads, check_rope
from mha_jax.attention.init import normal
from mha_jax.attention.kind import Kind, Projected, Whole, switches
from mha_jax.attention.positions import rope as rotate
from mha_jax.attention.stops import Context
from mha_jax.config import LayerSpec, ModelSpec


class LatentAttention(Kind):
    """Self-attention of `n_heads` query heads over `n_latents` latents.

    Letters as in `core`, and c the width of a latent, e that of a rotated part; k latents.
    Parameters: wc [d, k*c]; wkr [d, e]; wuk and wuv [c, n*h], whose columns of head i read latent
    i // g; wq [d, n*h] and wqr [d, n*e], or, with a latent of the queries, wcq [d, p] and these
    from p on; wo [n*h, d].

    Args:
      d_model, n_heads, d_head: as in `grouped.Attention`.
      n_latents: k; divides n. 1: MLA.
      d_latent: width of a latent, c.
      d_latent_q: width of the queries' latent, p; 0: they have none.
      d_rope: width of the rotated part of queries and keys, e, even; 0: there is none.
      window, n_sinks, scale, use_wo, gate, sink_logit, kernel, dtype, cache_dtype: as there; the
        scale is (h + e)^-0.5.
      latent_norm: RMS-normalise the latents, with learned scales, as DeepSeek-V2 does.
      bias: add a bias, zero at first, to queries, latents, gate and output.
      rngs: `nnx.Rngs`; one `params` key is taken from it, nothing is stored.

    Raises:
      ValueError: numbers that do not fit together; the text names the argument and the rule.
    """

    def __init__(
        self,
        d_model: int,
        n_heads: int,
        n_latents: int = 1,
        d_head: int | None = None,
        *,
        d_latent: int,
        d_latent_q: int = 0,
        d_rope: int = 0,
        window: int = 0,
        n_sinks: int = 0,
        scale: bool = True,
        use_wo: bool = True,
        latent_norm: bool = False,
        gate: bool = False,
        sink_logit: bool = False,
        bias: bool = False,
        kernel: str = "auto",
        dtype: Any = jnp.float32,
        cache_dtype: Any = jnp.float32,
        rngs: nnx.Rngs,
    ):
        check_heads(d_model, n_heads, n_latents, d_head)
        check_choice("kernel", kernel, ("auto", "fast", "reference"))
        if d_latent < 1 or d_latent_q < 0:
            raise ValueError(f"d_latent={d_latent} must be 1 or more, d_latent_q={d_latent_q} 0")
        self.n_heads, self.n_kv_heads = n_heads, n_latents
        self.d_head = h = d_model // n_heads if d_head is None else d_head
        self.d_latent, self.d_rope = d_latent, check_rope(d_rope, d_rope > 0)
        self.mask = core.Mask("causal", 0, window, n_sinks).check()
        self.scale = (h + d_rope) ** -0.5 if scale else 1.0
        self.kernel, self.dtype, self.cache_dtype = kernel, dtype, cache_dtype
        self.borrows, self.quantised = False, None

        key, inner = rngs.params(), n_heads * h
        self.width = d_model if use_wo else inner
        from_q = d_latent_q or d_model

        def made(name: str, *shape: int, there: bool = True) -> nnx.Param | None:
            return nnx.Param(normal(key, name, shape)) if there else None

        def zeros(n: int, there: bool) -> nnx.Param | None:
            return nnx.Param(jnp.zeros(n)) if there else None

        self.wcq = made("wcq", d_model, d_latent_q, there=d_latent_q > 0)
        self.wq = made("wq", from_q, inner)
        self.wqr = made("wqr", from_q, n_heads * d_rope, there=d_rope > 0)
        self.wc = made("wc", d_model, n_latents * d_latent)
        self.wkr = made("wkr", d_model, d_rope, there=d_rope > 0)
        self.wuk = made("wuk", d_latent, inner)
        self.wuv = made("wuv", d_latent, inner)
        self.wg = made("wg", d_model, inner, there=gate)
        self.wo = made("wo", inner, d_model, there=use_wo)
        self.bq, self.bc = zeros(inner, bias), zeros(n_latents * d_latent, bias)
        self.bg, self.bo = zeros(inner, bias and gate), zeros(d_model, bias and use_wo)
        self.sink = zeros(n_heads, sink_logit)
        self.c_norm = nnx.Param(jnp.ones(d_latent)) if latent_norm else None
        self.cq_norm = nnx.Param(jnp.ones(d_latent_q)) if latent_norm and d_latent_q else None

    def mix(
        self, x: jax.Array, *, b: int, t: int, context: Context
    ) -> tuple[jax.Array, dict[str, jax.Array]]:
        """Every head's own keys and values, unless the stops are looked at or changed."""
        if context.wants_stops or context.replace or self.kernel == "reference":
            return super().mix(x, b=b, t=t, context=context)
        q_btnh, rotated, new, gate = self._rows(x, b, t)
        h = self.d_head
        latent_bskc = self.rounded(new["latent"])
        wuk_ckgh, wuv_ckgh = self._up("wuk"), self._up("wuv")
        keys = [jnp.einsum("bskc,ckgh->bskgh", latent_bskc, wuk_ckgh).reshape(b, t, -1, h)]
        latent_bskc = self.masked(latent_bskc, context)
        v_bsnh = jnp.einsum("bskc,ckgh->bskgh", latent_bskc, wuv_ckgh).reshape(b, t, -1, h)
        queries = [q_btnh]
        if rotated is not None:
            queries.append(rotate(rotated))
            key_bs1e = self.rounded(rotate(new["rope_key"]))
            keys.append(jnp.broadcast_to(key_bs1e, (b, t, self.n_heads, self.d_rope)))
        q_btn1h, k_bsnh = jnp.concatenate(queries, -1)[:, :, :, None], jnp.concatenate(keys, -1)
        sink_n1 = None if self.sink is None else self.sink[...][:, None]
        z_btn1h = fast.fast(q_btn1h, k_bsnh, v_bsnh, self.seen(context), self.scale, sink_n1)
        y, _ = self.finish(z_btn1h[:, :, :, 0], gate, context)
        return y, {}

    def whole(self, x: jax.Array, b: int, t: int, context: Context) -> Whole:
        """Queries that read latents, and the latents."""
        q_btnh, rotated, new, gate = self._rows(x, b, t)
        latent_bskc = self.rounded(new["latent"])
        q, keys = [self._absorbed(q_btnh)], [latent_bskc]
        if rotated is not None:
            q.append(self._grouped(rotate(rotated)))
            key_bs1e = self.rounded(rotate(new["rope_key"]))
            keys.append(jnp.broadcast_to(key_bs1e, (b, t, self.n_kv_heads, self.d_rope)))
        return Whole(jnp.concatenate(q, -1), jnp.concatenate(keys, -1), latent_bskc, gate)

    def project(self, x: jax.Array, step: cache.Step) -> Projected:
        """Queries that read latents, the latents and the rotated key."""
        b, c = step.position_bc.shape
        q_bcnh, rotated, new, gate = self._rows(x, b, c)
        q = [self._absorbed(q_bcnh)]
        if rotated is not None:
            like: dict[str, Any] = {"at": step.position_bc, "n_positions": step.capacity}
            q.append(self._grouped(rotate(rotated, **like)))
            new = {**new, "rope_key": rotate(new["rope_key"], **like)}
        return Projected(tuple(q), new, gate)

    def stored(self) -> dict[str, tuple[int, int]]:
        """The latents, and one rotated key for all heads."""
        rotated = {"rope_key": (1, self.d_rope)} if self.d_rope else {}
        return {"latent": (self.n_kv_heads, self.d_latent), **rotated}

    def read(
        self, arrays: cache.Cache, position_bs: jax.Array, capacity: int
    ) -> tuple[tuple[jax.Array, ...], jax.Array]:
        """Keys are what is stored, values the latents."""
        return tuple(arrays[name] for name in self.stored()), arrays["latent"]

    def lift(self, z: jax.Array) -> jax.Array:
        """Values of each head of weighted latents."""
        z_btkgh = jnp.einsum("btkgc,ckgh->btkgh", z, self._up("wuv"))
        return z_btkgh.reshape(*z.shape[:2], self.n_heads, self.d_head)

    def _rows(
        self, x: jax.Array, b: int, t: int
    ) -> tuple[jax.Array, jax.Array | None, cache.Cache, jax.Array | None]:
        """q_btnh and its part that is rotated, what is stored, neither rotated yet, the gate."""
        x, n = x.astype(self.dtype), self.n_heads
        latent = self.times(x, "c").reshape(b, t, self.n_kv_heads, self.d_latent)
        if self.c_norm is not None:
            latent = per_head.rms(latent, self.c_norm[...])
        new, rotated = {"latent": latent}, None
        from_q = x if self.wcq is None else self.times(x, "cq")
        if self.cq_norm is not None:
            from_q = per_head.rms(from_q, self.cq_norm[...])
        if self.d_rope:
            rotated = self.times(from_q, "qr").reshape(b, t, n, self.d_rope)
            new["rope_key"] = self.times(x, "kr").reshape(b, t, 1, self.d_rope)
        q_btnh = self.times(from_q, "q").reshape(b, t, n, self.d_head)
        return q_btnh, rotated, new, None if self.wg is None else self.times(x, "g")

    def _absorbed(self, q_btnh: jax.Array) -> jax.Array:
        return jnp.einsum("btkgh,ckgh->btkgc", self._grouped(q_btnh), self._up("wuk"))

    def _grouped(self, q_btnh: jax.Array) -> jax.Array:
        b, t, n, h = q_btnh.shape
        return q_btnh.reshape(b, t, self.n_kv_heads, n // self.n_kv_heads, h)

    def _up(self, name: str) -> jax.Array:
        shape = self.d_latent, self.n_kv_heads, -1, self.d_head
        return getattr(self, name)[...].astype(self.dtype).reshape(shape)


def Mixer(layer: LayerSpec, model: ModelSpec, *, key: jax.Array) -> LatentAttention:
    """The mixer `mla`: `LatentAttention` as a LayerSpec and a ModelSpec describe it."""
    return LatentAttention(
        n_latents=layer.n_kv_heads,
        d_latent=model.d_latent,
        d_latent_q=model.d_latent_q,
        d_rope=model.d_rope,
        latent_norm=model.qk_norm,
        rngs=nnx.Rngs(key),
        **switches(layer, model),
    )

"""What the kinds of attention have in common: over whole sequences, and token by token.

A kind says what it stores of a token and how keys and values are made of that; the rest is here.
All kinds are grouped attention of n query heads over k stored heads, so that one set of stops,
masks and tools serves them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from mha_jax.attention import cache, core, kernels, per_head, quantised, staged
from mha_jax.attention.product import product
from mha_jax.attention.stops import Context
from mha_jax.config import LayerSpec, ModelSpec


class Projected(NamedTuple):
    """What the rows of some tokens become."""

    q: tuple[jax.Array, ...]  # [b, c, k, g, h], for each of the keys of `Kind.read`
    new: cache.Cache  # what is stored, [b, c, k, h] by name
    gate: jax.Array | None  # rows [b*c, n*h]


class Whole(NamedTuple):
    """Queries, keys and values of whole sequences."""

    q_btkgh: jax.Array
    k_bskh: jax.Array
    v_bskh: jax.Array
    gate: jax.Array | None


class Kind(nnx.Module):
    """Base of the mixers of this package; a kind sets the fields and gives the five methods below.

    Fields: n_heads, n_kv_heads, d_head; `mask` and `scale` of the scores; `kernel`, `dtype` (of
    the products), `cache_dtype`; `quantised` (None: stored as they are); `borrows` (keys and values
    are another layer's); `width`, columns of the output; the parameters `wo`, `bo` and `sink`, each
    None where there is none.
    """

    n_heads: int
    n_kv_heads: int
    d_head: int
    width: int
    mask: core.Mask
    scale: float
    kernel: str
    dtype: Any
    cache_dtype: Any
    quantised: quantised.Quantised | None
    borrows: bool
    wo: nnx.Param | None
    bo: nnx.Param | None
    sink: nnx.Param | None

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

    def whole(self, x: jax.Array, b: int, t: int, context: Context) -> Whole:
        """Queries, keys and values of rows [b*t, d], as they are when they come from the cache."""
        raise NotImplementedError

    def project(self, x: jax.Array, step: cache.Step) -> Projected:
        """Queries of the next tokens, rows [b*c, d], and what is stored of them."""
        raise NotImplementedError

    def stored(self) -> dict[str, tuple[int, int]]:
        """Names of what is stored of a token, each with its heads and their width."""
        raise NotImplementedError

    def read(
        self, arrays: cache.Cache, position_bs: jax.Array, capacity: int
    ) -> tuple[tuple[jax.Array, ...], jax.Array]:
        """Keys and values of what is stored: see `cache.Reader`."""
        raise NotImplementedError

    def lift(self, z: jax.Array) -> jax.Array:
        """Heads [b, t, n, h] of z [b, t, k, g, ...], the weighted values."""
        b, t = z.shape[:2]
        return z.reshape(b, t, self.n_heads, -1)

    def mix(
        self, x: jax.Array, *, b: int, t: int, context: Context
    ) -> tuple[jax.Array, dict[str, jax.Array]]:
        """The mixer of `mha_jax.attention`. Keys and values are among the stops always: other
        layers may read them.
        """
        whole = self.whole(x, b, t, context)
        v_bskh = self.masked(whole.v_bskh, context)
        q_btkgh = context.put("q_btkgh", whole.q_btkgh)
        k_bskh, v_bskh = context.put("k_bskh", whole.k_bskh), context.put("v_bskh", v_bskh)
        stops = {"q_btkgh": q_btkgh, "k_bskh": k_bskh, "v_bskh": v_bskh}
        mask, sink_kg = self.seen(context), self.sink_kg()
        changed = {"scores_bkgts", "weights_bkgts"} & set(context.replace)
        if self.quantised is not None:
            attended = self.quantised.reference(
                q_btkgh, k_bskh, v_bskh, mask, self.scale, context.put, sink_kg
            )
            stops |= attended._asdict()
        elif context.wants_stops or changed or self.kernel == "reference":
            attended = core.reference(
                q_btkgh, k_bskh, v_bskh, mask, self.scale, context.put, sink_kg
            )
            stops |= attended._asdict()
        else:
            stops["z_btkgh"] = kernels.attend(
                self.kernel, q_btkgh, k_bskh, v_bskh, mask, self.scale, sink_kg
            )
        stops["z_btkgh"] = context.put("z_btkgh", stops["z_btkgh"])
        heads_btnh = self.lift(stops["z_btkgh"])
        y, head_out = self.finish(heads_btnh, whole.gate, context)
        if not context.wants_stops:
            return y, {name: stops[name] for name in ("k_bskh", "v_bskh")}
        return y, stops | head_out

    def finish(
        self, heads_btnh: jax.Array, gate: jax.Array | None, context: Context
    ) -> tuple[jax.Array, dict[str, jax.Array]]:
        """The output rows of heads, and what each adds to them where that is wanted."""
        b, t, n, h = heads_btnh.shape
        if context.head_mask is not None:
            heads_btnh = heads_btnh * context.head_mask.astype(self.dtype).reshape(-1, 1, n, 1)
        heads = per_head.gated(heads_btnh.reshape(b * t, n * h), gate)
        wo = None if self.wo is None else self.wo[...].astype(self.dtype)
        y = heads if self.wo is None else product(heads, self.wo[...], self.dtype)
        told: dict[str, jax.Array] = {}
        if context.wants_stops or "head_out_btnd" in context.replace:
            out_btnd = per_head.head_out(heads.reshape(b, t, n, h), wo)
            told["head_out_btnd"] = context.put("head_out_btnd", out_btnd)
            if "head_out_btnd" in context.replace:
                y = told["head_out_btnd"].sum(axis=2).reshape(b * t, self.width)
        return y if self.bo is None else y + self.bo[...].astype(self.dtype)[None], told

    def init_cache(self, b: int, capacity: int) -> cache.Cache:
        """What is stored of b sequences of up to `capacity` tokens, without any yet.

        Raises:
          ValueError: a mask that is not causal.
        """
        layout = cache.Layout.of(self.mask, capacity)
        if self.borrows:
            return {}
        if self.quantised is not None:
            k, h = self.n_kv_heads, self.d_head
            return self.quantised.empty(b, k, h, capacity)
        return {
            name: jnp.zeros((b, k, layout.n_slots, h), cache.storage(self.cache_dtype))
            for name, (k, h) in self.stored().items()
        }

    def append(
        self, kept: Any, new: cache.Cache, step: cache.Step
    ) -> tuple[Any, tuple[cache.Part, ...]]:
        """What is stored after the next tokens, and what their queries read."""
        if self.quantised is not None:
            return self.quantised.append(kept, new, step)

        def read(arrays: cache.Cache, position_bs: jax.Array) -> Any:
            return self.read(arrays, position_bs, step.capacity)

        form = staged if isinstance(kept, staged.Staged) else cache
        return form.append(kept, new, step, self.mask, read)

    def attend(self, q: tuple[jax.Array, ...], parts: tuple[cache.Part, ...]) -> jax.Array:
        """Heads [b, c, n, h] of queries that read these parts."""
        z_bckgh = cache.attend(q, parts, self.scale, self.sink_kg())
        return self.lift(z_bckgh.astype(self.dtype))

    def extend(
        self, x: jax.Array, kept: cache.Cache, *, step: cache.Step
    ) -> tuple[jax.Array, cache.Cache, tuple[cache.Part, ...]]:
        """`mix` of the next tokens, rows [b*c, d], with what is stored of those before."""
        q, new, gate = self.project(x, step)
        kept, parts = (kept, step.lent) if self.borrows else self.append(kept, new, step)
        y, _ = self.finish(self.attend(q, parts), gate, Context())
        return y, kept, parts

    def seen(self, context: Context) -> core.Mask:
        """The task's mask with the layer's window."""
        return context.mask._replace(window=self.mask.window, n_sinks=self.mask.n_sinks)

    def masked(self, v_bskh: jax.Array, context: Context) -> jax.Array:
        """Values times the factors of their kv heads."""
        if context.kv_mask is None:
            return v_bskh
        return v_bskh * context.kv_mask.astype(self.dtype).reshape(-1, 1, self.n_kv_heads, 1)

    def times(self, x: jax.Array, name: str) -> jax.Array:
        """Rows, of the products' dtype, times w<name>, plus b<name> where there is one."""
        y = product(x, getattr(self, f"w{name}")[...], self.dtype)
        bias = getattr(self, f"b{name}", None)
        return y if bias is None else y + bias[...].astype(self.dtype)[None]

    def sink_kg(self) -> jax.Array | None:
        """The learned logit of each head."""
        if self.sink is None:
            return None
        return self.sink[...].reshape(self.n_kv_heads, -1).astype(jnp.float32)

    def rounded(self, x: jax.Array) -> jax.Array:
        """As the cache will hold it, so that a whole sequence says what decoding says."""
        return x.astype(self.cache_dtype).astype(x.dtype)


def switches(layer: LayerSpec, model: ModelSpec) -> dict[str, Any]:
    """Arguments that all kinds have, as a LayerSpec and a ModelSpec give them."""
    same = ("scale", "use_wo", "gate", "sink_logit", "bias", "kernel")
    dtypes = {"dtype": model.compute_dtype, "cache_dtype": model.cache_dtype}
    return {
        **{name: getattr(layer, name) for name in ("n_heads", "d_head", "window", "n_sinks")},
        **{name: getattr(model, name) for name in ("d_model", *same)},
        **{name: jnp.dtype(dtype) for name, dtype in dtypes.items()},
    }

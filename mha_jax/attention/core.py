"""Grouped attention as pure functions: where the softmax is.

Letters, the same in code, documents and plots:

    b batch             n query heads, n = k * g       d d_model, width of the residual stream
    t query position    k key/value heads              h d_head, width of a head
    s key position      g query heads of one kv head   f d_ff   v vocabulary   l layers

MHA (g = 1), GQA and MQA (k = 1) are one path: the n query heads are reshaped to (k, g), query head
i reads kv head i // g, and no key or value is ever repeated. Two forms give equal numbers:
`reference` follows the letters and returns the weights, `fast.py` is arranged for the machine.
Scores and softmax are float32 whatever the inputs are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

# What a hidden score becomes: not -inf, which makes NaN of a row that sees nothing.
LOWEST = float(np.finfo(np.float32).min)


class Mask(NamedTuple):
    """Which keys a query may read."""

    kind: str = "causal"  # causal: s <= t | full | context_query: the first n_context keys only
    n_context: int = 0
    window: int = 0  # causal only: this many newest keys, the query's own included; 0: all
    n_sinks: int = 0  # with a window, the first positions, which stay visible

    def check(self) -> Mask:
        """Itself.

        Raises:
          ValueError: unknown kind, or numbers that do not go with it.
        """
        if self.kind not in ("causal", "full", "context_query"):
            raise ValueError(f"mask={self.kind!r} is not one of causal, full, context_query")
        if self.kind == "context_query" and self.n_context < 1:
            raise ValueError(f"mask='context_query' needs an n_context, not {self.n_context}")
        if self.window < 0 or self.n_sinks < 0 or (self.n_sinks and not self.window):
            raise ValueError(
                f"window={self.window} and n_sinks={self.n_sinks} must not be negative, and sinks "
                "need a window"
            )
        if self.window and self.kind != "causal":
            raise ValueError(f"window={self.window} needs mask='causal', not {self.kind!r}")
        return self

    def sees(self, t: Any, s: Any) -> Any:
        """Whether query position t may read key position s: integer arrays, numpy's or JAX's."""
        if self.kind == "full":
            return (t >= 0) & (s >= 0)
        if self.kind == "context_query":
            return (t >= 0) & (s < self.n_context)
        seen = s <= t
        return seen & ((t - s < self.window) | (s < self.n_sinks)) if self.window else seen

    def table(self, length: int) -> np.ndarray:
        """The same for all positions: bool [t, s]."""
        return self.sees(np.arange(length)[:, None], np.arange(length)[None, :])


def visible_keys(
    length: int, mask: str = "causal", *, n_context: int = 0, window: int = 0, n_sinks: int = 0
) -> np.ndarray:
    """Which key each query may read, bool [t, s]; the arguments are the fields of `Mask`.

    Raises:
      ValueError: unknown mask, or a window without the causal mask.
    """
    return Mask(mask, n_context, window, n_sinks).check().table(length)


class Attended(NamedTuple):
    """All of one attention."""

    z_btkgh: jax.Array
    scores_bkgts: jax.Array
    weights_bkgts: jax.Array


def beside_sink(scores: jax.Array, sink: jax.Array | None) -> jax.Array:
    """Softmax over the last axis, in whose sum a logit [..., 1] takes part that has no weight."""
    if sink is None:
        return jax.nn.softmax(scores)
    largest = jax.lax.stop_gradient(jnp.maximum(scores.max(-1, keepdims=True), sink))
    exp = jnp.exp(scores - largest)
    return exp / (exp.sum(-1, keepdims=True) + jnp.exp(sink - largest))


def softmax(
    scores_bkgts: jax.Array, visible: np.ndarray, sink_kg: jax.Array | None = None
) -> jax.Array:
    """Softmax over the visible keys, the last axis; a query that sees no key gets weights 0.

    Args:
      scores_bkgts: float32.
      visible: bool [t, s], a constant of the program.
      sink_kg: a logit of each head that takes part in the sum and has no weight.
    """
    scores_bkgts = scores_bkgts if visible.all() else jnp.where(visible, scores_bkgts, LOWEST)
    sink = None if sink_kg is None else sink_kg[None, :, :, None, None]
    weights_bkgts = beside_sink(scores_bkgts, sink)
    return weights_bkgts if visible.any(axis=1).all() else jnp.where(visible, weights_bkgts, 0.0)


def _as_it_is(stop: str, x: jax.Array) -> jax.Array:
    del stop
    return x


def reference(
    q_btkgh: jax.Array,
    k_bskh: jax.Array,
    v_bskh: jax.Array,
    mask: Mask,
    scale: float,
    put: Callable[[str, jax.Array], jax.Array] = _as_it_is,
    sink_kg: jax.Array | None = None,
) -> Attended:
    """Attention in letters, with scores and weights in float32.

    softmax(scale * q k^T) v, Vaswani et al. 2017, equation 1; groups as in Ainslie et al. 2023.
    Values may have another width than keys. `put(name, x)` is what scores and weights are gone on
    with; `sink_kg` as in `softmax`.
    """
    f32, dtype = jnp.float32, v_bskh.dtype
    scores_bkgts = scale * jnp.einsum(
        "btkgh,bskh->bkgts", q_btkgh, k_bskh, preferred_element_type=f32
    )
    scores_bkgts = put("scores_bkgts", scores_bkgts)
    weights_bkgts = put(
        "weights_bkgts", softmax(scores_bkgts, mask.table(q_btkgh.shape[1]), sink_kg)
    )
    z_btkgh = jnp.einsum(
        "bkgts,bskh->btkgh", weights_bkgts.astype(dtype), v_bskh, preferred_element_type=f32
    )
    return Attended(z_btkgh.astype(dtype), scores_bkgts, weights_bkgts)

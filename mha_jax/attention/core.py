"""Grouped attention as pure functions: where the softmax is.

Letters, the same in code, documents and plots:

    b batch             n query heads, n = k * g       d d_model, width of the residual stream
    t query position    k key/value heads              h d_head, width of a head
    s key position      g query heads of one kv head   f d_ff   v vocabulary   l layers

MHA (g = 1), GQA and MQA (k = 1) are one path: the n query heads are reshaped to (k, g), query head
i reads kv head i // g, and no key or value is ever repeated. Two forms give equal numbers:
`reference` follows the letters and returns the weights, `fast` is arranged for the machine.
Scores and softmax are float32 whatever the inputs are.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

# Measured on one x86 core with jax 0.10 and 0.12, forward and backward.
SHORT_LENGTH = 16  # up to here products in letters are quicker than folded rows
DIRECT_LENGTH = 512  # up to here the scores are kept for the backward pass
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


def softmax(scores: jax.Array, visible: np.ndarray) -> jax.Array:
    """Softmax over the visible keys, the last axis; a query that sees no key gets weights 0.

    Args:
      scores: float32 [..., t, s].
      visible: bool [t, s], a constant of the program.
    """
    if visible.all():
        return jax.nn.softmax(scores)
    mask = visible.reshape((1,) * (scores.ndim - 2) + visible.shape)
    weights = jax.nn.softmax(jnp.where(mask, scores, LOWEST))
    return weights if visible.any(axis=1).all() else jnp.where(mask, weights, 0.0)


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
) -> Attended:
    """Attention in letters, with scores and weights in float32.

    softmax(scale * q k^T) v, Vaswani et al. 2017, equation 1; groups as in Ainslie et al. 2023.
    `put(name, x)` is what scores and weights are gone on with.
    """
    f32, dtype = jnp.float32, v_bskh.dtype
    scores_bkgts = scale * jnp.einsum(
        "btkgh,bskh->bkgts", q_btkgh, k_bskh, preferred_element_type=f32
    )
    scores_bkgts = put("scores_bkgts", scores_bkgts)
    weights_bkgts = put("weights_bkgts", softmax(scores_bkgts, mask.table(q_btkgh.shape[1])))
    z_btkgh = jnp.einsum(
        "bkgts,bskh->btkgh", weights_bkgts.astype(dtype), v_bskh, preferred_element_type=f32
    )
    return Attended(z_btkgh.astype(dtype), scores_bkgts, weights_bkgts)


def fast(
    q_btkgh: jax.Array, k_bskh: jax.Array, v_bskh: jax.Array, mask: Mask, scale: float
) -> jax.Array:
    """z_btkgh of `reference`, without the weights.

    The sum of the exponentials divides z and not the weights, which saves a pass over [t, s].
    Queries go in chunks where a chunk can then skip keys that none of its queries sees, and always
    above `DIRECT_LENGTH`, where a chunk's scores are made again in the backward pass.
    """
    length, visible_ts = q_btkgh.shape[1], mask.table(q_btkgh.shape[1])
    q_btkgh = q_btkgh * scale
    if length <= SHORT_LENGTH:
        return _letters(q_btkgh, k_bskh, v_bskh, visible_ts).astype(v_bskh.dtype)
    k_bksh, v_bksh = k_bskh.transpose(0, 2, 1, 3), v_bskh.transpose(0, 2, 1, 3)
    step, chunks = chunk_length(visible_ts), []
    for start in range(0, length, step):
        rows = visible_ts[start : start + step]
        read = np.flatnonzero(rows.any(axis=0)) if rows.any() else np.arange(1)
        chunk: Callable[..., jax.Array] = functools.partial(
            _folded, mask=mask, visible=rows[:, read], start=start, read=read
        )
        chunk = jax.checkpoint(chunk) if length > DIRECT_LENGTH else chunk
        q = q_btkgh[:, start : start + step]
        chunks.append(chunk(q, _take(k_bksh, read), _take(v_bksh, read)))
    z_bktgh = jnp.concatenate(chunks, axis=2) if len(chunks) > 1 else chunks[0]
    return z_bktgh.transpose(0, 2, 1, 3, 4).astype(v_bskh.dtype)


def chunk_length(visible_ts: np.ndarray) -> int:
    """Queries that `fast` takes at a time under this table."""
    length = len(visible_ts)
    if length > DIRECT_LENGTH:
        return max(128, length // 32)  # at most 32 chunks: compile time grows with their number
    early, ever = visible_ts[: length // 2].any(axis=0), visible_ts.any(axis=0)
    return max(64, length // 4) if early.sum() < ever.sum() else length


def _letters(
    q_btkgh: jax.Array, k_bskh: jax.Array, v_bskh: jax.Array, visible: np.ndarray
) -> jax.Array:
    """z_btkgh as written: in a short sequence making rows costs more than it saves."""
    f32 = jnp.float32
    scores_bktgs = jnp.einsum("btkgh,bskh->bktgs", q_btkgh, k_bskh, preferred_element_type=f32)
    seen = None if visible.all() else jnp.asarray(visible)[None, None, :, None, :]
    exp_bktgs, total_bktg = _exp(scores_bktgs, seen, bool(visible.any(axis=1).all()))
    exp_bktgs = exp_bktgs.astype(v_bskh.dtype)
    z_btkgh = jnp.einsum("bktgs,bskh->btkgh", exp_bktgs, v_bskh, preferred_element_type=f32)
    return z_btkgh / total_bktg.transpose(0, 2, 1, 3)[..., None]


def _folded(
    q_btkgh: jax.Array,
    k_bksh: jax.Array,
    v_bksh: jax.Array,
    *,
    mask: Mask,
    visible: np.ndarray,
    start: int,
    read: np.ndarray,
) -> jax.Array:
    """z_bktgh of queries from `start` on over the keys `read`.

    b and k lead, and (t, g) are folded into the rows, r, of one product for each kv head.
    """
    f32, batch = jnp.float32, ((0, 1), (0, 1))
    b, t, k, g, h = q_btkgh.shape
    q_bkrh = q_btkgh.transpose(0, 2, 1, 3, 4).reshape(b, k, t * g, h)
    scores_bkrs = jax.lax.dot_general(
        q_bkrh, k_bksh, (((3,), (3,)), batch), preferred_element_type=f32
    )
    seen = None
    if not visible.all():  # from two vectors: a table of a long sequence is no constant to compile
        row = jnp.asarray(np.repeat(np.arange(start, start + t), g))
        seen = mask.sees(row[None, None, :, None], jnp.asarray(read)[None, None, None, :])
    exp_bkrs, total_bkr = _exp(scores_bkrs, seen, bool(visible.any(axis=1).all()))
    z_bkrh = jax.lax.dot_general(
        exp_bkrs.astype(v_bksh.dtype), v_bksh, (((3,), (2,)), batch), preferred_element_type=f32
    )
    return (z_bkrh / total_bkr[..., None]).reshape(b, k, t, g, h)


def _exp(scores: jax.Array, seen: jax.Array | None, all_see: bool) -> tuple[jax.Array, jax.Array]:
    """Numerator and denominator of the softmax over the last axis.

    The largest score is taken off first, so that no exponential overflows. `seen` is None where
    every key is visible; without `all_see` a row that sees nothing becomes 0 over 1.
    """
    scores = scores if seen is None else jnp.where(seen, scores, LOWEST)
    exp = jnp.exp(scores - jax.lax.stop_gradient(scores.max(axis=-1, keepdims=True)))
    if seen is None or all_see:
        return exp, exp.sum(axis=-1)
    exp = jnp.where(seen, exp, 0.0)
    total = exp.sum(axis=-1)
    return exp, jnp.where(total > 0, total, 1.0)


def _take(x_bksh: jax.Array, read: np.ndarray) -> jax.Array:
    """Positions `read`, ascending, of axis s as slices: a window beside sinks is two of them."""
    runs = np.split(read, np.flatnonzero(np.diff(read) != 1) + 1)
    parts = [x_bksh[:, :, run[0] : run[-1] + 1] for run in runs]
    return jnp.concatenate(parts, axis=2) if len(parts) > 1 else parts[0]

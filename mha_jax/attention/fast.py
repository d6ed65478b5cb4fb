"""Grouped attention arranged for the machine: what `core.reference` says, without the weights."""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from mha_jax import host
from mha_jax.attention.blocked import blocked
from mha_jax.attention.core import LOWEST, Mask

# Measured on one x86 core with jax 0.10 and 0.12, forward and backward.
SHORT_LENGTH = 16  # up to here products in letters are quicker than folded rows
DIRECT_LENGTH = 512  # up to here the scores are kept for the backward pass
# From above here block by block: on one core that is quicker, and several work together on the
# larger products of a chunk.
_BLOCKED_LENGTH = {"one core": 256, "several": 2048}


def fast(
    q_btkgh: jax.Array,
    k_bskh: jax.Array,
    v_bskh: jax.Array,
    mask: Mask,
    scale: float,
    sink_kg: jax.Array | None = None,
) -> jax.Array:
    """z_btkgh of `core.reference`, without the weights.

    The sum of the exponentials divides z and not the weights, which saves a pass over [t, s].
    Queries go in chunks where a chunk can then skip keys that none of its queries sees, and always
    above `DIRECT_LENGTH`, where a chunk's scores are made again in the backward pass. Long
    sequences on a CPU go block by block.
    """
    length = q_btkgh.shape[1]
    q_btkgh = q_btkgh * scale
    if in_blocks(length):
        return blocked(q_btkgh, k_bskh, v_bskh, mask, sink_kg).astype(v_bskh.dtype)
    visible_ts = mask.table(length)
    if length <= SHORT_LENGTH:
        return _letters(q_btkgh, k_bskh, v_bskh, visible_ts, sink_kg).astype(v_bskh.dtype)
    k_bksh, v_bksh = k_bskh.transpose(0, 2, 1, 3), v_bskh.transpose(0, 2, 1, 3)
    step, chunks = chunk_length(visible_ts), []
    for start in range(0, length, step):
        rows = visible_ts[start : start + step]
        read = np.flatnonzero(rows.any(axis=0)) if rows.any() else np.arange(1)
        chunk: Callable[..., jax.Array] = functools.partial(
            _folded, mask=mask, visible=rows[:, read], start=start, read=read, sink_kg=sink_kg
        )
        chunk = jax.checkpoint(chunk) if length > DIRECT_LENGTH else chunk
        q = q_btkgh[:, start : start + step]
        chunks.append(chunk(q, _take(k_bksh, read), _take(v_bksh, read)))
    z_bktgh = jnp.concatenate(chunks, axis=2) if len(chunks) > 1 else chunks[0]
    return z_bktgh.transpose(0, 2, 1, 3, 4).astype(v_bskh.dtype)


def in_blocks(length: int) -> bool:
    """Whether `fast` takes `blocked` for sequences of this length, in this process."""
    one = len(host.cores()) == 1
    least = _BLOCKED_LENGTH["one core" if one else "several"]
    return jax.default_backend() == "cpu" and length > least


def chunk_length(visible_ts: np.ndarray) -> int:
    """Queries that `fast` takes at a time under this table."""
    length = len(visible_ts)
    if length > DIRECT_LENGTH:
        return max(128, length // 32)  # at most 32 chunks: compile time grows with their number
    early, ever = visible_ts[: length // 2].any(axis=0), visible_ts.any(axis=0)
    return max(64, length // 4) if early.sum() < ever.sum() else length


def _letters(
    q_btkgh: jax.Array,
    k_bskh: jax.Array,
    v_bskh: jax.Array,
    visible: np.ndarray,
    sink_kg: jax.Array | None,
) -> jax.Array:
    """z_btkgh as written: in a short sequence making rows costs more than it saves."""
    f32 = jnp.float32
    scores_bktgs = jnp.einsum("btkgh,bskh->bktgs", q_btkgh, k_bskh, preferred_element_type=f32)
    seen = None if visible.all() else jnp.asarray(visible)[None, None, :, None, :]
    sink = None if sink_kg is None else sink_kg[None, :, None]
    exp_bktgs, total_bktg = _exp(scores_bktgs, seen, bool(visible.any(axis=1).all()), sink)
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
    sink_kg: jax.Array | None,
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
    sink = None if sink_kg is None else jnp.tile(sink_kg, (1, t))[None]
    exp_bkrs, total_bkr = _exp(scores_bkrs, seen, bool(visible.any(axis=1).all()), sink)
    z_bkrh = jax.lax.dot_general(
        exp_bkrs.astype(v_bksh.dtype), v_bksh, (((3,), (2,)), batch), preferred_element_type=f32
    )
    return (z_bkrh / total_bkr[..., None]).reshape(b, k, t, g, -1)


def _exp(
    scores: jax.Array, seen: jax.Array | None, all_see: bool, sink: jax.Array | None
) -> tuple[jax.Array, jax.Array]:
    """Numerator and denominator of the softmax over the last axis.

    The largest score is taken off first, so that no exponential overflows. `seen` is None where
    every key is visible; without `all_see` a row that sees nothing becomes 0 over 1. `sink` is a
    logit of each row that is in the denominator alone.
    """
    scores = scores if seen is None else jnp.where(seen, scores, LOWEST)
    largest = scores.max(axis=-1)
    largest = largest if sink is None else jnp.maximum(largest, sink)
    largest = jax.lax.stop_gradient(largest)
    exp = jnp.exp(scores - largest[..., None])
    exp = exp if seen is None or all_see else jnp.where(seen, exp, 0.0)
    total = exp.sum(axis=-1) if sink is None else exp.sum(axis=-1) + jnp.exp(sink - largest)
    return exp, total if all_see else jnp.where(total > 0, total, 1.0)


def _take(x_bksh: jax.Array, read: np.ndarray) -> jax.Array:
    """Positions `read`, ascending, of axis s as slices: a window beside sinks is two of them."""
    runs = np.split(read, np.flatnonzero(np.diff(read) != 1) + 1)
    parts = [x_bksh[:, :, run[0] : run[-1] + 1] for run in runs]
    return jnp.concatenate(parts, axis=2) if len(parts) > 1 else parts[0]

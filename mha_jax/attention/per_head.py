"""What is done with each head by itself."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def rms(x: jax.Array, scale: jax.Array) -> jax.Array:
    """Divide the last axis by its root mean square, in float32 (Zhang and Sennrich 2019)."""
    x32 = x.astype(jnp.float32)
    x32 = x32 * jax.lax.rsqrt(jnp.mean(jnp.square(x32), axis=-1, keepdims=True) + 1e-6)
    return (x32 * scale.reshape((1,) * (x.ndim - 1) + (-1,))).astype(x.dtype)


def gated(heads: jax.Array, gate: jax.Array | None) -> jax.Array:
    """Rows of heads times the sigmoid, in float32, of the rows of their gate (Qiu et al. 2025)."""
    if gate is None:
        return heads
    return heads * jax.nn.sigmoid(gate.astype(jnp.float32)).astype(heads.dtype)


def head_out(heads_btnh: jax.Array, wo: jax.Array | None) -> jax.Array:
    """What each head adds to the output, [b, t, n, width]: its slice of wo [n*h, d] applied to it.

    Without wo (None) its own columns, and zeros elsewhere; width is d or n*h.
    """
    b, t, n, h = heads_btnh.shape
    if wo is None:
        own_nn = jnp.eye(n, dtype=heads_btnh.dtype)
        placed_btnnh = heads_btnh[:, :, :, None] * own_nn[None, None, :, :, None]
        return placed_btnnh.reshape(b, t, n, n * h)
    wo_nhd = wo.reshape(n, h, wo.shape[1]).astype(heads_btnh.dtype)
    return jnp.einsum("btnh,nhd->btnd", heads_btnh, wo_nhd)

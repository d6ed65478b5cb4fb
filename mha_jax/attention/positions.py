"""Rotary positions (Su et al. 2021, RoFormer), in the half-split layout of GPT-NeoX and Llama."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

BASE = 10_000.0  # wavelengths run from 2 pi to 2 pi * BASE positions


def rope(x: jax.Array, axis: int = 1) -> jax.Array:
    """Rotate pair (i, i + h/2) of the last axis by position * BASE^(-2i/h); same shape and dtype.

    Args:
      x: queries or keys; the last axis is h.
      axis: the axis of positions, counted from 0.

    Raises:
      ValueError: h is odd.
    """
    h = x.shape[-1]
    if h % 2:
        raise ValueError(f"rotary positions need an even d_head, not {h}")
    shape = [1] * (x.ndim - 1) + [h // 2]
    shape[axis] = x.shape[axis]
    angle = np.arange(x.shape[axis])[:, None] * BASE ** (-np.arange(0, h, 2) / h)
    cos = jnp.asarray(np.cos(angle).reshape(shape), jnp.float32)
    sin = jnp.asarray(np.sin(angle).reshape(shape), jnp.float32)
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    turned = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
    return turned.astype(x.dtype)

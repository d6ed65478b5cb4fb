"""Rotary positions (Su et al. 2021, RoFormer), in the half-split layout of GPT-NeoX and Llama."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

BASE = 10_000.0  # wavelengths run from 2 pi to 2 pi * BASE positions


def rope(
    x: jax.Array, axis: int = 1, *, at: jax.Array | None = None, n_positions: int | None = None
) -> jax.Array:
    """Rotate pair (i, i + h/2) of the last axis by position * BASE^(-2i/h); same shape and dtype.

    Args:
      x: queries or keys; the last axis is h.
      axis: the axis of positions, counted from 0.
      at: the positions, int, of x's axes up to `axis`; None: 0, 1, 2, ...
      n_positions: with `at`, how many there can be. Angles are of float64: in float32 those of
        late positions would be off.

    Raises:
      ValueError: h is odd.
    """
    h = x.shape[-1]
    if h % 2:
        raise ValueError(f"rotary positions need an even d_head, not {h}")
    n = x.shape[axis] if at is None else n_positions
    assert n is not None
    angle = np.arange(n)[:, None] * BASE ** (-np.arange(0, h, 2) / h)
    tables = (jnp.asarray(f(angle), jnp.float32) for f in (np.cos, np.sin))
    if at is None:
        shape = [1] * (x.ndim - 1) + [h // 2]
        shape[axis] = n
        cos, sin = (table.reshape(shape) for table in tables)
    else:
        shape = [*at.shape, *[1] * (x.ndim - 1 - at.ndim), h // 2]
        cos, sin = (table[at].reshape(shape) for table in tables)
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    turned = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
    return turned.astype(x.dtype)

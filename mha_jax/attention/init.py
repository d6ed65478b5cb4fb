"""Initial weights, each a function of (key, path, shape) alone.

Nothing is split in sequence, so a parameter keeps its values when another one is added, removed or
reshaped: two models that differ in one switch start from the same weights everywhere else.
"""

from __future__ import annotations

import zlib

import jax
import jax.numpy as jnp


def fold(key: jax.Array, name: str) -> jax.Array:
    """The key of the parameter or module `name` below the owner of `key`."""
    return jax.random.fold_in(key, zlib.crc32(name.encode()))


def normal(
    key: jax.Array, name: str, shape: tuple[int, ...], fan_in: int | None = None
) -> jax.Array:
    """Normal draw of standard deviation fan_in^-0.5, float32; fan_in=None: the first axis."""
    std = (shape[0] if fan_in is None else fan_in) ** -0.5
    return std * jax.random.normal(fold(key, name), shape, jnp.float32)

"""Randomness by name and step: no key is split in sequence, so resume needs no random state."""

from __future__ import annotations

import zlib

import jax


def stream(seed: jax.typing.ArrayLike, name: str, step: jax.typing.ArrayLike = 0) -> jax.Array:
    """The key of a named stream at a step.

    Args:
      seed: scalar integer; may be traced.
      name: which use of randomness ("train", "validation", ...); other names do not shift this one.
      step: scalar integer; may be traced.
    """
    key = jax.random.fold_in(jax.random.key(seed), zlib.crc32(name.encode()))
    return jax.random.fold_in(key, step)

"""Random numbers for the tasks' `sample`: cheap inside a compiled step, and cheap to compile.

On a CPU each call of a `jax.random` function costs more than the few numbers it returns, so a task
takes all its random bits in one. Draws are flat and reshaped after: for [b, t, c] that compiles in
a third of the time and gives the same numbers. A permutation is ranks by comparison of all pairs,
which for rows of 32 takes a third of the time of argsort.

The first rows of a draw do not depend on how many rows there are.
"""

from __future__ import annotations

import math
from typing import Any


def columns(key: Any, n: int, *widths: int) -> list[Any]:
    """One draw of random words, cut into columns: uint32 [n, width] for each width."""
    import jax

    bits = jax.random.bits(key, (n * sum(widths),)).reshape(n, sum(widths))
    stops = [sum(widths[: i + 1]) for i in range(len(widths))]
    return [bits[:, stop - width : stop] for stop, width in zip(stops, widths, strict=True)]


def normal(key: Any, *shape: int) -> Any:
    """Standard normal numbers, float32 of the shape."""
    import jax

    return jax.random.normal(key, (math.prod(shape),)).reshape(shape)


def integers(bits: Any, high: Any) -> Any:
    """Integers of [0, high) as int32, one from each uint32; high is a number, or one for each.

    A value is more likely than another by a factor of at most 1 + high / 2^32.
    """
    import jax.numpy as jnp

    return (bits % jnp.uint32(high)).astype(jnp.int32)


def uniform(bits: Any) -> Any:
    """Float32 of [0, 1), one from each uint32: multiples of 2^-24, none of which rounds to 1."""
    import jax.numpy as jnp

    return (bits >> 8).astype(jnp.float32) * 2.0**-24


def exponential(bits: Any) -> Any:
    """Exponential numbers of rate 1, float32, one from each uint32."""
    import jax.numpy as jnp

    return -jnp.log1p(-uniform(bits))


def ranks(bits: Any, count: int | None = None) -> Any:
    """Random permutations of 0..m-1 along the last axis, or their first `count` entries, as int32.

    bits: uint32 [..., m] -> int32 [..., count]. The low bits are replaced by the index, so no two
    entries tie.
    """
    import jax
    import jax.numpy as jnp

    shift = (bits.shape[-1] - 1).bit_length()
    index = jax.lax.broadcasted_iota(jnp.uint32, bits.shape, bits.ndim - 1)
    words = (bits >> shift << shift) | index
    return jnp.sum(words[..., None, :] < words[..., :count, None], axis=-1, dtype=jnp.int32)

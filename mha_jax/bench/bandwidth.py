"""How fast this machine reads memory: what decoding cannot be faster than."""

from __future__ import annotations

import time

import jax
import jax.numpy as jnp

_BYTES = 2**28  # far more than a cache of the processor holds


def read_bytes_per_s(n: int = 5) -> float:
    """Bytes a second of the best of `n` sums over 256 MiB of float32."""
    x = jnp.ones(_BYTES // 4, jnp.float32)
    total = jax.jit(jnp.sum)
    total(x).block_until_ready()
    seconds = []
    for _ in range(n):
        start = time.perf_counter()
        total(x).block_until_ready()
        seconds.append(time.perf_counter() - start)
    return _BYTES / min(seconds)

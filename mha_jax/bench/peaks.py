"""What the device at hand can do at best: products and bytes a second, told by its maker and
measured in the same process."""

from __future__ import annotations

import time
from typing import Any

import jax
import jax.numpy as jnp

from mha_jax.accelerators import ACCELERATORS, BY_KIND
from mha_jax.bench import bandwidth

_N_ON_CPU, _N_ELSEWHERE = 2048, 8192  # rows of a square matrix: 0.1 s and 2 ms of a fast one


def flops_per_s(dtype: Any, reps: int = 5) -> float:
    """Operations a second of the best of `reps` products of square matrices."""
    n = _N_ON_CPU if jax.default_backend() == "cpu" else _N_ELSEWHERE
    x = jax.random.normal(jax.random.key(0), (n, n), dtype)
    product = jax.jit(jnp.matmul)
    product(x, x).block_until_ready()
    seconds = []
    for _ in range(reps):
        start = time.perf_counter()
        product(x, x).block_until_ready()
        seconds.append(time.perf_counter() - start)
    return 2 * n**3 / min(seconds)


def peaks() -> dict[str, Any]:
    """What shares are taken of, `flops_per_s` and `bytes_per_s`, and where they are from: the table
    of accelerators, or where it does not know this one, what was measured. `measured` has that in
    any case.
    """
    measured = {
        "float32_flops_per_s": flops_per_s(jnp.float32),
        "bfloat16_flops_per_s": flops_per_s(jnp.bfloat16),
        "bytes_per_s": bandwidth.read_bytes_per_s(),
    }
    name = BY_KIND.get(jax.devices()[0].device_kind)
    if name is None:
        products = max(measured["float32_flops_per_s"], measured["bfloat16_flops_per_s"])
        rates = products, measured["bytes_per_s"]
        source = "a product and a read, measured here"
    else:
        rates = ACCELERATORS[name].flops_per_s, ACCELERATORS[name].bytes_per_s
        source = f"{name}: {ACCELERATORS[name].source}"
    return {
        "flops_per_s": rates[0],
        "bytes_per_s": rates[1],
        "source": source,
        "measured": measured,
    }

"""Our side of the attention benchmark: `attention.fast`, as every layer uses it.

Handlers, the same as those of the peers:

    build    compiles z and its gradients of the arrays q [b, t, n, h], k and v [b, t, k, h], dz of
             `read`, and writes z, dq, dk and dv to `write`; tells the temporary bytes, where a
             compiled program has them
    steps    n times the same; what `side.timed` tells
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from mha_jax.attention import core, fast
from mha_jax.bench.side import Handlers, timed

_built: dict[str, Any] = {}


def attend(q_btnh: jax.Array, k_bskh: jax.Array, v_bskh: jax.Array) -> jax.Array:
    """z [b, t, n, h], causal."""
    b, t, n, h = q_btnh.shape
    k = k_bskh.shape[2]
    q_btkgh = q_btnh.reshape(b, t, k, n // k, h)
    return fast.fast(q_btkgh, k_bskh, v_bskh, core.Mask(), h**-0.5).reshape(q_btnh.shape)


def build_of(form: Callable[..., jax.Array], read: str, write: str) -> dict[str, Any]:
    """The handler `build` of an attention in JAX."""
    with np.load(read) as file:
        arrays = [jax.device_put(file[name]) for name in ("q", "k", "v", "dz")]

    def both(q: jax.Array, k: jax.Array, v: jax.Array, dz: jax.Array) -> tuple[jax.Array, ...]:
        z, pull = jax.vjp(form, q, k, v)
        return z, *pull(dz)

    compiled = jax.jit(both).lower(*arrays).compile()
    results = compiled(*arrays)
    np.savez(write, **dict(zip(("z", "dq", "dk", "dv"), results, strict=True)))
    _built.update(compiled=compiled, arrays=arrays)
    memory: Any = compiled.memory_analysis()
    return {"temp_bytes": memory.temp_size_in_bytes}


def build(read: str, write: str) -> dict[str, Any]:
    """Of `attend`."""
    return build_of(attend, read, write)


def steps(n: int) -> dict[str, float]:
    """n forward and backward passes."""

    def work() -> None:
        for _ in range(n):
            jax.block_until_ready(_built["compiled"](*_built["arrays"]))

    return timed(work)


HANDLERS: Handlers = {"build": build, "steps": steps}

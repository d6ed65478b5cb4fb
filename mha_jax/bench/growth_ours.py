"""A training step by itself: how long it takes and what memory its program has. Behind
`growth.py`.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from mha_jax import train
from mha_jax.bench.side import Handlers, timed
from mha_jax.config import run_from_json

_built: list[tuple[Any, list[Any]]] = []


def build(run: dict[str, Any], lanes: int) -> dict[str, Any]:
    """Compiles a step of `lanes` runs in one dispatch.

    Returns:
      `at`, by which `step` finds it, and the program's `temp_bytes` beside its `state_bytes`.
    """
    one = run_from_json(run)
    program = train.Program.of(one.static)
    task = one.static.task
    constants = jax.device_put(task.constants("train"))
    seeds = jnp.arange(lanes, dtype=jnp.uint32)
    hypers = train.HyperArrays(seeds, seeds, *(jnp.full(lanes, x) for x in (1e-3, 0.1)))
    state = jax.jit(jax.vmap(lambda h: train.init(program, h)))(hypers)

    def chunk(state: train.State, hypers: train.HyperArrays, constants: Any, n: Any) -> Any:
        return train.train_chunk(program, state, hypers, constants, n)

    over = jax.vmap(chunk, in_axes=(0, 0, None, None))
    arguments = (hypers, constants, jnp.int32(1))
    compiled = jax.jit(over, donate_argnums=0).lower(state, *arguments).compile()
    memory = compiled.memory_analysis()
    assert memory is not None
    _built.append((compiled, [jax.block_until_ready(compiled(state, *arguments)), *arguments]))
    return {
        "at": len(_built) - 1,
        "temp_bytes": memory.temp_size_in_bytes,
        "state_bytes": memory.output_size_in_bytes,
    }


def step(at: int) -> dict[str, float]:
    """One step of every lane."""
    compiled, arguments = _built[at]

    def work() -> None:
        arguments[0] = jax.block_until_ready(compiled(*arguments))

    return timed(work)


HANDLERS: Handlers = {"build": build, "step": step}

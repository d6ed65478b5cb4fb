"""How fast a model decodes, with a cache that is full but for the next tokens."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

import jax
import jax.numpy as jnp

from mha_jax.decode import Decoder
from mha_jax.train import Program

STEPS = 16  # tokens of one dispatch
_REPS = 3


class Full:
    """A decoder whose cache has room for `capacity` tokens of each of `b` sequences and is asked
    for the last ones. What stands in a slot does not change what a step costs.
    """

    def __init__(self, decoder: Decoder, capacity: int, b: int = 1):
        self.n = min(STEPS, capacity - 1)
        self._decoder, self._state = decoder, decoder.prefill([[0]] * b, capacity)

    def step_s(self) -> float:
        """Seconds of a step, over one dispatch; the first compiles."""
        length_b = jnp.full_like(self._state.length_b, self._state.capacity - self.n)
        state = dataclasses.replace(self._state, length_b=length_b)
        start = time.perf_counter()
        _, self._state = self._decoder.generate(state, self.n)
        jax.block_until_ready(self._state)
        return (time.perf_counter() - start) / self.n


def of(program: Program, params: Any) -> dict[str, float | int | None]:
    """What `timing.csv` says of a run: tokens a second at the length of its task, and the bytes of
    that cache; None of a task or model that does not decode.

    The fastest of a few dispatches, compilation apart, which happens once for each program.
    """
    told: dict[str, float | int | None] = {"decode_tokens_per_s": None, "decode_kv_bytes": None}
    length = program.spec.length
    try:
        decoder = Decoder(program, params)
    except ValueError:
        return told
    if length < 2:
        return told
    full = Full(decoder, length)
    full.step_s()
    told["decode_tokens_per_s"] = 1 / min(full.step_s() for _ in range(_REPS))
    told["decode_kv_bytes"] = decoder.cache_bytes(1, length)
    return told

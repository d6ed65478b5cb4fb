"""Our side of the decoding benchmark: `decode.Decoder`, whose loop over tokens is on the device.

Handlers, of which the peers have the first three:

    build    makes the model of a run, and writes its parameters, or reads them; a cache of
             `capacity` for b sequences
    tokens   reads prompts and makes n tokens, the likeliest of each step; writes `tokens` [b, n],
             and the logits [b, v] after the last
    steps    n tokens at the end of the cache; what `side.timed` tells

and, of our own,

    bandwidth    bytes a second that this process reads memory with
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from mha_jax.bench import bandwidth
from mha_jax.bench.side import Handlers, timed
from mha_jax.config import run_from_json
from mha_jax.decode import Decoder
from mha_jax.train import Program

_built: dict[str, Any] = {}


def build(run: dict[str, Any], b: int, capacity: int, write: str) -> dict[str, Any]:
    """Args:
    run: the JSON of a `config.Run`.
    b: sequences.
    capacity: tokens that each has room for.
    write: an .npz file of the parameters under their paths; "": none.
    """
    one = run_from_json(run)
    program = Program.of(one.static)
    params = jax.jit(program.model.init)(jax.random.key(one.hypers.seed))
    if write:
        leaves = jax.tree_util.tree_leaves_with_path(params)
        np.savez(write, **{"/".join(str(x.key) for x in at): leaf for at, leaf in leaves})
    decoder = Decoder(program, params)
    state = decoder.prefill([[0]] * b, capacity)
    _built.update(decoder=decoder, state=state, b=b, capacity=capacity)
    return {"bytes_read": decoder.bytes_read_per_step(b, capacity)}


def tokens(prompts: list[list[int]], n: int, write: str) -> dict[str, Any]:
    """Made by the program that is timed, if it is timed with the same n."""
    decoder = _built["decoder"]
    made, state = decoder.generate(decoder.prefill(prompts, _built["capacity"]), n)
    np.savez(write, tokens=made, logits=state.logits_bv)
    return {}


def steps(n: int) -> dict[str, float]:
    """The last n tokens that the cache has room for: each step reads all of it."""
    length_b = jnp.full(_built["b"], _built["capacity"] - n, jnp.int32)
    state = dataclasses.replace(_built["state"], length_b=length_b)
    jax.block_until_ready(state)

    def work() -> None:
        _, _built["state"] = _built["decoder"].generate(state, n)
        jax.block_until_ready(_built["state"])

    return timed(work)


def read_bytes() -> dict[str, Any]:
    """Of one probe."""
    return {"bytes_per_s": bandwidth.read_bytes_per_s(1)}


HANDLERS: Handlers = {"build": build, "tokens": tokens, "steps": steps, "bandwidth": read_bytes}

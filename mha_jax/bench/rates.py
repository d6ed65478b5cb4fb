"""How fast the device at hand trains and decodes, as a share of the roofline: the least time that
its peaks allow for the operations and bytes that the cost model counts."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Any

import jax

from mha_jax import cost
from mha_jax.config import Hypers, StaticConfig
from mha_jax.decode import Decoder
from mha_jax.decode_speed import Full
from mha_jax.group import Group
from mha_jax.train import Program

_REPS = 5
_CHUNK_S = 1.0  # a chunk of training steps takes about as long


def training(static: StaticConfig, lanes: int, peaks: Mapping[str, Any]) -> dict[str, Any]:
    """Training steps of `lanes` runs in one dispatch.

    Args:
      static: of the runs.
      lanes: vmapped.
      peaks: as `peaks.peaks` tells them.

    Returns:
      `steps_per_s` of every lane, and `models_steps_per_s` of all together; the share of the peak
      in products, three forward passes a step.
    """
    group = Group(static, lanes=lanes, mode="vmap")
    hypers = group.hypers([Hypers(seed, seed, 1e-3, 0.0) for seed in range(lanes)])
    state = group.train_chunk(group.init(hypers), hypers, 1)  # compiles
    jax.block_until_ready(state)
    n, seconds = 1, list[float]()
    while len(seconds) < _REPS:
        start = time.perf_counter()
        state = group.train_chunk(state, hypers, n)
        jax.block_until_ready(state)
        took = time.perf_counter() - start
        if (
            took < _CHUNK_S / 2 and not seconds
        ):  # too short to be timed, or paid for by a cold start
            n *= 4
            continue
        seconds.append(took / n)
    step_s = statistics.median(seconds)
    tokens = static.train.batch_size * static.task.spec.length
    flops = 3 * cost.flops_per_token(static) * tokens * lanes
    return {
        "name": f"train, {lanes} lane{'s' * (lanes > 1)}, {static.model.compute_dtype}",
        "lanes": lanes,
        "step_ms": step_s * 1e3,
        "steps_per_s": 1 / step_s,
        "models_steps_per_s": lanes / step_s,
        "flops_per_s": flops / step_s,
        "share_of_peak": flops / step_s / peaks["flops_per_s"],
        "spread": max(seconds) / min(seconds),
        "compile_s": group.compile_s,
    }


def decoding(
    static: StaticConfig, context: int, batches: Sequence[int], peaks: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Decode steps with a full cache, for each size of a batch.

    Args:
      static: of a run whose task decodes.
      context: tokens that a sequence has room for.
      batches: sequences that are decoded together.
      peaks: as `peaks.peaks` tells them.
    """
    program = Program.of(static)
    decoder = Decoder(program, jax.jit(program.model.init)(jax.random.key(0)))
    rows = []
    for b in batches:
        full = Full(decoder, context, b)
        full.step_s()  # compiles
        seconds = [full.step_s() for _ in range(_REPS)]
        step_s, read = statistics.median(seconds), decoder.bytes_read_per_step(b, context)
        row = {"name": f"decode, batch {b}, context {context}", "batch": b, "context": context}
        row |= {"step_ms": step_s * 1e3, "tokens_per_s": b / step_s, "bytes_read": read}
        row |= {"bytes_per_s": read / step_s, "spread": max(seconds) / min(seconds)}
        rows.append({**row, "share_of_peak": read / step_s / peaks["bytes_per_s"]})
    return rows

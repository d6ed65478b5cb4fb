"""Compiles every program of a run ahead of time, for devices that need not be there, and reads off
what the compiler knows: memory, operations, bytes.

The programs are those that `Group` and `Decoder` dispatch, lowered with shapes in place of arrays.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import SingleDeviceSharding

from mha_jax import decode_speed, kernel_choice, programs, token_loop
from mha_jax.config import StaticConfig
from mha_jax.decode import Decoder
from mha_jax.fits import Compiled, Cost
from mha_jax.placement import Placement, lanes_that_fit, n_lanes
from mha_jax.sampling import Sampling
from mha_jax.topology import LOCAL, Topology
from mha_jax.train import Program

Lower = Callable[[], Any]  # gives a jax.stages.Lowered
_LONGEST = 300  # characters of what a compiler says


class Compiler:
    """Compiles; a program that it has compiled before is not compiled again."""

    def __init__(self) -> None:
        self._known: dict[str, Cost] = {}

    def __call__(self, name: str, lower: Lower) -> Compiled:
        """What becomes of a program.

        Args:
          name: of it.
          lower: makes its `jax.stages.Lowered`.
        """
        start = time.perf_counter()
        try:
            lowered = lower()
            digest = hashlib.sha256(lowered.as_text().encode()).hexdigest()
            known = self._known.get(digest)
            if known is None:
                known = _cost(lowered.compile(), start)
                self._known[digest] = dataclasses.replace(known, compile_s=0.0)
            return Compiled(name, known)
        except Exception as error:  # compilers refuse in many ways, and each is told
            line = " ".join(f"{type(error).__name__}: {error}".split())
            return Compiled(name, None, line[:_LONGEST])


def _cost(compiled: Any, start: float) -> Cost:
    seconds = time.perf_counter() - start
    memory, told = compiled.memory_analysis(), compiled.cost_analysis() or {}
    arguments, temporaries = memory.argument_size_in_bytes, memory.temp_size_in_bytes
    outputs, code = memory.output_size_in_bytes, memory.generated_code_size_in_bytes
    peak = arguments + temporaries + outputs + code - memory.alias_size_in_bytes
    sizes = arguments, temporaries, outputs, code, peak
    return Cost(*sizes, told.get("flops"), told.get("bytes accessed"), seconds)


class Spread(NamedTuple):
    """How the runs of a group are carried."""

    lanes: int  # of a dispatch
    mode: str  # as `placement.lane_mode` says
    devices: Sequence[Any]  # over which lanes are split
    kernel: str  # of attention


def spread(static: StaticConfig, n_runs: int, where: Topology) -> Spread:
    """How `n_runs` runs are carried there, by the rules of `runner.run_group`.

    Raises:
      ValueError: the kernel that the config names cannot run there.
    """
    devices, mode = where.devices[:n_runs], where.lane_mode
    most = lanes_that_fit(static, where.memory_bytes)
    if where.name in LOCAL:
        kernel = kernel_choice.choose(static, devices[0]).used
    else:
        kernel = kernel_choice.expected(static, devices[0].platform)
    return Spread(n_lanes(n_runs, mode, len(devices), most), mode, devices, kernel)


def lowerings(static: StaticConfig, how: Spread) -> Iterator[tuple[str, Lower]]:
    """Every program of a run, by name, and what lowers it.

    Raises:
      ValueError: a corpus that cannot be read.
    """
    program, documents = Program.of(static, how.kernel), static.task.documents()
    placement, functions = (
        Placement(how.lanes, how.mode, how.devices),
        programs.of(program, documents),
    )
    # The device that jax would take by itself is not named: as in a run.
    absent = how.devices[0] != jax.devices()[0]
    alone = SingleDeviceSharding(how.devices[0]) if absent else None
    split, everywhere = placement.split or alone, placement.everywhere or alone
    seen = set()
    for name, call, args in programs.arguments(program, documents):
        one = functions[name]
        shapes = [
            _like(x, split, (how.lanes,)) if i < one.mapped else _like(x, everywhere)
            for i, x in enumerate(args)
        ]
        # Where the draws of a task have constants of one shape, they share a program.
        key = name, tuple((x.shape, x.dtype) for x in jax.tree.leaves(shapes))
        if key not in seen:
            seen.add(key)
            lower = functools.partial(placement.jitted(one, len(args)).lower, *shapes)
            yield f"{name} {call}".strip(), lower
    yield from _of_decoding(program, alone)


def _of_decoding(
    program: Program, where: SingleDeviceSharding | None
) -> Iterator[tuple[str, Lower]]:
    """A prompt that fills the context of one sequence, and the loop over new tokens with which
    `decode_speed` times a run; none of a task or model that does not decode.
    """
    length, n_outputs = program.spec.length, program.spec.output_size
    params = jax.eval_shape(program.model.init, jax.random.key(0))
    try:
        Decoder(program, params)
    except ValueError:
        return
    if length < 2:
        return

    def given(dtype: Any, *shape: int) -> Any:
        return _like(jax.ShapeDtypeStruct(shape, dtype), where)

    kept = token_loop.cache_shapes(program, 1, length)
    logits, over = given(jnp.float32, 1, n_outputs), given(bool, 1)
    state = token_loop.State(_like(kept, where), given(jnp.int32, 1), logits, over, length)
    prompt = _like(params, where), state, given(jnp.int32, 1, length), given(jnp.int32, 1)
    yield "decode prompt", functools.partial(token_loop.read.lower, program, *prompt)
    loop = program, min(decode_speed.STEPS, length - 1), Sampling()
    args = _like(params, where), state, given(jnp.uint32), given(jnp.int32)
    yield "decode loop", functools.partial(token_loop.generate.lower, *loop, *args)


def _like(tree: Any, where: Any, lanes: tuple[int, ...] = ()) -> Any:
    """Shapes of a tree on devices, with a lane axis in front."""

    def of(x: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((*lanes, *x.shape), x.dtype, sharding=where)

    return jax.tree.map(of, tree)

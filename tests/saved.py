"""Runs with checkpoints, as the driver saves them, that no training has touched."""

import functools
import json
from pathlib import Path
from typing import Any

import jax
import numpy as np

import mha_jax
from mha_jax import config, train
from mha_jax.checkpoint import Checkpoints
from mha_jax.run import LoadedRun
from tests.synthetic import make_run

STEPS = (10, 20, 30)  # the checkpoints of a saved run; 20 is marked best


@functools.cache
def compiled(spec: config.StaticConfig) -> tuple[train.Program, Any]:
    """A program, and its init as a function of the seed."""
    program = train.Program.of(spec)
    init = jax.jit(lambda seed: train.init(program, train.HyperArrays(seed, 0, 1e-3, 0.0)))
    return program, init


def program_and_state(spec: config.StaticConfig, seed: int) -> tuple[train.Program, train.State]:
    """Parameters that no training has touched: they depend on the seed."""
    program, init = compiled(spec)
    return program, init(seed)


def saved(root: Path, spec: config.StaticConfig, steps: tuple[int, ...] = STEPS) -> LoadedRun:
    """A run with checkpoints as the driver saves them; the parameters are those of seed = step."""
    return with_states(root, spec, {step: program_and_state(spec, step)[1] for step in steps})


def with_states(root: Path, spec: config.StaticConfig, states: dict[int, train.State]) -> LoadedRun:
    """A run with a checkpoint of each state; step 20 is marked best."""
    directory = make_run(root, spec, 0.5)
    run_hash = json.loads((directory / "config.json").read_text())["hash"]
    checkpoints = Checkpoints(directory, keep=5, config_hash=run_hash)
    for step, state in states.items():
        lane = jax.tree.map(lambda x: np.asarray(x)[None], state)
        checkpoints.save(step, lane, records_bytes=0, metric=0.5, best=step == 20)
    checkpoints.close()
    return mha_jax.load_run(directory)

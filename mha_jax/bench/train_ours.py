"""Our side of the training benchmarks: `Group`, as a run of a sweep uses it.

Handlers, the same as those of the peers in `peers/`:

    build    makes `n_models` runs of a config, and writes what a peer needs to take their steps
    losses   takes n steps of the first run; the loss of each, and the norm of its gradient
    steps    n steps of every run, one run after another; what `side.timed` tells

and one of its own:

    launch   compiles what some runs need before their first step; what `side.timed` tells
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from mha_jax import rng
from mha_jax.bench.side import Handlers, timed
from mha_jax.config import Hypers, Run, run_from_json
from mha_jax.group import Group

_built: dict[str, Any] = {}


def build(run: dict[str, Any], n_models: int, write: str, n_batches: int) -> dict[str, Any]:
    """Fresh runs that differ in their seeds; compiles the training step.

    Args:
      run: the JSON of a `config.Run`, whose initial parameters and batches are written.
      n_models: how many.
      write: an .npz file: parameters under "params/<path>", `inputs` and `targets` [batch, b, t] of
        the first steps; "": none.
      n_batches: of how many steps.
    """
    one = run_from_json(run)
    group = Group(one.static)
    seeds = range(one.hypers.seed, one.hypers.seed + n_models)
    hypers = [
        group.hypers([Hypers(s, one.hypers.data_seed, one.hypers.lr, one.hypers.weight_decay)])
        for s in seeds
    ]
    if write:
        np.savez(write, **_arrays(group, one, hypers[0], n_batches))
    warm = group.train_chunk(group.init(hypers[0]), hypers[0], 1)
    jax.block_until_ready(warm)
    _built.update(group=group, hypers=hypers, states=[group.init(h) for h in hypers])
    return {"compile_s": group.compile_s}


def _arrays(group: Group, run: Run, hypers: Any, n_batches: int) -> dict[str, Any]:
    params = jax.tree.map(lambda x: np.asarray(x[0]), group.init(hypers).params)
    arrays: dict[str, Any] = {
        "params/" + "/".join(str(key.key) for key in path): leaf
        for path, leaf in jax.tree_util.tree_leaves_with_path(params)
    }
    size = run.static.train.batch_size
    batches = [
        group.program.sample(
            rng.stream(run.hypers.data_seed, "train", step), group.constants["train"], size
        )
        for step in range(n_batches)
    ]
    if not all(bool((batch.loss_mask == 1).all()) for batch in batches):
        raise ValueError("the peers know no loss mask")
    arrays["inputs"] = np.stack([np.asarray(batch.inputs) for batch in batches])
    arrays["targets"] = np.stack([np.asarray(batch.targets[..., 0]) for batch in batches])
    return arrays


def losses(n: int) -> dict[str, Any]:
    """Of n steps of the first run, made by the program that is timed."""
    told: dict[str, list[float]] = {"losses": [], "grad_norms": []}
    for _ in range(n):
        group = _built["group"]
        state = group.train_chunk(_built["states"][0], _built["hypers"][0], 1)
        told["losses"].append(float(state.tally.loss[0]))
        told["grad_norms"].append(float(state.tally.grad_norm[0]))
        _built["states"][0] = group.emptied(state, [True])
    return told


def steps(n: int) -> dict[str, float]:
    """n steps of every run."""
    group, hypers, states = _built["group"], _built["hypers"], _built["states"]

    def work() -> None:
        for i, state in enumerate(states):
            states[i] = group.train_chunk(state, hypers[i], n)
        jax.block_until_ready(states)

    return timed(work)


def launch(runs: list[dict[str, Any]]) -> dict[str, float]:
    """One after another; what is compiled is run once."""

    def work() -> None:
        for run in map(run_from_json, runs):
            group = Group(run.static)
            hypers = group.hypers([run.hypers])
            state = group.init(hypers)
            group.evaluate(state, "validation")
            jax.block_until_ready(group.train_chunk(state, hypers, 1))

    return timed(work)


HANDLERS: Handlers = {"build": build, "losses": losses, "steps": steps, "launch": launch}

"""A model that solves `relations` by construction, one relation a head, and a run that holds it."""

import dataclasses
import functools
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from mha_jax import config, train
from mha_jax.analysis.constructed import Construction
from mha_jax.analysis.constructed_weights import model_spec, params
from mha_jax.run import LoadedRun
from tests.saved import compiled, program_and_state, with_states
from tests.synthetic import static

ROLES = ("prev", "class", "word", "delimiter")  # of head 0, 1, 2, 3
_SHARP = 3.0  # logit of the value that a head attends to: a loss at 0 would have no gradient


@functools.cache
def solved(
    n_kv_heads: int | None = None, useless: tuple[int, ...] = ()
) -> tuple[config.StaticConfig, Any]:
    """The static config, with small draws, and the parameters; what the `useless` heads write is
    not read by anything.
    """
    spec = static("relations", 4)
    task = spec.task.spec
    built = Construction(
        task, task.classes, (tuple({role: 1.0} for role in ROLES),), task.delimiters[0], n_kv_heads
    )
    tree = jax.tree.map(jnp.asarray, params(built))
    mixer, readout = tree["layers"]["0"]["mixer"], tree["readout"]["out"]
    d_head = model_spec(built).layers[0].d_head
    for head in useless:
        rows = slice(head * d_head, (head + 1) * d_head)
        mixer["wo"] = mixer["wo"].at[rows].set(0)
    readout["w"] = _SHARP * readout["w"]
    small = dataclasses.replace(
        spec.train, n_steps=100, batch_size=16, n_eval=128, n_test=128, n_probe=32
    )
    return dataclasses.replace(spec, model=model_spec(built), train=small), tree


def solved_run(
    root: Path, n_kv_heads: int | None = None, useless: tuple[int, ...] = ()
) -> LoadedRun:
    """The same as a run with one checkpoint, that of its last step."""
    spec, tree = solved(n_kv_heads, useless)
    _, state = program_and_state(spec, 0)
    assert jax.tree.map(jnp.shape, tree) == jax.tree.map(jnp.shape, state.params)
    return with_states(root, spec, {100: state._replace(step=jnp.int32(100), params=tree)})


def program_of(
    n_kv_heads: int | None = None, useless: tuple[int, ...] = ()
) -> tuple[train.Program, Any]:
    """The program and the parameters."""
    spec, tree = solved(n_kv_heads, useless)
    return compiled(spec)[0], tree

"""The parameters that a run begins with when it starts from another one: see `origin`.

Heads are chosen, and found alike, on the validation draw. What was made of what is written to
`start.json`.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from mha_jax import rng
from mha_jax.analysis import conversion, pruning, removal
from mha_jax.checkpoint import CheckpointError
from mha_jax.config import LayerSpec, Run, StaticConfig
from mha_jax.files import write_json_atomic
from mha_jax.importance import n_batches, under_masks, validation_batch
from mha_jax.run import LoadedRun, load_run
from mha_jax.train import Program


def begin(run: Run, directory: Path) -> Any:
    """The run's parameters at step 0, and `start.json` beside its config; None where the source
    has diverged, so that there are none.

    Args:
      run: one with a source.
      directory: its directory; that of the source lies beside it.

    Raises:
      ValueError: the source is not there, or has not come to its end.
    """
    start, source = run.static.start, _source(run, directory)
    assert start is not None
    if source.summary["status"] == "diverged":
        return None
    params, model = source.params(), source.run.static.model
    told: dict[str, Any] = {"source": source.directory.name}
    if start.keep:
        keep = _kept(source, run)
        params, model = removal.remove(params, model, keep)
        told["kept"] = keep
    if start.merge:
        alike = start.align or start.merge == "similar"
        pruned = dataclasses.replace(source.run.static, model=model)
        made = conversion.convert(
            params,
            model,
            [layer.n_kv_heads for layer in run.static.model.layers],
            start.merge,
            align=start.align,
            activations=_head_sums(pruned, params) if alike else None,
            key=rng.stream(run.hypers.seed, "start"),
        )
        params = made.params
        told |= {"groups": made.groups, "aligned": made.aligned}
    write_json_atomic(directory / "start.json", told)
    return params


def _source(run: Run, directory: Path) -> LoadedRun:
    wanted = run.source
    assert wanted is not None
    found = next(directory.resolve().parent.glob(f"*-{wanted.hash}"), None)
    if found is None:
        raise ValueError(f"the run that it starts from, {wanted.hash}, is not beside it")
    source = load_run(found)
    status = source.summary.get("status", "unfinished")
    if status == "diverged":
        return source
    if status != "done":
        raise ValueError(f"the run that it starts from, {found.name}, is {status}")
    try:
        step = source.step()
    except CheckpointError as error:
        raise ValueError(f"the run that it starts from cannot be read: {error}") from None
    if step != wanted.static.train.n_steps:
        raise ValueError(f"the run that it starts from, {found.name}, has no checkpoint of its end")
    return source


def _kept(source: LoadedRun, run: Run) -> list[list[int]]:
    """For each layer the query heads that stay, as `removal.remove` takes them."""
    start, static = run.static.start, source.run.static
    assert start is not None
    old, new = static.model.layers, run.static.model.layers
    if start.keep == "random":
        draw = np.random.default_rng(run.hypers.seed)
        of_heads = [draw.random(layer.n_heads) for layer in old]
        of_groups = [draw.random(layer.n_kv_heads) for layer in old]
    else:
        constants, params = static.task.constants("validation"), source.params()
        of_heads, of_groups = (
            under_masks(source.program, params, constants, of, start.keep)(pruning.masks([], old))
            for of in "nk"
        )
    return [_kept_of_layer(of_heads[i], of_groups[i], old[i], new[i]) for i in range(len(old))]


def _kept_of_layer(
    of_heads: np.ndarray, of_groups: np.ndarray, old: LayerSpec, new: LayerSpec
) -> list[int]:
    if new.n_heads == old.n_heads:
        return list(range(old.n_heads))
    g = old.queries_per_kv
    if new.queries_per_kv == g:  # whole groups go, and each is judged as a whole
        groups = np.sort(np.argsort(of_groups, kind="stable")[old.n_kv_heads - new.n_kv_heads :])
        return [int(k * g + i) for k in groups for i in range(g)]
    return removal.even([of_heads], [old], new.n_kv_heads, new.queries_per_kv)[0]


def _head_sums(static: StaticConfig, params: Any) -> Any:
    """The `conversion.head_sums` of every layer, on the sequences that `under_masks` takes."""
    constants, total = jax.device_put(static.task.constants("validation")), None
    of_batch = _alike(static)
    for i in range(n_batches(static)):
        found = of_batch(params, constants, jnp.int32(i))
        total = found if total is None else jax.tree.map(jnp.add, total, found)
    return jax.device_get(total)


@functools.lru_cache(maxsize=8)
def _alike(static: StaticConfig) -> Callable[..., Any]:
    program = Program.of(static)
    rope = static.model.positions == "rope"

    def of_batch(params: Any, constants: Any, i: Any) -> Any:
        def sums(stops: Any) -> Any:
            return conversion.head_sums(stops, rope=rope)

        inputs = validation_batch(program, constants, i).inputs
        return program.model.apply(params, inputs, probe=sums)[1]

    return jax.jit(of_batch)

"""The parameters that a run begins with when it starts from another one: see `origin`.

Heads are chosen, and found alike, on batches of the training split that no run was trained on. What
was made of what is written to `start.json`.
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

from mha_jax import examine, rng
from mha_jax.analysis import ablation, conversion, removal
from mha_jax.checkpoint import CheckpointError
from mha_jax.config import LayerSpec, Run, StaticConfig
from mha_jax.files import write_json_atomic
from mha_jax.run import LoadedRun, load_run
from mha_jax.train import Program

_BATCHES = 8  # of `examine.probe_size` sequences: at most 256


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
            activations=_head_sums(pruned, params, run.hypers.data_seed) if alike else None,
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
        params, seed = source.params(), run.hypers.data_seed
        of_heads, of_groups = (_importance(static, params, seed, start.keep, of) for of in "nk")
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


def _importance(
    static: StaticConfig, params: Any, data_seed: int, measure: str, of: str
) -> list[np.ndarray]:
    """For each layer the importance of its query heads (of="n") or kv heads ("k")."""
    rises = _summed(static, params, data_seed, _rises(static, measure, of))
    return [np.asarray(x, np.float64) for x in rises]


def _head_sums(static: StaticConfig, params: Any, data_seed: int) -> Any:
    """The `conversion.head_sums` of every layer."""
    return jax.device_get(_summed(static, params, data_seed, _alike(static)))


def _summed(static: StaticConfig, params: Any, data_seed: int, of_batch: Callable[..., Any]) -> Any:
    """A program's results, added over batches."""
    constants = jax.device_put(static.task.constants("train"))
    total = None
    for i in range(_BATCHES):
        found = of_batch(params, constants, jnp.uint32(data_seed), jnp.int32(i))
        total = found if total is None else jax.tree.map(jnp.add, total, found)
    return total


@functools.lru_cache(maxsize=8)
def _rises(static: StaticConfig, measure: str, of: str) -> Callable[..., Any]:
    program = Program.of(static)

    def of_batch(params: Any, constants: Any, data_seed: Any, i: Any) -> list[jax.Array]:
        batch = _batch(program, constants, data_seed, i)
        losses = examine.losses(program, params, batch)
        _, stops = program.model.apply(params, batch.inputs, probe=lambda stops: stops)
        if measure == "gradient":
            n_heads = [
                (layer.n_heads if of == "n" else layer.n_kv_heads) * ("z_btkgh" in found)
                for layer, found in zip(static.model.layers, stops, strict=True)
            ]
            found = ablation.gradient_importance(losses, len(batch.loss_mask), n_heads, of)
        else:
            found = ablation.leave_one_out(losses, stops, measure, of)
        return [x.sum(0) for x in found]

    return jax.jit(of_batch)


@functools.lru_cache(maxsize=8)
def _alike(static: StaticConfig) -> Callable[..., Any]:
    program = Program.of(static)
    rope = static.model.positions == "rope"

    def of_batch(params: Any, constants: Any, data_seed: Any, i: Any) -> Any:
        batch = _batch(program, constants, data_seed, i)

        def sums(stops: Any) -> Any:
            return conversion.head_sums(stops, rope=rope)

        return program.model.apply(params, batch.inputs, probe=sums)[1]

    return jax.jit(of_batch)


def _batch(program: Program, constants: Any, data_seed: Any, i: Any) -> Any:
    key = rng.stream(data_seed, "start", i)
    return program.sample(key, constants, examine.probe_size(program))

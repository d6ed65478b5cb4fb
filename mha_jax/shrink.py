"""Kv heads taken out of a run for good, beside the model that masks them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mha_jax import cost
from mha_jax.analysis import pruning, removal
from mha_jax.config import LayerSpec, ModelSpec
from mha_jax.model import build
from mha_jax.run import LoadedRun


class Removed(NamedTuple):
    """The smaller model and the masked one, which must be equal."""

    gone: tuple[str, ...]  # "l0.k1"
    keep: list[list[int]]  # query heads of each layer that stay, as `removal.remove` takes them
    n_params: tuple[int, int]  # before, after
    kv_bytes_per_token: tuple[float, float]
    difference: float  # largest difference of their outputs, on the first batch of the probe draw
    largest: float  # output there


def n_removable(layers: Sequence[LayerSpec]) -> int:
    """Kv heads that can go: all but one of each layer with attention heads."""
    return sum(layer.n_kv_heads - 1 for layer in layers if layer.mixer == "grouped")


def without(run: LoadedRun, params: Any, order: pruning.Order, n: int) -> Removed:
    """The model without the first n kv heads of an order, passing over the last of each layer.

    Args:
      run: whose model it is.
      params: its parameters.
      order: of all kv heads, or of all query heads where none is shared.
      n: how many go.

    Raises:
      ValueError: more than can go, or a model whose heads cannot be removed: one line.
    """
    model = run.run.static.model
    keep = removal.positions(order, len(order) - n, model.layers)
    smaller_params, smaller = removal.remove(params, model, keep)
    masks = [
        np.isin(np.arange(layer.n_heads), heads).astype(np.float32)
        for layer, heads in zip(model.layers, keep, strict=True)
    ]
    inputs, whole, cut = run.probe_batch().inputs, run.program.model, build(smaller, run.spec)
    masked = jax.jit(lambda p, x, masks: whole.apply(p, x, head_mask=masks)[0])
    outputs = masked(params, inputs, masks)
    removed = jax.jit(lambda p, x: cut.apply(p, x)[0])(smaller_params, inputs)

    def kv_bytes(model: ModelSpec) -> float:
        return cost.kv_bytes_per_token(model, run.spec.length)

    return Removed(
        tuple(
            f"l{layer}.k{head}"
            for layer, kept in enumerate(pruning.kept_kv_heads(masks, model.layers))
            for head in np.flatnonzero(~kept)
        ),
        keep,
        (_size(params), _size(smaller_params)),
        (kv_bytes(model), kv_bytes(smaller)),
        float(jnp.abs(outputs - removed).max()),
        float(jnp.abs(outputs).max()),
    )


def _size(params: Any) -> int:
    return sum(x.size for x in jax.tree.leaves(params))

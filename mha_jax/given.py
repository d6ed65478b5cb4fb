"""Inputs that a user gives to a trained model: checked, and written out."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from mha_jax.config import StaticConfig
from mha_jax.tasks import TaskSpec


def n_axes(spec: TaskSpec) -> int:
    """Axes of a batch of inputs."""
    return 2 if spec.inputs == "tokens" else 3


def checked(static: StaticConfig, inputs: Any) -> jax.Array:
    """Inputs [b, t, ...] in which every number means something; jax would clip an id unseen.

    Raises:
      ValueError: inputs that do not fit the task or the model of the run.
    """
    spec = static.task.spec
    sizes = spec.input_sizes
    inputs = np.asarray(inputs)
    wanted = {
        "tokens": "[b, t]",
        "fields": f"[b, t, {len(sizes)}]",
        "vectors": f"[b, t, {sizes[0]}]",
    }
    last = {"fields": len(sizes), "vectors": sizes[0]}.get(spec.inputs)
    if inputs.ndim != n_axes(spec) or last not in (None, inputs.shape[-1]):
        raise ValueError(
            f"inputs of shape {inputs.shape} do not fit: the task {static.task.name!r} takes "
            f"{spec.inputs} {wanted[spec.inputs]}"
        )
    if spec.inputs != "vectors":
        if not np.issubdtype(inputs.dtype, np.integer):
            raise ValueError(f"inputs must be integer ids, not {inputs.dtype}")
        if np.any((inputs < 0) | (inputs >= np.asarray(sizes))):
            raise ValueError(f"input ids must be at least 0 and below {sizes}")
    length = inputs.shape[1] + spec.query_token
    if 0 in inputs.shape[:2]:
        raise ValueError("the inputs are empty")
    if static.model.positions == "learned" and length > spec.length:
        raise ValueError(
            f"{length} positions, but the model has learned {spec.length}: give at most "
            f"{spec.length - spec.query_token}"
        )
    dtype = jnp.float32 if spec.inputs == "vectors" else jnp.int32
    return jnp.asarray(inputs, dtype)


def written(spec: TaskSpec, inputs: np.ndarray, words_only: bool) -> list[str]:
    """How the positions of one sequence are written; with `words_only` by the first field alone."""

    def word(first: int, *others: int) -> str:
        return ":".join([spec.vocab[first] if spec.vocab else str(first), *map(str, others)])

    if spec.inputs == "vectors":
        tokens = [f"x{i}" for i in range(len(inputs))]
    else:
        n_fields = 1 if words_only else len(spec.input_sizes)
        tokens = [word(*np.atleast_1d(position)[:n_fields]) for position in inputs]
    return [*tokens, "query"] if spec.query_token else tokens

"""Held-out metrics of a trained model under masks of its heads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from mha_jax import evaluate, loss, rng
from mha_jax.train import Program

# From parameters and, for each layer, head masks [n] to `loss.metrics`.
Measure = Callable[[Any, Sequence[Any]], dict[str, float]]


def measure(program: Program, constants: dict[str, Any], split: str = "test") -> Measure:
    """What measures on the whole fixed draw of "validation" or "test"; compiles once.

    Args:
      program: the model and its task.
      constants: of the split.
      split: which draw; its size is that of the run's own evaluation.
    """
    train = program.static.train
    n = {"validation": train.n_eval, "test": train.n_test}[split]
    n_batches = np.int32(-(-n // evaluate.batch_size(program.static)))
    draw = rng.stream(program.static.task.seed, split)

    def of(params: Any, head_mask: Sequence[Any]) -> dict[str, float]:
        masks = [np.asarray(mask, np.float32) for mask in head_mask]
        total = _sums(program, params, constants, draw, n_batches, masks)
        return loss.metrics(jax.device_get(total), program.spec)

    return of


_sums = jax.jit(evaluate.evaluate, static_argnums=0)

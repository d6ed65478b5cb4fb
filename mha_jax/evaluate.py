"""Evaluation on fixed draws. Pure functions of the parameters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from mha_jax import loss
from mha_jax.config import StaticConfig
from mha_jax.tasks import Batch
from mha_jax.train import Program

_EVAL_BATCH = 128  # sequences at a time: memory must not grow with the draw


def evaluate(
    program: Program,
    params: Any,
    constants: dict[str, jax.Array],
    draw: jax.Array,
    n_batches: jax.typing.ArrayLike,
    head_mask: Sequence[jax.Array] | None = None,
) -> loss.Sums:
    """Sums of loss and metrics over the first batches of a fixed draw.

    Args:
      program: what to evaluate.
      params: its parameters.
      constants: of the split.
      draw: key of the draw, from the task's seed and the split alone, so that all runs of an
        experiment see the same sequences.
      n_batches: of `batch_size(static)` sequences; may be traced.
      head_mask: of the model's heads, as `Model.apply` takes it.
    """

    def batch_sums(i: jax.typing.ArrayLike) -> loss.Sums:
        key = jax.random.fold_in(draw, i)
        batch = program.sample(key, constants, batch_size(program.static))
        outputs, _ = program.model.apply(params, batch.inputs, head_mask=head_mask)
        return loss.sums(outputs, batch, program.spec)

    return _summed(batch_sums, n_batches)


def document_losses(
    program: Program, params: Any, windows: dict[str, jax.Array], index: jax.Array, n_documents: int
) -> dict[str, jax.Array]:
    """Loss of every document of the test split.

    Args:
      program: what to evaluate.
      params: its parameters.
      windows: `inputs`, `targets` and `loss_mask` of a `tasks.Documents`, [w, ...].
      index: int [w], the document of each window.
      n_documents: how many there are.

    Returns:
      `loss` (nats, summed) and `count`, [documents].
    """

    def of_one(window: dict[str, jax.Array]) -> tuple[jax.Array, jax.Array]:
        batch = Batch(window["inputs"], window["targets"], window["loss_mask"], {})
        one = jax.tree.map(lambda x: x[None], batch)
        outputs, _ = program.model.apply(params, one.inputs)
        total = loss.sums(outputs, one, program.spec)
        return total["loss"].sum(), total["count"].sum()

    losses, counts = jax.lax.map(of_one, windows, batch_size=batch_size(program.static))
    zero = jnp.zeros(n_documents)
    return {"loss": zero.at[index].add(losses), "count": zero.at[index].add(counts)}


def batch_size(static: StaticConfig) -> int:
    """Sequences that are evaluated at a time."""
    return min(static.train.n_eval, _EVAL_BATCH)


def _summed(sums: Callable[[jax.typing.ArrayLike], Any], n: jax.typing.ArrayLike) -> Any:
    """The sum of `sums(i)` over i < n, in one loop of the compiled program."""
    zero = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(sums, 0))
    return jax.lax.fori_loop(0, n, lambda i, total: jax.tree.map(jnp.add, total, sums(i)), zero)

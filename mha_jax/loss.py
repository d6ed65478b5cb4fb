"""Loss and metrics as sums with counts: made inside the compiled program, divided once at the end.

Axes: b sequences, t positions, o read-out heads, v size of a read-out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from mha_jax.tasks import Batch, TaskSpec

Sums = dict[str, jax.Array]


def sums(outputs_btov: jax.Array, batch: Batch, spec: TaskSpec) -> Sums:
    """Sums over a batch, per read-out head.

    Args:
      outputs_btov: float32 [b, t, o, v], logits (class) or predictions (regression).
      batch: targets and loss mask.
      spec: the task.

    Returns:
      `count`, `loss` [o] (nats, or squared error averaged over v) and, for classes, `correct` [o];
      for regression `y` and `y2` [o, v], the sums of the targets and of their squares.
    """
    mask_bto, over = batch.loss_mask, (0, 1)
    total = {
        "count": mask_bto.sum(over),
        "loss": (mask_bto * _of_answers(outputs_btov, batch, spec)).sum(over),
    }
    if spec.kind == "class":
        correct_bto = jnp.argmax(outputs_btov, axis=-1) == batch.targets
        return {**total, "correct": (mask_bto * correct_bto).sum(over)}
    weight_btov = mask_bto[..., None] * batch.targets
    return {
        **total,
        "y": weight_btov.sum(over),
        "y2": (weight_btov * batch.targets).sum(over),
    }


def of_sequences(outputs_btov: jax.Array, batch: Batch, spec: TaskSpec) -> jax.Array:
    """Loss of each sequence, summed over its answers, [b]."""
    return (batch.loss_mask * _of_answers(outputs_btov, batch, spec)).sum((1, 2))


def _of_answers(outputs_btov: jax.Array, batch: Batch, spec: TaskSpec) -> jax.Array:
    """Loss of every position and read-out head, asked for or not: [b, t, o]."""
    if spec.kind != "class":
        return jnp.square(outputs_btov - batch.targets).mean(-1)
    log_z_bto = jax.nn.logsumexp(outputs_btov, axis=-1)
    return log_z_bto - jnp.take_along_axis(outputs_btov, batch.targets[..., None], axis=-1)[..., 0]


def mean_loss(total: Sums) -> jax.Array:
    """The training loss: every asked answer weighs the same, whichever read-out head it belongs
    to."""
    return total["loss"].sum() / jnp.maximum(total["count"].sum(), 1.0)


def metrics(total: Mapping[str, Any], spec: TaskSpec) -> dict[str, float]:
    """Named numbers from summed sums (host side, float64).

    Returns:
      `loss`; the task's metric over all read-out heads; and `<metric>/<output>` for each where
      there are several.
      accuracy: share of asked answers that are right. r2: 1 - squared error / variance of the
        targets about their mean.
      nmse: squared error / that variance. bits_per_byte, bits_per_token: loss / ln 2.
    """
    host = {key: np.asarray(value, np.float64) for key, value in total.items()}
    out = {"loss": _divide(host["loss"].sum(), host["count"].sum())}
    out[spec.metric] = _metric(host, spec.metric, slice(None))
    if len(spec.outputs) > 1:
        for i, name in enumerate(spec.outputs):
            out[f"{spec.metric}/{name}"] = _metric(host, spec.metric, slice(i, i + 1))
    return out


def _metric(host: Mapping[str, np.ndarray], metric: str, which: slice) -> float:
    count_o, loss_o = host["count"][which], host["loss"][which]
    if metric == "accuracy":
        return _divide(host["correct"][which].sum(), count_o.sum())
    if metric in ("bits_per_byte", "bits_per_token"):
        return _divide(loss_o.sum(), count_o.sum()) / math.log(2)
    y_ov, y2_ov = host["y"][which], host["y2"][which]
    spread_ov = y2_ov - np.square(y_ov) / np.maximum(count_o[:, None], 1.0)
    nmse = _divide(loss_o.sum(), spread_ov.mean(-1).sum())
    return nmse if metric == "nmse" else 1.0 - nmse


def _divide(numerator: float, denominator: float) -> float:
    return float(numerator / denominator) if denominator > 0 else math.nan

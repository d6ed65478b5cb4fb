"""What the loss loses when a head is taken away: leave-one-out, for query heads and kv heads.

Three ways to take one away, since each alone can be attacked:

    zero       z of the head is 0; of a kv head the values are 0, so that its whole group is silent
    mean       z (keys and values) at each position is its mean over the sequences of the batch
    resample   z (keys and values) is that of the next sequence of the batch

Zero leaves the model's distribution, mean keeps what the head says on average, resample keeps its
marginal distribution and breaks only the tie with this sequence (Wang et al. 2022, arXiv
2211.00593, for the mean over a reference set; Chan et al. 2022, causal scrubbing, for resampling).
Only one head is taken at a time, so what two heads can do for each other is not counted.

Letters: b sequences, n query heads, k kv heads; a model is a function of masks and replacements.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import jax
import jax.numpy as jnp

from mha_jax.attention.stops import Replacement, flat_shape, on_one_axis

KINDS = ("zero", "mean", "resample")
# Heads that are taken away side by side: memory must not grow with their number.
_TOGETHER = 8


class Losses(Protocol):
    """A model on a batch: the loss of each sequence, [b], under masks and replacements as
    `Model.apply` takes them."""

    def __call__(
        self,
        *,
        head_mask: Sequence[jax.Array] | None = None,
        kv_mask: Sequence[jax.Array] | None = None,
        replace: Sequence[Mapping[str, Replacement]] | None = None,
    ) -> jax.Array: ...


def leave_one_out(
    losses: Losses, layers: Sequence[Mapping[str, Any]], kind: str, of: str = "n"
) -> list[jax.Array]:
    """Rise of each sequence's loss without each head, in the unit of the loss.

    Args:
      losses: the model on a batch.
      layers: its stops on that batch, as a probe returns them; a layer without z has no heads.
      kind: one of `KINDS`.
      of: "n", query heads, or "k", kv heads.

    Returns:
      For each layer [b, heads]; a layer without heads has none of them.
    """
    stops = ("z_btkgh",) if of == "n" else ("k_bskh", "v_bskh")
    stops = stops[-1:] if kind == "zero" else stops  # without values keys do nothing
    counts = [_heads(layer, stops[-1]) for layer in layers]
    whole = losses()
    bounds = [sum(counts[:i]) for i in range(len(counts) + 1)]
    values = [
        {stop: _value(layer[stop], stop, kind) for stop in stops} if count else {}
        for layer, count in zip(layers, counts, strict=True)
    ]

    def without(head: jax.Array) -> jax.Array:
        replace = [
            {
                stop: Replacement(jnp.arange(bounds[i], bounds[i + 1]) == head, value)
                for stop, value in of_layer.items()
            }
            for i, of_layer in enumerate(values)
        ]
        return losses(replace=replace) - whole

    if not bounds[-1]:
        return [jnp.zeros((whole.shape[0], 0)) for _ in layers]
    rises = jax.lax.map(without, jnp.arange(bounds[-1]), batch_size=min(_TOGETHER, bounds[-1])).T
    return [rises[:, bounds[i] : bounds[i + 1]] for i in range(len(counts))]


def gradient_importance(
    losses: Losses, n_sequences: int, n_heads: Sequence[int], of: str = "n"
) -> list[jax.Array]:
    """|dL(x)/d xi| of each sequence x, with xi = 1 a factor of the head.

    Its mean over x is the importance of a head in the exact form of Michel et al. 2019 (arXiv
    1905.10650, equation 2).

    Two other forms go by the same name and differ: |.| of each token before the sum over tokens
    (the authors' code), never smaller, and |.| of the gradient of the batch's loss (HF's
    `run_bertology`), never larger and dependent on the batch size. The division by the layer's
    l2 norm, which the paper adds, is `per_layer`. Of a kv head: its factor is shared by its group,
    so the terms of the group's heads may cancel.

    Args:
      losses: the model on a batch.
      n_sequences: b.
      n_heads: query or kv heads of each layer; 0 where it has none.
      of: "n", query heads, or "k", kv heads.

    Returns:
      For each layer [b, heads].
    """
    ones = [jnp.ones((n_sequences, n)) for n in n_heads]

    # A sequence has factors of its own, so one backward pass gives the gradient of each.
    def total(masks: list[jax.Array]) -> jax.Array:
        return (losses(head_mask=masks) if of == "n" else losses(kv_mask=masks)).sum()

    return [jnp.abs(gradient) for gradient in jax.grad(total)(ones)]


def per_layer(importance: Sequence[jax.Array]) -> list[jax.Array]:
    """Each layer's importances [..., heads] divided by their l2 norm; 0 stays 0.

    Source: Michel et al. 2019, section 2.2.
    """
    norms = [jnp.linalg.norm(x, axis=-1, keepdims=True) for x in importance]
    return [x / jnp.where(norm > 0, norm, 1) for x, norm in zip(importance, norms, strict=True)]


def _heads(layer: Mapping[str, Any], stop: str) -> int:
    return flat_shape(stop, layer[stop].shape)[2] if stop in layer else 0


def _value(x: jax.Array, stop: str, kind: str) -> jax.Array:
    """What stands in for a stop's array, with the query heads on one axis."""
    one_axis = on_one_axis(stop, x)
    if kind == "zero":
        return jnp.zeros((1,) * one_axis.ndim)
    return (
        one_axis.mean(axis=0, keepdims=True) if kind == "mean" else jnp.roll(one_axis, -1, axis=0)
    )

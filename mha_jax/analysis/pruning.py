"""Which heads go first, and what is left: orders, masks and curves of pruning.

An order lists all heads of a model, or all its kv heads, the first to go first. Masks are what
`Model.apply` takes as head_mask: for each layer float32 [n], 1 where a query head stays. A kv head
goes with its whole group. After m of M steps the first m of the order are gone; a curve is the loss
at each of m = 0..M (Michel et al. 2019, arXiv 1905.10650, section 4). Its horizontal axis is what
stays: heads, or cache bytes, and the two differ, since a query head frees no cache unless its whole
kv group goes. `random_order` is the control.

Letters: b sequences, n query heads, k kv heads, g of the former share one of the latter.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mha_jax.analysis.ablation import Losses
from mha_jax.attention.stops import Replacement
from mha_jax.config import LayerSpec

# Masks that are tried side by side: memory must not grow with their number.
_TOGETHER = 8


class Head(NamedTuple):
    """A query head (of = "n") or a kv head (of = "k") of a layer; all count from 0."""

    layer: int
    of: str
    head: int

    def __str__(self) -> str:
        return f"l{self.layer}.{self.of}{self.head}"


Order = Sequence[Head]


def order(importance: Sequence[Any], of: str = "n") -> list[Head]:
    """All heads, the least important first, over all layers together; ties go by position.

    Scales must be comparable over layers: `ablation.per_layer` makes those of Michel et al. so.
    The `gates.open_probability` of trained gates are an importance too.

    Args:
      importance: for each layer [n], or [k] with of="k"; an empty one for a layer without heads.
      of: what the importances belong to.

    Raises:
      ValueError: an importance that is not a number, or not one axis.
    """
    _check_of(of)
    ranked = []
    for layer, values in enumerate(importance):
        x = np.asarray(values, np.float64)
        if x.ndim != 1 or np.isnan(x).any():
            raise ValueError(
                f"importance of layer {layer} must be one number for each head, not {x.tolist()}"
            )
        ranked += [(value, Head(layer, of, head)) for head, value in enumerate(x.tolist())]
    return [head for _, head in sorted(ranked)]


def random_order(n_heads: Sequence[int], seed: int, of: str = "n") -> list[Head]:
    """All heads in an order drawn uniformly; the same for the same seed.

    Args:
      n_heads: for each layer the query heads, or kv heads with of="k"; 0 where it has none.
      seed: any integer that is not negative.
      of: which of the two.
    """
    heads = order([np.zeros(n) for n in n_heads], of)
    return [heads[i] for i in np.random.default_rng(seed).permutation(len(heads))]


def of_groups(importance: Sequence[Any], layers: Sequence[LayerSpec]) -> list[np.ndarray]:
    """Importance of each kv head, [k]: the sum of that of the query heads in its group, [n].

    Not the importance of a factor that the group shares: there the heads' gradients may cancel.
    """
    sums = []
    for values, layer in zip(importance, layers, strict=True):
        x = np.asarray(values, np.float64)
        sums.append(x.reshape(layer.n_kv_heads, -1).sum(1) if x.size else x)
    return sums


def masks(removed: Order, layers: Sequence[LayerSpec]) -> list[np.ndarray]:
    """Head masks without the heads of `removed`: for each layer float32 [n].

    Raises:
      ValueError: a head that the model does not have.
    """
    return [mask[-1] for mask in curve_masks(removed, layers)]


def curve_masks(removed: Order, layers: Sequence[LayerSpec]) -> list[np.ndarray]:
    """The masks of every m, `masks(removed[:m], layers)`: for each layer float32 [M + 1, n].

    Raises:
      ValueError: a head that the model does not have.
    """
    made = [np.ones((len(removed) + 1, layer.n_heads), np.float32) for layer in layers]
    for m, head in enumerate(removed, 1):
        gone = _query_heads(head, layers)
        made[head.layer][m:, gone] = 0
    return made


def kept_kv_heads(masks: Sequence[Any], layers: Sequence[LayerSpec]) -> list[np.ndarray]:
    """Whether a kv head is still read: for each layer bool [..., k] of masks [..., n].

    It is while any query head of its group has a mask, or a gate, that is not 0.
    """
    kept = []
    for mask, layer in zip(masks, layers, strict=True):
        x = np.asarray(mask)
        kept.append((x.reshape(*x.shape[:-1], layer.n_kv_heads, -1) != 0).any(-1))
    return kept


def kv_bytes_per_token(
    masks: Sequence[Any], layers: Sequence[LayerSpec], of_head: Sequence[float]
) -> np.ndarray:
    """Bytes that decoding keeps for each token: those of each kv head that is still read.

    Args:
      masks: for each layer [..., n]; the axes before the last are those of the result.
      layers: whose heads they are.
      of_head: bytes of one kv head of each layer, `cost.kv_head_bytes_per_token`.
    """
    kept = kept_kv_heads(masks, layers)
    return sum(
        (size * heads.sum(-1) for size, heads in zip(of_head, kept, strict=True)),
        np.zeros(np.shape(masks[0])[:-1]),
    )


def masked(losses: Losses, masks: Sequence[Any]) -> Losses:
    """The pruned model as `ablation` takes one, so that its heads can be judged again.

    A head that is gone has importance 0 there, up to rounding. The stops that
    `ablation.leave_one_out` takes beside it are those of a probe under the same masks.
    """
    gone = [jnp.asarray(mask) for mask in masks]

    def of_pruned(
        *,
        head_mask: Sequence[jax.Array] | None = None,
        kv_mask: Sequence[jax.Array] | None = None,
        replace: Sequence[Mapping[str, Replacement]] | None = None,
    ) -> jax.Array:
        both = gone
        if head_mask is not None:
            pairs = zip(head_mask, gone, strict=True)
            both = [given * jnp.broadcast_to(mask, given.shape) for given, mask in pairs]
        return losses(head_mask=both, kv_mask=kv_mask, replace=replace)

    return of_pruned


def curve(losses: Losses, masks: Sequence[Any]) -> jax.Array:
    """Loss of each sequence under each of the masks, [M + 1, b], in one program.

    Args:
      losses: the model on a batch.
      masks: for each layer [M + 1, n], as `curve_masks` makes them; arguments of the program, so
        that one program serves all orders.
    """
    stacked = [jnp.asarray(mask) for mask in masks]
    return jax.lax.map(
        lambda head_mask: losses(head_mask=head_mask),
        stacked,
        batch_size=min(_TOGETHER, len(stacked[0])),
    )


def iterative(
    importance: Callable[[list[np.ndarray]], Sequence[Any]],
    layers: Sequence[LayerSpec],
    *,
    share: float = 0.1,
    of: str = "n",
) -> list[Head]:
    """All heads, the first to go first, with importances estimated again after every step.

    A step removes `share` of all heads, at least one: the least important of those that are left.
    Michel et al. take 10 %; share=1 is `order`, one-shot.

    Args:
      importance: from the masks of a step to the importances of that pruned model, as `order` takes
        them (see `masked`); what it says of heads that are gone does not count.
      layers: the model's.
      share: of all heads, above 0 and at most 1.
      of: what is removed: "n", query heads, or "k", kv heads.

    Raises:
      ValueError: a share out of range, or what `order` and `masks` raise.
    """
    if not 0 < share <= 1:
        raise ValueError(f"share={share} must be above 0 and at most 1")
    removed: list[Head] = []
    while True:
        ranked = order(importance(masks(removed, layers)), of)
        gone = set(removed)
        left = [head for head in ranked if head not in gone]
        step = max(1, round(share * len(ranked)))
        removed += left[:step]
        if len(left) <= step:
            return removed


def _query_heads(head: Head, layers: Sequence[LayerSpec]) -> slice:
    """Which query heads go with a head."""
    _check_of(head.of)
    layer = layers[head.layer] if 0 <= head.layer < len(layers) else None
    count = 0 if layer is None else layer.n_heads if head.of == "n" else layer.n_kv_heads
    if layer is None or not 0 <= head.head < count:
        raise ValueError(f"{head} is not in the model, whose layers and heads count from 0")
    g = 1 if head.of == "n" else layer.queries_per_kv
    return slice(head.head * g, (head.head + 1) * g)


def _check_of(of: str) -> None:
    if of not in ("n", "k"):
        raise ValueError(f"of={of!r} is not 'n', query heads, or 'k', kv heads")

"""What it costs to let kv heads share: how redundant they are, and the weights after sharing.

No standard measure exists, so there are four, under their own names:

* activation: `cka.linear_cka` between the kv heads of a layer, for K and V apart, from
  `cka.cross_sums` of `before_rotation(k_bskh)` (with rotary positions; else of k_bskh) and of
  v_bskh; `similarity.layer_mean` of it is the layer's redundancy;
* weights: `weight_sharing_error`;
* attention: `similarity.agreement`;
* loss: its rise when a model runs with `tie_heads` or `pool_heads`, without training.

A grouping is a list of lists, the kv heads of each new one. Parameters are a mixer's, by the names
of `attention.grouped.Attention`: wq [d, n*h], wk and wv [d, k*h], wo [n*h, d], biases as wide as
their columns. Query head i reads kv head i // g.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mha_jax.analysis.grouping import Groups
from mha_jax.attention.positions import rope

Params = Mapping[str, jax.Array]

_QUERY = ("wq", "bq", "wg", "bg", "sink")  # columns by query head
_KV = ("wk", "bk", "wv", "bv")


class SharingError(NamedTuple):
    """What a grouping takes away from the weights."""

    groups: np.ndarray  # sum over the heads of each group of ||W_h - mean||_F^2
    total: float  # their sum
    share: float  # total / ||W||_F^2


def contiguous(n_kv_heads: int, n_groups: int) -> list[list[int]]:
    """The grouping of neighbours: kv head j goes to group j // (n_kv_heads / n_groups).

    Raises:
      ValueError: n_groups does not divide n_kv_heads.
    """
    if n_groups < 1 or n_kv_heads % n_groups:
        raise ValueError(f"n_groups={n_groups} must divide n_kv_heads={n_kv_heads}")
    return np.arange(n_kv_heads).reshape(n_groups, -1).tolist()


def before_rotation(k_bskh: jax.Array, n_rotated: int | None = None) -> jax.Array:
    """Keys as they were before `attention.positions.rope`, from the stop of that name.

    A rotation that all rows have in common does not change CKA; one by position does.

    Args:
      k_bskh: the keys.
      n_rotated: how many of their columns rotate, the last ones; None: all.
    """
    n_rotated = k_bskh.shape[-1] if n_rotated is None else n_rotated
    still_bskh, k_bskh = jnp.split(k_bskh, [k_bskh.shape[-1] - n_rotated], axis=-1)
    half = n_rotated // 2
    mirror = jnp.concatenate([jnp.ones(half), -jnp.ones(half)]).astype(k_bskh.dtype)
    mirror = mirror.reshape((1,) * (k_bskh.ndim - 1) + (-1,))
    turned_bskh = mirror * rope(mirror * k_bskh)  # a mirrored plane turns the other way
    return jnp.concatenate([still_bskh, turned_bskh], axis=-1)


def weight_sharing_error(w: jax.Array, n_kv_heads: int, groups: Groups) -> SharingError:
    """How far the kv heads of a group are from their mean, for wk or wv apart (host, float64).

    Sum over a group's heads of ||W_h - mean of the group||_F^2 (QCQA, Joshi et al. 2024), W_h the
    columns of a head; biases are not part of it. Groups may differ in size.

    `share` is 0 for equal heads and at most 1; k independent heads of equal norm have the baseline
    1 - k'/k on average. It is NaN for weights of zeros. Heads that are alike up to a rotation,
    which changes no output, count as different here; CKA sees through it.

    Args:
      w: [d, k*h].
      n_kv_heads: k.
      groups: k' lists that hold each kv head once.

    Raises:
      ValueError: groups are no partition of the kv heads, or k does not divide the columns.
    """
    check_groups(groups, n_kv_heads)
    w_dkh = _by_head(np.asarray(w, np.float64), n_kv_heads)
    errors = [np.square(w - w.mean(1, keepdims=True)).sum() for w in _members(w_dkh, groups)]
    total, square = float(np.sum(errors)), float(np.square(w_dkh).sum())
    share = total / square if square else float("nan")
    return SharingError(np.array(errors), total, share)


def pool(w: jax.Array, n_kv_heads: int, groups: Groups) -> jax.Array:
    """The mean of each group's heads: [..., k*h] -> [..., k'*h] (Ainslie et al. 2023).

    A matrix or a bias; groups may differ in size.

    Raises:
      ValueError: as `weight_sharing_error`.
    """
    check_groups(groups, n_kv_heads)
    means = [w.mean(-2) for w in _members(_by_head(w, n_kv_heads), groups)]
    return jnp.concatenate(means, axis=-1)


def tie(w: jax.Array, n_kv_heads: int, groups: Groups) -> jax.Array:
    """The same in place: each of the k heads becomes the mean of its group, [..., k*h]."""
    mean = _by_head(pool(w, n_kv_heads, groups), len(groups))
    group_of = {head: i for i, group in enumerate(groups) for head in group}
    return mean[..., [group_of[j] for j in range(n_kv_heads)], :].reshape(w.shape)


def tie_heads(params: Params, n_kv_heads: int, groups: Groups) -> dict[str, jax.Array]:
    """A mixer's parameters with wk, bk, wv and bv tied: the model keeps its shapes.

    The cheapest way to the loss after mean-pooling, and the only one for groups of unequal sizes.
    What share= leaves out stays out: with `kv`, wk alone is tied, and makes the values too.

    Raises:
      ValueError: as `pool_heads`, but groups may differ in size and wo may be missing.
    """
    _check_own_keys(params)
    return {name: tie(w, n_kv_heads, groups) if name in _KV else w for name, w in params.items()}


def pool_heads(
    params: Params, n_heads: int, n_kv_heads: int, groups: Groups
) -> dict[str, jax.Array]:
    """A mixer's parameters with len(groups) kv heads: the smaller model, equal to `tie_heads`.

    Query heads move with their kv head (`query_order`): the columns of wq, bq, wg and bg and the
    rows of wo, so that query head i reads kv head i // (n / k') again.

    Raises:
      ValueError: groups are no partition of the kv heads, or of unequal sizes; keys are made by wq
        (share= qk, qkv); wo is missing and the query heads would have to move.
    """
    _check_own_keys(params)
    order = query_order(n_heads, n_kv_heads, groups)
    if len({len(group) for group in groups}) > 1:
        raise ValueError(f"groups {groups} differ in size, a layer's may not; use tie_heads")
    if "wo" not in params and order != list(range(n_heads)):
        raise ValueError(f"groups {groups} move query heads, which needs a wo; use tie_heads")

    def moved(w: jax.Array, axis: int) -> jax.Array:
        shape = w.shape[:axis] + (n_heads, -1) + w.shape[axis + 1 :]
        return jnp.take(w.reshape(shape), np.array(order), axis=axis).reshape(w.shape)

    pooled = dict(params)
    for name, w in params.items():
        if name in _KV:
            pooled[name] = pool(w, n_kv_heads, groups)
        elif name in _QUERY:
            pooled[name] = moved(w, w.ndim - 1)
        elif name == "wo":
            pooled[name] = moved(w, 0)
    return pooled


def query_order(n_heads: int, n_kv_heads: int, groups: Groups) -> list[int]:
    """The old number of each query head of `pool_heads`.

    Raises:
      ValueError: groups are no partition of the kv heads, or k does not divide n.
    """
    check_groups(groups, n_kv_heads)
    if n_heads % n_kv_heads:
        raise ValueError(f"n_kv_heads={n_kv_heads} must divide n_heads={n_heads}")
    g = n_heads // n_kv_heads
    return [head * g + i for group in groups for head in group for i in range(g)]


def check_groups(groups: Groups, n_kv_heads: int) -> None:
    """Raises ValueError unless the groups hold each kv head once and none is empty."""
    heads = sorted(head for group in groups for head in group)
    if heads != list(range(n_kv_heads)) or not all(groups):
        raise ValueError(f"groups {groups} must hold each of 0..{n_kv_heads - 1} once, none empty")


def _check_own_keys(params: Params) -> None:
    if "wk" not in params:
        raise ValueError("share='qk' and 'qkv' make keys by wq, of each query head: none to pool")


def _by_head(w: Any, n_kv_heads: int) -> Any:
    """[..., k*h] -> [..., k, h]."""
    if n_kv_heads < 1 or w.shape[-1] % n_kv_heads:
        raise ValueError(f"n_kv_heads={n_kv_heads} must divide the {w.shape[-1]} columns")
    return w.reshape(*w.shape[:-1], n_kv_heads, -1)


def _members(w_xkh: Any, groups: Groups) -> list[Any]:
    """For each group the weights of its heads, [..., heads, h]."""
    return [w_xkh[..., np.array(group), :] for group in groups]

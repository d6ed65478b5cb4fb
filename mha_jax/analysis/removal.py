"""Physical removal: the smaller model that computes what a model with masked heads does.

A layer of n query heads over k kv heads becomes one of n' over k'. That needs the same number of
query heads in each kv group that stays; all others may go with their kv head. So with MHA (groups
of one) and with MQA (one group) any heads can go, and with GQA whole groups, equally many of each,
or both. A layer keeps at least one head: it has to return something.

Exact for every switch of `attention.grouped` with a wo: biases of queries, keys, values and gate
are columns of a head, the bias of wo is nobody's and stays, the scales of qk_norm are shared by all
heads, and matrices that share= makes one go by the same heads. The optimiser starts anew.

`keep` is, for each layer, the numbers of its query heads that stay.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from mha_jax.analysis import pruning
from mha_jax.config import LayerSpec, ModelSpec

Keep = Sequence[Sequence[int]]

_QUERY = ("wq", "bq", "wg", "bg", "sink")  # columns by query head
_KV = ("wk", "bk", "wv", "bv")  # columns by kv head


def remove(
    params: Mapping[str, Any], model: ModelSpec, keep: Keep
) -> tuple[dict[str, Any], ModelSpec]:
    """The parameters and the description of the model without the other heads.

    Its outputs are those of the whole model with `pruning.masks` of the heads that go; heads keep
    their order.

    Args:
      params: of the whole model, as `Model.init` returns them.
      model: its description.
      keep: see above; all of a layer's heads where none goes.

    Raises:
      ValueError: heads that are not there, or a set whose rest is no layer; the text says which
        sets are.
    """
    if len(keep) != len(model.layers):
        raise ValueError(f"keep has {len(keep)} entries, the model has {len(model.layers)} layers")
    specs, trees = [], dict(params["layers"])
    for i, layer in enumerate(model.layers):
        heads = sorted(int(head) for head in keep[i])
        if heads == list(range(layer.n_heads)):
            specs.append(layer)
            continue
        if any(other.kv_from is not None for other in model.layers):
            raise ValueError(
                f"layer {i}: layers share keys and values (kv_from), so that no head of one can go "
                f"alone; keep all {layer.n_heads}"
            )
        kv_heads = _kv_heads(f"layer {i}", heads, layer, model)
        smaller = dataclasses.replace(layer, n_heads=len(heads), n_kv_heads=len(kv_heads))
        specs.append(smaller)
        tree = trees[str(i)]
        mixer = {name: _taken(name, w, layer, heads, kv_heads) for name, w in tree["mixer"].items()}
        trees[str(i)] = {**tree, "mixer": mixer}
    return {**params, "layers": trees}, dataclasses.replace(model, layers=tuple(specs))


def absorb(params: Mapping[str, Any], masks: Sequence[Any]) -> dict[str, Any]:
    """Parameters that need no head masks: the rows of wo of each head are multiplied by its own.

    For gates between 0 and 1, before `remove` takes the closed ones away.

    Args:
      params: as `remove`.
      masks: for each layer [n].

    Raises:
      ValueError: a layer without a wo.
    """
    trees = dict(params["layers"])
    for i, mask in enumerate(masks):
        mixer = trees[str(i)]["mixer"]
        if "wo" not in mixer:
            raise ValueError(f"layer {i} has no wo that could take the masks in; use_wo=True has")
        wo = mixer["wo"]
        rows = jnp.repeat(jnp.asarray(mask), wo.shape[0] // len(mask))[:, None]
        trees[str(i)] = {**trees[str(i)], "mixer": {**mixer, "wo": wo * rows}}
    return {**params, "layers": trees}


def positions(order: pruning.Order, keep: int, layers: Sequence[LayerSpec]) -> list[list[int]]:
    """What stays, as `remove` takes it, when an order is followed until `keep` of its heads are
    left, query heads or kv heads as they are in it.

    The last one of a layer is passed over, the next one goes in its place. Of kv heads every such
    set can be removed; of query heads only with MHA and MQA (see `even`).

    Args:
      order: all heads of the model, the first to go first.
      keep: how many stay.
      layers: the model's.

    Raises:
      ValueError: fewer than one a layer, or more than there are.
    """
    left = [0] * len(layers)
    for head in order:
        left[head.layer] += 1
    lowest = sum(count > 0 for count in left)
    if not lowest <= keep <= len(order):
        raise ValueError(f"keep={keep} must be {lowest} (one for each layer) to {len(order)}")
    removed: list[pruning.Head] = []
    for head in order:
        if len(removed) < len(order) - keep and left[head.layer] > 1:
            left[head.layer] -= 1
            removed.append(head)
    return [np.flatnonzero(mask).tolist() for mask in pruning.masks(removed, layers)]


def even(
    importance: Sequence[Any], layers: Sequence[LayerSpec], n_kv_heads: int, per_group: int
) -> list[list[int]]:
    """What stays, as `remove` takes it, with the same shape for every layer: of each group its
    `per_group` most important query heads, then the groups whose kept heads sum to most.

    Args:
      importance: for each layer [n]; an empty one for a layer that stays as it is.
      layers: the model's.
      n_kv_heads: kv heads of each layer that stay.
      per_group: query heads of each that stay.

    Raises:
      ValueError: more than a layer has, or less than one.
    """
    keep = []
    for i, (values, layer) in enumerate(zip(importance, layers, strict=True)):
        k, g = layer.n_kv_heads, layer.queries_per_kv
        if not np.size(values):
            keep.append(list(range(layer.n_heads)))
            continue
        if not (1 <= n_kv_heads <= k and 1 <= per_group <= g):
            raise ValueError(
                f"layer {i} has {k} kv heads of {g} query heads each, so that n_kv_heads="
                f"{n_kv_heads} must be 1 to {k} and per_group={per_group} 1 to {g}"
            )
        x_kg = np.asarray(values, np.float64).reshape(k, g)
        # Stable, so that ties go as in `pruning.order`: the later ones stay.
        best_kg = np.argsort(x_kg, axis=1, kind="stable")[:, g - per_group :]
        sums = np.take_along_axis(x_kg, best_kg, axis=1).sum(1)
        groups = np.argsort(sums, kind="stable")[k - n_kv_heads :]
        keep.append(sorted(int(j * g + head) for j in groups for head in best_kg[j]))
    return keep


def _kv_heads(where: str, heads: list[int], layer: LayerSpec, model: ModelSpec) -> list[int]:
    """The kv heads that stay, of a layer that can be cut down to those query heads."""
    n, k, g = layer.n_heads, layer.n_kv_heads, layer.queries_per_kv
    if layer.mixer != "grouped":
        raise ValueError(f"{where}: heads of the mixer {layer.mixer!r} cannot go; keep all {n}")
    if not model.use_wo:
        raise ValueError(
            f"{where}: without a wo what follows reads every head; keep all {n}, or use_wo=True"
        )
    if len(set(heads)) < len(heads) or not set(heads) <= set(range(n)):
        raise ValueError(f"{where}: keep={heads} must name heads of 0..{n - 1}, none twice")
    counts = np.bincount(np.array(heads, int) // g, minlength=k).tolist()
    if not heads:
        raise ValueError(f"{where} would lose all its heads; keep at least one of 0..{n - 1}")
    if len(set(counts) - {0}) > 1:
        raise ValueError(
            f"{where}: its kv groups would keep {counts} of {g} query heads; keep equally many in "
            "each group that stays, and none in the others"
        )
    return [j for j, count in enumerate(counts) if count]


def _taken(
    name: str, w: Any, layer: LayerSpec, heads: Sequence[int], kv_heads: Sequence[int]
) -> Any:
    """The part of a mixer's parameter that stays."""
    if name in _QUERY or name in _KV:
        which = heads if name in _QUERY else kv_heads
        return _columns(w, 1 if name == "sink" else layer.d_head, which)
    return _columns(w.T, layer.d_head, heads).T if name == "wo" else w


def _columns(w: Any, d_head: int, heads: Sequence[int]) -> Any:
    """[..., heads * h], those of the heads that stay."""
    by_head = w.reshape(*w.shape[:-1], -1, d_head)
    return by_head[..., np.array(heads), :].reshape(*w.shape[:-1], -1)

"""A trained model with fewer kv heads: MHA to GQA, GQA to MQA (Ainslie et al. 2023, 2305.13245).

The paper makes one kv head of each group of neighbours and trains on for a small share of the
original steps. Its three ways are `mean`, the mean of their wk and of their wv, `first`, and
`random`, a fresh draw. `similar`, ours, is the mean too, of groups chosen so that alike heads
share. `align`, after Jin et al. 2024 (2412.20677), turns the heads of a group towards its first
one before, which alone changes nothing that the model computes: see `procrustes`.

Nothing is rescaled. The mean of k/k' heads with nothing in common has weights smaller by
sqrt(k'/k), which training has to make good.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mha_jax.analysis import cka, grouping, procrustes, sharing
from mha_jax.attention import grouped
from mha_jax.attention.init import fold
from mha_jax.config import LayerSpec, ModelSpec

METHODS = ("mean", "first", "random", "similar")
_KV = ("wk", "bk", "wv", "bv")

Params = Mapping[str, Any]
# "keys" and "values" of a layer, each the `cka.cross_sums` of its kv heads
HeadSums = Mapping[str, Mapping[str, Any]]


class Conversion(NamedTuple):
    """A model that `mha_jax.model.build` accepts, its parameters, and how they were made."""

    params: dict[str, Any]
    model: ModelSpec
    groups: tuple[list[list[int]], ...]  # of each layer: the old kv heads of each new one
    aligned: tuple[str, ...]  # which of "keys" and "values" were turned before


def convert(
    params: Params,
    model: ModelSpec,
    n_kv_heads: int | Sequence[int],
    method: str = "mean",
    *,
    align: bool = False,
    activations: Sequence[HeadSums] | None = None,
    key: jax.Array | None = None,
) -> Conversion:
    """The model with k' kv heads in place of k.

    A layer that has k' already stays as it is, whatever its mixer. In the others query head i reads
    kv head i // (n / k') as ever; with `similar` query heads move with their kv head (the columns
    of wq and wg, the rows of wo, the biases), which alone changes nothing either.

    Args:
      params: as `Model.init` returns them.
      model: their model.
      n_kv_heads: k' of every layer, or of each; divides k.
      method: `mean`, `first`, `random` or `similar`.
      align: before that, turn the keys and the values of each head to the first of its group, those
        of the two that the model allows (`procrustes.turnable`).
      activations: `head_sums` of every layer, added over batches, for `similar` and `align`. None:
        both go by the weights and biases, as if every input direction counted alike.
      key: for `random`. The draw is that of `Model.init` with this key and the new model, so it
        should not be the key that the run began with.

    Raises:
      ValueError: k' does not divide k; another mixer than `grouped`; kv_from; share= qk or qkv,
        whose keys have no heads of their own; `similar` without wo; what cannot be aligned; a
        missing key.
    """
    counts = _counts(n_kv_heads, model)
    layers = tuple(
        dataclasses.replace(layer, n_kv_heads=count)
        for layer, count in zip(model.layers, counts, strict=True)
    )
    smaller = dataclasses.replace(model, layers=layers)
    _check(model, smaller, method, align=align, key=key)
    if activations is not None and len(activations) != len(layers):
        raise ValueError(f"activations of {len(activations)} layers, the model has {len(layers)}")
    converted: dict[str, Any] = {}
    chosen = []
    for i, (old, new) in enumerate(zip(model.layers, layers, strict=True)):
        whole = params["layers"][str(i)]
        mixer, groups = whole["mixer"], [[head] for head in range(old.n_kv_heads)]
        if new != old:
            sums = None if activations is None else activations[i]
            sums = weight_sums(mixer, old.n_kv_heads) if sums is None else sums
            groups = _groups(sums, old, new, method)
            turned = procrustes.align(mixer, model, groups, sums) if align else mixer
            if method == "random":
                merged = {**turned, **_fresh(new, smaller, i, key)}
            elif method == "first":
                merged = _firsts(turned, old.n_kv_heads, groups)
            else:
                merged = sharing.pool_heads(turned, old.n_heads, old.n_kv_heads, groups)
            mixer = {name: jnp.asarray(w, mixer[name].dtype) for name, w in merged.items()}
        converted[str(i)] = {**whole, "mixer": mixer}
        chosen.append(groups)
    aligned = procrustes.turnable(model) if align and smaller != model else ()
    return Conversion({**params, "layers": converted}, smaller, tuple(chosen), aligned)


def head_sums(stops: Mapping[str, jax.Array], *, rope: bool) -> dict[str, dict[str, jax.Array]]:
    """A probe of `Model.apply`: what `convert` takes as `activations`, of one batch and layer.

    Args:
      stops: the layer's; {} is returned for a mixer without keys and values.
      rope: the model has rotary positions; keys are compared before their rotation.
    """
    if "k_bskh" not in stops or "v_bskh" not in stops:
        return {}
    k_bskh = sharing.before_rotation(stops["k_bskh"]) if rope else stops["k_bskh"]
    return {"keys": cka.cross_sums(k_bskh), "values": cka.cross_sums(stops["v_bskh"])}


def weight_sums(mixer: Params, n_kv_heads: int) -> dict[str, dict[str, Any]]:
    """The same from a mixer's weights: as of inputs that are uncorrelated, of unit variance and of
    mean zero, beside a one for the biases.
    """
    sums = {}
    for name, letter in (("keys", "k"), ("values", "v")):
        if f"w{letter}" in mixer:
            w = np.asarray(mixer[f"w{letter}"], np.float64)
            if f"b{letter}" in mixer:
                w = np.concatenate([w, np.asarray(mixer[f"b{letter}"], np.float64)[None]])
            w_dkh = w.reshape(len(w), n_kv_heads, -1)
            moment = np.einsum("dic,dje->icje", w_dkh, w_dkh)
            sums[name] = {"moment": moment, "total": np.zeros(w_dkh.shape[1:]), "n_rows": len(w)}
    return sums


def similarity(sums: HeadSums) -> np.ndarray:
    """How alike the kv heads of a layer are, [k, k]: the mean of linear CKA of keys and of values.

    Range 0 to 1, equal up to rotation, scale and (of activations) shift. A head whose keys or
    values are constant is unlike all others there: 0. It sees through rotations that rotary
    positions or qk_norm do not let `align` undo.
    """
    return np.mean([np.nan_to_num(cka.linear_cka(one)) for one in sums.values()], axis=0)


def _counts(n_kv_heads: int | Sequence[int], model: ModelSpec) -> list[int]:
    n_layers = len(model.layers)
    counts = [n_kv_heads] * n_layers if isinstance(n_kv_heads, int) else list(n_kv_heads)
    if len(counts) != n_layers:
        raise ValueError(
            f"n_kv_heads={counts} must be one number or one for each of {n_layers} layers"
        )
    return counts


def _check(
    model: ModelSpec, smaller: ModelSpec, method: str, *, align: bool, key: jax.Array | None
) -> None:
    if method not in METHODS:
        raise ValueError(f"method={method!r} is not one of {', '.join(METHODS)}")
    for i, (old, new) in enumerate(zip(model.layers, smaller.layers, strict=True)):
        if new.n_kv_heads < 1 or old.n_kv_heads % new.n_kv_heads:
            raise ValueError(
                f"layer {i}: n_kv_heads={new.n_kv_heads} must divide its {old.n_kv_heads} kv heads"
            )
        if new != old and old.mixer != "grouped":
            raise ValueError(f"layer {i}: only the mixer 'grouped' converts, not {old.mixer!r}")
    if smaller == model:
        return
    if any(layer.kv_from is not None for layer in model.layers):
        raise ValueError("layers share keys and values (kv_from): kv heads convert in none of them")
    if model.share in ("qk", "qkv"):
        raise ValueError(f"share={model.share!r}: wq makes the keys, one for each query head")
    if method == "similar" and not model.use_wo:
        raise ValueError("method='similar' moves query heads, which needs a wo; choose 'mean'")
    if method == "random" and (align or key is None):
        raise ValueError("method='random' keeps no kv head: it needs a key and align=False")
    if align and not procrustes.turnable(model):
        why = "share= ties them" if model.share != "none" else "qk_norm, and gate or no wo"
        raise ValueError(f"align=True: neither keys nor values of this model may turn ({why})")


def _groups(sums: HeadSums, old: LayerSpec, new: LayerSpec, method: str) -> list[list[int]]:
    if method == "similar":
        return grouping.balanced(similarity(sums), new.n_kv_heads)
    return sharing.contiguous(old.n_kv_heads, new.n_kv_heads)


def _firsts(mixer: Params, n_kv_heads: int, groups: grouping.Groups) -> dict[str, Any]:
    firsts = np.array([group[0] for group in groups])

    def of(w: Any) -> np.ndarray:
        w_xkh = np.asarray(w).reshape(*w.shape[:-1], n_kv_heads, -1)
        return w_xkh[..., firsts, :].reshape(*w.shape[:-1], -1)

    return {name: of(w) if name in _KV else w for name, w in mixer.items()}


def _fresh(new: LayerSpec, model: ModelSpec, i: int, key: jax.Array | None) -> dict[str, Any]:
    """wk, wv and their biases as `Model.init` would draw them for layer i."""
    assert key is not None  # `_check` asks for it
    layer_key = fold(fold(fold(key, "layers"), str(i)), "mixer")
    mixer = grouped.Mixer(new, model, key=layer_key)
    return {name: w[...] for name in _KV if (w := getattr(mixer, name)) is not None}

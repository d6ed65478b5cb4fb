"""Addresses of what is computed inside a model: "l1.n3.z" is z of query head 3 of layer 1.

    l<layer>.n<head>.<stop>   q, scores, weights, z, head_out   of a query head
    l<layer>.k<head>.<stop>   k, v                              of a kv head
    l<layer>.resid            what enters the layer

Layers, query heads and kv heads count from 0. Stops are those of `attention.stops`, with query
heads on one axis n = k * g; the array behind an address has no axis of heads:

    resid, head_out [b, t, d]   q, z [b, t, h]   k, v [b, s, h]   scores, weights [b, t, s]
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from mha_jax.attention.stops import STOPS, Replacement, flat, flat_shape, head_axis, on_one_axis

NAMES = {stop.rpartition("_")[0]: stop for stop in STOPS}

# The stops of each layer, as arrays or as their shapes.
Layers = Sequence[Mapping[str, Any]]


class Address(NamedTuple):
    """A stop of one layer, and of one head where the stop has heads."""

    layer: int
    head: int | None
    stop: str  # one of `STOPS`


def parse(text: str, layers: Layers) -> Address:
    """The address in a text.

    Args:
      text: as above.
      layers: the stops that the model has.

    Raises:
      ValueError: no address, a layer, head or stop that is not there, or a query head where the
        stop has kv heads and the other way round.
    """
    found = re.fullmatch(r"l(0|[1-9]\d*)\.(?:([nk])(0|[1-9]\d*)\.)?(\w+)", text)
    if found is None or found[4] not in NAMES:
        raise ValueError(
            f"{text!r} is no address; write l<layer>.n<head>.<stop>, l<layer>.k<head>.<stop> or "
            f"l<layer>.resid with a stop of {', '.join(NAMES)}"
        )
    layer, letter, head, name = int(found[1]), found[2], found[3], found[4]
    stop = NAMES[name]
    if layer >= len(layers):
        raise ValueError(f"{text!r}: the model has {len(layers)} layers, which count from 0")
    if stop not in layers[layer]:
        raise ValueError(f"{text!r}: the mixer of layer {layer} has no {name}")
    axis = head_axis(stop)
    if axis is None:
        if letter is not None:
            raise ValueError(f"{text!r}: {name} has no heads; write l{layer}.{name}")
        return Address(layer, None, stop)
    wanted = flat(stop)[axis]
    kind = {"n": "query head", "k": "kv head"}[wanted]
    if letter != wanted:
        raise ValueError(
            f"{text!r}: {name} belongs to a {kind}; write l{layer}.{wanted}<head>.{name}"
        )
    n_heads = flat_shape(stop, layers[layer][stop].shape)[axis]
    if int(head) >= n_heads:
        raise ValueError(f"{text!r}: layer {layer} has {n_heads} {kind}s, which count from 0")
    return Address(layer, int(head), stop)


def check(text: str, layers: Layers) -> None:
    """Nothing, where `pick` can pick it.

    Raises:
      ValueError: as `parse`, and a bare stop that no layer has.
    """
    if text not in NAMES:
        parse(text, layers)
    elif not any(NAMES[text] in layer for layer in layers):
        raise ValueError(f"{text!r}: no mixer of the model has it")


def pick(text: str, layers: Layers) -> Any:
    """The array behind an address; behind a bare stop, such as "z", a list with the arrays of all
    layers, heads included: None for a layer whose mixer has no such stop.

    Raises:
      ValueError: as `check`.
    """
    check(text, layers)
    if text in NAMES:
        stop = NAMES[text]
        return [on_one_axis(stop, layer[stop]) if stop in layer else None for layer in layers]
    layer, head, stop = parse(text, layers)
    array, axis = on_one_axis(stop, layers[layer][stop]), head_axis(stop)
    return array if axis is None or head is None else jnp.take(array, head, axis=axis)


def replacements(values: Mapping[str, Any], layers: Layers) -> list[dict[str, Replacement]]:
    """What `Model.apply` takes as `replace`.

    Args:
      values: address -> array, of the shape of the stop without heads or of one that broadcasts
        to it.
      layers: the stops that the model has for these inputs, or their shapes.

    Raises:
      ValueError: as `parse`, or an array that does not fit.
    """
    wheres: list[dict[str, np.ndarray]] = [{} for _ in layers]
    full: list[dict[str, np.ndarray]] = [{} for _ in layers]
    for text, given in values.items():
        layer, head, stop = parse(text, layers)
        shape, axis = flat_shape(stop, layers[layer][stop].shape), head_axis(stop)
        one_head = tuple(size for i, size in enumerate(shape) if i != axis)
        value = np.asarray(given)
        if value.dtype.kind in "OSUcmM":
            raise ValueError(f"{text!r}: needs real numbers, not {value.dtype}")
        try:
            value = np.broadcast_to(value.astype(np.float32), one_head)
        except ValueError:
            raise ValueError(
                f"{text!r}: an array of {value.shape} does not fit {one_head}"
            ) from None
        if axis is None:
            wheres[layer][stop], full[layer][stop] = np.array(True), value
            continue
        where = wheres[layer].setdefault(stop, np.zeros(shape[axis], bool))
        array = full[layer].setdefault(stop, np.zeros(shape, np.float32))
        where[head] = True
        array[(slice(None),) * axis + (head,)] = value
    return [
        {
            stop: Replacement(jnp.asarray(where), jnp.asarray(value[stop]))
            for stop, where in chosen.items()
        }
        for chosen, value in zip(wheres, full, strict=True)
    ]

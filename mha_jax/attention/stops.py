"""Where a layer can be looked at and changed: its named stops, and what a call tells a layer.

A stop's name ends with the letters of its axes (see `core.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import jax
import jax.numpy as jnp

from mha_jax.attention.core import Mask

# In the order of computation.
STOPS = (
    "resid_btd",  # what enters the layer, before its norm
    "q_btkgh",  # queries and keys, normalised and rotated where the model does so
    "k_bskh",
    "v_bskh",  # times kv_mask
    "scores_bkgts",  # float32, scaled, before the mask
    "weights_bkgts",  # float32
    "z_btkgh",  # weights @ v, before head_mask and gate
    "head_out_btnd",  # what a head adds to the mixer's output: the sum over n, plus a bias, is it
)


def flat(stop: str) -> str:
    """Letters of a stop's axes with its query heads on one axis: "btnh" of "q_btkgh"."""
    return stop.rpartition("_")[2].replace("kg", "n")


def head_axis(stop: str) -> int | None:
    """Which axis of `flat(stop)` the heads are on, query heads or kv heads; None: it has none."""
    axes = flat(stop)
    return next((axes.index(letter) for letter in "nk" if letter in axes), None)


def flat_shape(stop: str, shape: Sequence[int]) -> tuple[int, ...]:
    """The shape that a stop's array has with its query heads on one axis."""
    size = dict(zip(stop.rpartition("_")[2], shape, strict=True))
    return tuple(size[a] if a in size else size["k"] * size["g"] for a in flat(stop))


def on_one_axis(stop: str, x: jax.Array) -> jax.Array:
    """A stop's array with its query heads on one axis."""
    return x.reshape(flat_shape(stop, x.shape))


class Replacement(NamedTuple):
    """What takes the place of a stop. Both are arguments of a program, so that one program
    replaces any heads."""

    where: jax.Array  # bool, one for each head of the stop; [] for resid, which has no heads
    value: jax.Array  # axes as `flat` says; one of length 1 stands for all


class Context(NamedTuple):
    """What a layer is told about its call, beside the residual stream."""

    mask: Mask = Mask()  # the task's; a layer sets its own window in it
    wants_stops: bool = False
    head_mask: jax.Array | None = None  # float [n] or [b, n], multiplies z
    kv_mask: jax.Array | None = None  # float [k] or [b, k], multiplies v
    replace: Mapping[str, Replacement] = MappingProxyType({})  # by stop
    qk_rows: jax.Array | None = None  # [b*t, d], what queries and keys read; None: what values do
    lent: tuple[jax.Array, jax.Array] | None = None  # k_bskh and v_bskh of the layer it reads

    def put(self, stop: str, x: jax.Array) -> jax.Array:
        """The array of a stop as the layer goes on with it: a mixer passes every stop that it
        returns through here.
        """
        if stop not in self.replace:
            return x
        where, value = self.replace[stop]
        one_axis = on_one_axis(stop, x)
        if where.ndim:
            where = where.reshape([-1 if i == head_axis(stop) else 1 for i in range(one_axis.ndim)])
        return jnp.where(where, value.astype(x.dtype), one_axis).reshape(x.shape)

"""Heads turned towards each other, while the layer computes what it did (host, float64).

The basis of a head is arbitrary: values x wv R with the rows R^T wo, and keys x wk R with queries
x wq R, are the same layer for every orthogonal R. Two kv heads can therefore be alike up to R, and
their mean is of no use before one is turned towards the other (Jin et al. 2024, 2412.20677, who do
this on activations before merging heads; the closed forms below are the classical ones).

What stands between a head and its partner must commute with R:

    rotary positions   keys turn by an angle in each plane (i, i + h/2) only: `phases`
    qk_norm            keys do not turn: its scales, by coordinate, come after the norm
    gate               values do not turn: it multiplies z by coordinate
    share=             neither: one matrix has two partners
    no wo              values do not turn: nothing turns them back

Letters: n query heads, k kv heads, g = n / k, h d_head. Moments are those of `cka.cross_sums`,
[k, h, k, h]: sums over rows x of x_i^T x_j, about zero.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from mha_jax.analysis.grouping import Groups
from mha_jax.config import ModelSpec

_TURNED = {"keys": ("wk", "bk", "wq", "bq"), "values": ("wv", "bv")}


def turnable(model: ModelSpec) -> tuple[str, ...]:
    """Which of "keys" and "values" may turn in this model; see the module."""
    if model.share != "none":
        return ()
    free = {"keys": not model.qk_norm, "values": model.use_wo and not model.gate}
    return tuple(name for name, may in free.items() if may)


def align(
    params: Mapping[str, Any],
    model: ModelSpec,
    groups: Groups,
    sums: Mapping[str, Mapping[str, Any]],
) -> dict[str, Any]:
    """A mixer's parameters with every kv head turned towards the first of its group.

    The layer computes what it did. Keys under rotary positions turn by `phases`, all else by any
    `orthogonal` matrix; what may not turn stays as it is.

    Args:
      params: by the names of `attention.grouped.Attention`.
      model: the model that they are of.
      groups: the kv heads of each group.
      sums: "keys" (before their rotation) and "values", each with its `moment`.
    """
    turned = dict(params)
    for what in turnable(model):
        rule = phases if what == "keys" and model.positions == "rope" else orthogonal
        moment_khkh = np.asarray(sums[what]["moment"], np.float64)
        turned = turn(turned, what, to_first(moment_khkh, groups, rule))
    return turned


def orthogonal(moment_hh: np.ndarray) -> np.ndarray:
    """The orthogonal R [h, h], reflections included, that brings x R nearest to y.

    It minimises ||X R - Y||_F: R = U V^T of the singular value decomposition of X^T Y (Schönemann
    1966), which is `moment_hh`.
    """
    u, _, vt = np.linalg.svd(moment_hh)
    return u @ vt


def phases(moment_hh: np.ndarray) -> np.ndarray:
    """The same among the R that commute with `attention.positions.rope`; needs an even h.

    With x_i + i x_(i+h/2) as one complex number they multiply each by a phase, and the nearest one
    is the phase of sum conj(x) y.
    """
    half = len(moment_hh) // 2
    (m11, m12), (m21, m22) = (
        np.diagonal(moment_hh.reshape(2, half, 2, half), axis1=1, axis2=3)[i] for i in range(2)
    )
    angle = np.arctan2(m12 - m21, m11 + m22)
    cos, sin = np.diag(np.cos(angle)), np.diag(np.sin(angle))
    return np.block([[cos, sin], [-sin, cos]])  # rows are turned: x R


def to_first(
    moment_khkh: np.ndarray, groups: Groups, rule: Callable[[np.ndarray], np.ndarray]
) -> np.ndarray:
    """The R of each head that brings it nearest to the first of its group, [k, h, h].

    That of a first head is the identity.

    Args:
      moment_khkh: of the keys (before their rotation, see `phases`) or of the values.
      groups: the kv heads of each group.
      rule: `orthogonal` or `phases`.
    """
    k, h, _, _ = moment_khkh.shape
    turns_khh = np.tile(np.eye(h), (k, 1, 1))
    for first, *others in groups:
        for head in others:
            turns_khh[head] = rule(moment_khkh[head, :, first])
    return turns_khh


def turn(params: Mapping[str, Any], what: str, turns_khh: np.ndarray) -> dict[str, Any]:
    """A mixer's parameters with the keys or the values of each kv head turned.

    The function stays the same for orthogonal turns, of those that the model allows.

    Args:
      params: by the names of `attention.grouped.Attention`.
      what: "keys" or "values".
      turns_khh: R of each kv head; its g query heads turn by the same one.
    """
    turned = dict(params)
    for name in _TURNED[what]:
        if name in params:
            turned[name] = _by_columns(params[name], turns_khh)
    if what == "values":
        turned["wo"] = _by_columns(np.asarray(params["wo"]).T, turns_khh).T
    return turned


def _by_columns(w: Any, turns_khh: np.ndarray) -> np.ndarray:
    """[..., k*h] or [..., n*h] with the columns of each head times the R of its kv head."""
    w = np.asarray(w, np.float64)
    k, h, _ = turns_khh.shape
    w_xkgh = w.reshape(*w.shape[:-1], k, -1, h)
    return np.einsum("...kgh,khe->...kge", w_xkgh, turns_khh).reshape(w.shape)

"""The page's arithmetic, in numpy: what `files/arithmetic.js` makes of q, k, v and W_O.

The page computes in float64 and the model in float32, so that the last digit shown can differ. This
mirror finds, before a page is made, where it does: there the page gets the model's own number. And
it finds the layers whose attention is something else than softmax(scale q k^T) v, of which the page
then shows the weights alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from mha_jax.attention.core import Mask

DIGITS = 4  # decimals of every number that the page shows
# Of two computations of one formula, relative to the largest number: sums of a few hundred float32
# terms differ by some 1e-6, another formula or a product in bfloat16 by 1e-3 or more.
_TOLERANCE = 2e-5


def recomputed(
    q_tnh: np.ndarray,
    k_skh: np.ndarray,
    v_skh: np.ndarray,
    mask: Mask,
    scale: float,
    sink_n: np.ndarray | None,
) -> dict[str, np.ndarray]:
    """Scores [n, t, s], weights [n, t, s] and z [t, n, h], float64.

    Query head i reads kv head i // g, n = k g. A logit `sink_n` takes part in the sum of its head's
    softmax and has no weight; a query that sees no key has weights 0.
    """
    n_tnh, k_nsh, v_nsh = (x.astype(np.float64) for x in (q_tnh, *_for_heads(q_tnh, k_skh, v_skh)))
    scores_nts = scale * np.einsum("tnh,nsh->nts", n_tnh, k_nsh)
    visible_ts = mask.table(len(q_tnh))
    hidden_nts = np.where(visible_ts, scores_nts, -np.inf)
    most_nt1 = hidden_nts.max(-1, keepdims=True)
    if sink_n is not None:
        most_nt1 = np.maximum(most_nt1, sink_n.astype(np.float64)[:, None, None])
    most_nt1 = np.where(np.isfinite(most_nt1), most_nt1, 0.0)
    exp_nts = np.exp(hidden_nts - most_nt1)
    sum_nt1 = exp_nts.sum(-1, keepdims=True)
    if sink_n is not None:
        sum_nt1 = sum_nt1 + np.exp(sink_n.astype(np.float64)[:, None, None] - most_nt1)
    weights_nts = np.divide(exp_nts, sum_nt1, out=np.zeros_like(exp_nts), where=sum_nt1 > 0)
    z_tnh = np.einsum("nts,nsh->tnh", weights_nts, v_nsh)
    return {"scores": scores_nts, "weights": weights_nts, "z": z_tnh}


def head_outputs(z_tnh: np.ndarray, wo: np.ndarray) -> np.ndarray:
    """What each head adds to the output, [t, n, d]: its rows of wo [n*h, d] applied to its z."""
    n, h = z_tnh.shape[1:]
    return np.einsum(
        "tnh,nhd->tnd", z_tnh.astype(np.float64), wo.astype(np.float64).reshape(n, h, -1)
    )


def agrees(ours: np.ndarray, models: np.ndarray) -> bool:
    """Whether they are one formula's, up to the rounding of float32."""
    if ours.shape != models.shape or not np.isfinite(models).all():
        return False
    room = _TOLERANCE * max(1.0, float(np.abs(models).max(initial=0)))
    return bool(np.abs(ours - models).max(initial=0) <= room)


def patches(ours: Mapping[str, np.ndarray], models: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """By name the flat places at which the two differ in the digits shown, and the model's numbers.

    An array is left out where there is no such place.
    """
    found = {}
    for name, array in ours.items():
        model = models[name].astype(np.float64)
        (places,) = np.nonzero(_shown(array).ravel() != _shown(model).ravel())
        if len(places):
            found[name] = {
                "at": places.tolist(),
                "value": [float(f"{x:.9g}") for x in model.ravel()[places]],
            }
    return found


def _shown(x: np.ndarray) -> np.ndarray:
    """What the page shows of numbers, in units of the last digit; halves go up, as in JavaScript's
    toFixed."""
    return np.sign(x) * np.floor(np.abs(x) * 10**DIGITS + 0.5)


def _for_heads(q_tnh: np.ndarray, *arrays_skh: np.ndarray) -> list[np.ndarray]:
    """Arrays of kv heads as [n, s, h]: one for each query head."""
    n = q_tnh.shape[1]
    return [
        np.repeat(x_skh.transpose(1, 0, 2), n // x_skh.shape[1], axis=0) for x_skh in arrays_skh
    ]

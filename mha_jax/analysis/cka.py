"""Linear CKA between heads: how alike what they write, or their keys or values, is up to rotation.

Letters: b sequences, t positions, n heads (query or kv), c columns of a feature, d d_model.
`cross_sums` runs inside the compiled program, `linear_cka` on the host in float64.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

# Float32 sums tell a variance from rounding down to about this share of the second moment.
RESOLUTION = 1e-5


def cross_sums(
    x_btnc: jax.Array, valid_bt: jax.Array | None = None, about_nc: jax.Array | None = None
) -> dict[str, jax.Array]:
    """Second moments between the features of all pairs of heads, for `linear_cka`.

    Add them over batches. They are not per sequence, which would take b times the memory.

    Args:
      x_btnc: features: z, head_out, keys, values of each (kv) head.
      valid_bt: bool, the rows that count.
      about_nc: a point that is subtracted, the same for all batches; it does not change CKA, but
        float32 sums about a point near the mean keep small variations of a large mean.

    Returns:
      `moment` [n, c, n, c], `total` [n, c], `n_rows` [], int32.
    """
    rows_bt = jnp.ones(x_btnc.shape[:2], bool) if valid_bt is None else jnp.asarray(valid_bt, bool)
    x_btnc = x_btnc.astype(jnp.float32)
    x_btnc = x_btnc if about_nc is None else x_btnc - about_nc[None, None]
    x_btnc = jnp.where(rows_bt[:, :, None, None], x_btnc, 0)
    exact = jax.lax.Precision.HIGHEST  # a GPU would round the factors to 10 bits
    return {
        "moment": jnp.einsum("btnc,btme->ncme", x_btnc, x_btnc, precision=exact),
        "total": x_btnc.sum((0, 1)),
        "n_rows": rows_bt.sum(dtype=jnp.int32),
    }


def linear_cka(sums: Mapping[str, Any], maps_ncd: np.ndarray | None = None) -> np.ndarray:
    """Linear CKA between the features of each pair of heads, [n, n], from summed `cross_sums`.

    ||Y^T X||_F^2 / (||X^T X||_F ||Y^T Y||_F), the columns of X and Y centred over the rows of all
    batches (Kornblith et al. 2019). It does not change when a head's features are rotated, scaled
    or shifted.

    Range: 0, uncorrelated, to 1, equal up to these. Baseline: independent Gaussian features reach
    about c / (N + c) with N rows, so take many more rows than columns; rows of one sequence are not
    independent. NaN for a head whose features are constant to float32 (`RESOLUTION`).

    Args:
      sums: added over batches.
      maps_ncd: matrices that the features go through first. With z and wo [n, h, d] it is the CKA
        of what the heads write, without sums of size d; a gate stands between the two, so then give
        head_out itself.
    """
    rows = float(np.asarray(sums["n_rows"]))
    raw, total = (np.asarray(sums[name], np.float64) for name in ("moment", "total"))
    centred = raw - np.einsum("nc,me->ncme", total, total) / max(rows, 1)
    n, c = total.shape
    # ||A_n^T M A_m||_F^2 = <P_n M P_m, M> with P = A A^T, so nothing of size d is made.
    maps = np.broadcast_to(np.eye(c), (n, c, c)) if maps_ncd is None else np.asarray(maps_ncd)
    metric_ncc = np.einsum("ncd,ned->nce", maps, maps, dtype=np.float64)

    def squares(moment: np.ndarray) -> np.ndarray:
        turned = np.einsum("nab,nbmc->namc", metric_ncc, moment)
        return (np.einsum("namc,mcd->namd", turned, metric_ncc) * moment).sum((1, 3))

    square_nn = squares(centred)
    own_n, floor_n = np.diag(square_nn), RESOLUTION**2 * np.diag(squares(raw))
    own_n = np.where(own_n > floor_n, own_n, np.nan)
    return square_nn / np.sqrt(own_n[:, None] * own_n[None])

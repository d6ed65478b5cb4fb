"""How alike the heads of a layer attend, and the disagreement of what they read and write.

Letters: b sequences, t query positions, s key positions, n query heads, k kv heads, h d_head.
Functions named `..._sums` run inside the compiled program and return sums per sequence, to be
concatenated over batches; the others take these on the host, in float64, and resampling axis b
gives an interval. NaN is "undefined".

A row counts if `valid_bt` says so (None: every row does). Numbers in rows that do not count, NaN
too, are never read.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

# A GPU would round the factors of a float32 product to 10 bits.
_einsum = functools.partial(jnp.einsum, precision=jax.lax.Precision.HIGHEST)


class Agreement(NamedTuple):
    """Attention of query heads that share a kv head against that of query heads that do not."""

    within_k: np.ndarray  # [k], mean JS over the pairs of query heads of each kv head
    within: float  # the mean of within_k
    across: float  # mean JS over the pairs of query heads of different kv heads
    ratio: float  # 1 - within / across


def js_sums(
    weights_bnts: jax.Array, visible_ts: jax.typing.ArrayLike, valid_bt: jax.Array | None = None
) -> dict[str, jax.Array]:
    """Jensen-Shannon divergences of all pairs of heads, summed over rows.

    Rows that see fewer than two keys are left out: all heads agree there by necessity.

    Args:
      weights_bnts: attention weights; rows sum to one over s.
      visible_ts: bool, whether row t may see key s.
      valid_bt: bool, the rows that count.

    Returns:
      `js` [b, n, n] and `n_rows` [b], int32, for `js_matrix`.
    """
    several_t = jnp.asarray(visible_ts, bool).sum(-1) > 1
    rows_bt = _rows(weights_bnts, valid_bt) & several_t[None]
    weights_bnts = jnp.where(rows_bt[:, None, :, None], weights_bnts, 0)

    def to_all(p_bts: jax.Array) -> jax.Array:
        mean_bnts = (p_bts[:, None] + weights_bnts) / 2
        both = _kl_terms(p_bts[:, None], mean_bnts) + _kl_terms(weights_bnts, mean_bnts)
        return both.sum((2, 3)) / 2

    # One head at a time: [b, n, n, t, s] at once would be the largest array of a probe.
    js_nbn = jax.lax.map(to_all, weights_bnts.transpose(1, 0, 2, 3))
    return {"js": js_nbn.transpose(1, 0, 2), "n_rows": rows_bt.sum(1, dtype=jnp.int32)}


def js_matrix(sums: Mapping[str, Any]) -> np.ndarray:
    """Jensen-Shannon divergence between the attention of each pair of heads, nats, [n, n].

    JS(p, q) = (KL(p || m) + KL(q || m)) / 2 with m = (p + q) / 2 and 0 log 0 = 0, the mean over
    the rows of all sequences. Clark et al. 2019 call it a distance; it is not square-rooted. Their
    code smooths and sums over tokens, this does neither.

    Range: 0, equal attention, to ln 2, no key in common. Baseline: 0, which uniform heads reach as
    well as other identical ones. NaN without a row.
    """
    js = np.asarray(sums["js"], np.float64).sum(0) / _or_nan(np.asarray(sums["n_rows"]).sum())
    return np.clip(js, 0, np.log(2))  # float32 rounding leaves the range by 1e-8


def mean_to_others(matrix_nn: np.ndarray) -> np.ndarray:
    """Of a symmetric matrix, for each head the mean over the other heads where it is defined, [n].

    NaN where it is defined for no other head: with one head, always.
    """
    defined_nn = np.isfinite(matrix_nn) & ~np.eye(len(matrix_nn), dtype=bool)
    return np.where(defined_nn, matrix_nn, 0).sum(1) / _or_nan(defined_nn.sum(1))


def layer_mean(matrix_nn: np.ndarray) -> float:
    """The mean over all pairs of different heads where it is defined; NaN for one head.

    Of `js_matrix` it is the layer's diversity, of `linear_cka` between kv heads their redundancy
    (both ours).
    """
    pairs = np.asarray(matrix_nn)[~np.eye(len(matrix_nn), dtype=bool)]
    return float(pairs[np.isfinite(pairs)].sum() / _or_nan(np.isfinite(pairs).sum()))


def agreement(js_nn: np.ndarray, n_kv_heads: int) -> Agreement:
    """Do query heads that share a kv head attend alike? From `js_matrix`; ours.

    ratio = 1 - JS_within / JS_across, means over pairs of different query heads; query head i reads
    kv head i // (n / k). Range: -inf to 1, which is equal attention inside every group. Baseline:
    0, where groups make no difference. `within` is NaN for one query head a group, `across` for one
    group, `ratio` where one of them is or where all heads are equal.

    Raises:
      ValueError: n_kv_heads does not divide the number of heads.
    """
    n = len(js_nn)
    if n_kv_heads < 1 or n % n_kv_heads:
        raise ValueError(f"n_kv_heads={n_kv_heads} must divide n_heads={n}")
    k, g = n_kv_heads, n // n_kv_heads
    sums_kk = np.where(np.eye(n, dtype=bool), 0, js_nn).reshape(k, g, k, g).sum((1, 3))
    within_k = np.diag(sums_kk) / _or_nan(g * (g - 1))
    across = (sums_kk.sum() - np.trace(sums_kk)) / _or_nan(n * (n - g))
    within = within_k.mean()
    return Agreement(within_k, float(within), float(across), float(1 - within / _or_nan(across)))


def disagreement_sums(
    weights_bnts: jax.Array,
    v_bskh: jax.Array,
    z_btnh: jax.Array,
    valid_bt: jax.Array | None = None,
) -> dict[str, jax.Array]:
    """Cosines and overlaps of all pairs of heads, summed over the positions that count.

    Returns:
      `sub` [b, k, k] and `out` [b, n, n], sums of cosines, and `n_sub`, `n_out`, int32, how many:
      a cosine with a vector of zeros is left out. `pos` [b, n, n], sums over rows and keys of the
      products of two heads' weights. `n_rows` [b], int32. For `disagreement`.
    """
    rows_bt = _rows(weights_bnts, valid_bt)
    sub, n_sub = _cosines(v_bskh, rows_bt)
    out, n_out = _cosines(z_btnh, rows_bt)
    weights_bnts = jnp.where(rows_bt[:, None, :, None], weights_bnts, 0)
    pos = _einsum("bnts,bmts->bnm", weights_bnts, weights_bnts)
    n_rows = rows_bt.sum(1, dtype=jnp.int32)
    return dict(sub=sub, n_sub=n_sub, out=out, n_out=n_out, pos=pos, n_rows=n_rows)


def disagreement(sums: Mapping[str, Any]) -> dict[str, float]:
    """The three disagreements of Li et al. 2018, of a layer; larger is more different.

    sub = -mean cos(v_i, v_j), pos = -mean sum(A_i * A_j), out = -mean cos(z_i, z_j): means over
    all n^2 pairs of query heads, **i = j included**. Cosines are of the vectors at one position,
    then averaged over positions; sum(A_i * A_j) is over the entries of a sequence's matrix, then
    averaged over sequences. Query heads of one kv head have one v, so the mean over the k^2 pairs
    of kv heads is the same number.

    `sub` and `out`: from -1, equal directions, to 0; orthogonal heads have -1/k and -1/n, so
    compare equal head counts only. `pos` grows with the number of rows; `pos_per_row`, that divided
    by them, is between -1 and 0, for uniform attention -mean(1 / visible keys): it rewards diffuse
    attention. A head's basis is arbitrary under wv and wo, and cosines, unlike CKA, depend on it.
    NaN where all vectors of a head are zero.
    """
    pos, n_rows = np.asarray(sums["pos"], np.float64).sum(0), np.asarray(sums["n_rows"])
    cosine = {
        name: np.asarray(sums[name], np.float64).sum(0)
        / _or_nan(np.asarray(sums[f"n_{name}"]).sum(0))
        for name in ("sub", "out")
    }
    return {
        **{name: -float(mean.mean()) for name, mean in cosine.items()},
        "pos": -float(pos.mean() / _or_nan((n_rows > 0).sum())),
        "pos_per_row": -float(pos.mean() / _or_nan(n_rows.sum())),
    }


def _rows(x_bnts: jax.Array, valid_bt: jax.Array | None) -> jax.Array:
    """Bool [b, t]: the rows that count."""
    b, _, t, _ = x_bnts.shape
    return jnp.ones((b, t), bool) if valid_bt is None else jnp.asarray(valid_bt, bool)


def _kl_terms(p: jax.Array, mean: jax.Array) -> jax.Array:
    """p log(p / mean) with 0 log 0 = 0; mean is positive where p is."""
    positive = (p > 0) & (mean > 0)
    return jnp.where(positive, p * jnp.log(jnp.where(positive, p / mean, 1)), 0)


def _cosines(x_btnh: jax.Array, rows_bt: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Sums over rows of the cosines between heads, [b, n, n], and how many are defined."""
    x_btnh = jnp.where(rows_bt[:, :, None, None], x_btnh.astype(jnp.float32), 0)
    largest = jnp.abs(x_btnh).max(-1, keepdims=True)  # squares of small numbers underflow
    x_btnh = x_btnh / jnp.where(largest > 0, largest, 1)
    length = jnp.sqrt(jnp.square(x_btnh).sum(-1, keepdims=True))
    unit_btnh = x_btnh / jnp.where(length > 0, length, 1)
    defined_btn = (largest[..., 0] > 0).astype(jnp.int32)
    count = jnp.einsum("btn,btm->bnm", defined_btn, defined_btn)
    return _einsum("btnh,btmh->bnm", unit_btnh, unit_btnh), count


def _or_nan(count: Any) -> np.ndarray:
    return np.where(np.asarray(count) > 0, count, np.nan)

"""What heads would copy, and which heads read from which: from the weights alone (numpy, float64).

Elhage et al. 2021, "A Mathematical Framework for Transformer Circuits". Rows act from the left, as
in `attention.grouped`: a head writes x wv wo, and scores query x against key y by x wq wk^T y^T.
Their matrices, which act on columns, are the transposes; eigenvalues and norms are the same.

What is not in these products is ignored: norms and their scales, biases, gates, qk_norm, positions
(with rotary ones the scores are those of a key at the query's own position), sink logits, MLPs
between layers.

Letters: n query heads, k kv heads, h d_head, d d_model, v vocabulary. Everything is per query head;
query heads of one kv head have the same wk and wv, and each its own wq and wo.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np


class Heads(NamedTuple):
    """The matrices of each query head of a layer; queries and keys may be wider than values."""

    wq_ndh: np.ndarray
    wk_ndh: np.ndarray
    wv_ndh: np.ndarray
    wo_nhd: np.ndarray


def per_head(params: Mapping[str, Any], n_heads: int, n_kv_heads: int) -> Heads:
    """A mixer's parameters cut into heads, kv weights repeated for the query heads that read them.

    Args:
      params: of `attention.grouped`: wq [d, n*h], wk and wv [d, k*h], wo [n*h, d]. A matrix that
        share= leaves out is the one that makes its part: without wk wq, without wv wk. A layer that
        reads another's keys and values (kv_from) looks the same, and must be given that one's.
        Or those of `attention.mla` and `attention.gta`.
      n_heads: n.
      n_kv_heads: k; query head i reads kv head i // (n / k).

    Raises:
      ValueError: there is no wo, or the numbers of heads do not fit.
    """
    if "wo" not in params:
        raise ValueError("use_wo=False: without wo a head writes to no residual stream to read")
    if n_kv_heads < 1 or n_heads % n_kv_heads:
        raise ValueError(f"n_kv_heads={n_kv_heads} must divide n_heads={n_heads}")

    def cut(name: str, k: int) -> np.ndarray:
        w = np.asarray(params[name], np.float64)
        if w.shape[1] % k:
            raise ValueError(f"{name} has {w.shape[1]} columns, which {k} heads do not divide")
        return w.reshape(len(w), k, -1).transpose(1, 0, 2).repeat(n_heads // k, axis=0)

    wq_ndh = cut("wq", n_heads)
    if "wc" in params:  # keys and values are made of latents
        into_ndc = cut("wc", n_kv_heads)
        wk_ndh, wv_ndh = into_ndc @ cut("wuk", n_heads), into_ndc @ cut("wuv", n_heads)
        if "wkr" in params:
            wq_ndh = np.concatenate([wq_ndh, cut("wqr", n_heads)], axis=2)
            wk_ndh = np.concatenate([wk_ndh, cut("wkr", 1)], axis=2)
        wq_ndh = cut("wcq", 1) @ wq_ndh if "wcq" in params else wq_ndh
    elif "wkv" in params:  # half of a value is half of a key
        wv_ndh = cut("wkv", n_kv_heads)
        half_ndh = wv_ndh[:, :, : wv_ndh.shape[2] // 2]
        wk_ndh = np.concatenate([half_ndh, cut("wkr", 1)], axis=2)
    else:
        wk_ndh = cut("wk", n_kv_heads) if "wk" in params else wq_ndh
        wv_ndh = cut("wv", n_kv_heads) if "wv" in params else wk_ndh
    wo = np.asarray(params["wo"], np.float64)
    return Heads(wq_ndh, wk_ndh, wv_ndh, wo.reshape(n_heads, -1, wo.shape[1]))


def copying(heads: Heads, embed: np.ndarray, unembed: np.ndarray) -> np.ndarray:
    """Does a head raise the logit of the token that it attends to? [n].

    Sum of the eigenvalues of W_E W_V W_O W_U [v, v], over the sum of their magnitudes: the copying
    score of the OV circuit. Its non-zero eigenvalues are those of W_O W_U W_E W_V [h, h], which is
    what is made.

    Range: 1, all positive: every token raises itself; to -1, all negative. Baseline: 0, the mean
    over random heads, since wo and -wo are equally likely; `random_copying` has the spread. NaN
    where all eigenvalues are 0.

    Args:
      heads: `per_head`.
      embed: W_E [v, d].
      unembed: W_U [d, v], the columns of one read-out head, in the order of the same tokens.

    Raises:
      ValueError: the two have different tokens.
    """
    if len(embed) != unembed.shape[1]:
        raise ValueError(f"{len(embed)} tokens are read and {unembed.shape[1]} written: no copying")
    through_dd = np.asarray(unembed, np.float64) @ np.asarray(embed, np.float64)
    return _positive_share(heads.wo_nhd @ through_dd @ heads.wv_ndh)


def random_copying(
    embed: np.ndarray, unembed: np.ndarray, d_head: int, *, draws: int = 256, seed: int = 0
) -> np.ndarray:
    """`copying` of heads with Gaussian wv and wo under these embeddings, sorted, [draws].

    A head stands out where it lies beyond the ends of this list; the standard deviation was between
    1.4/h and 2.6/h for d up to 128.
    """
    rng, d = np.random.default_rng(seed), len(unembed)
    wv_ndh, wo_nhd = rng.normal(size=(draws, d, d_head)), rng.normal(size=(draws, d_head, d))
    return np.sort(copying(Heads(wv_ndh, wv_ndh, wv_ndh, wo_nhd), embed, unembed))


def composition(first: Heads, second: Heads) -> dict[str, np.ndarray]:
    """How much heads of a later layer read what heads of an earlier one write, each [n2, n1].

    r = ||M W_OV||_F / (||M||_F ||W_OV||_F), W_OV = wo^T wv^T of the first head and M of the second:
    `q` its W_QK^T = wk wq^T, `k` its W_QK = wq wk^T, `v` its W_OV. Composition through the queries,
    the keys, the values.

    Range: 0, it reads nothing of what is written, to 1. Equal singular values, h of them, cannot
    give more than h^-0.5. Baseline: `composition_baseline`. NaN for matrices of zeros. It weighs
    directions that the residual stream never takes as much as all others.

    Raises:
      ValueError: layers of different d_model.
    """
    if first.wo_nhd.shape[2] != second.wq_ndh.shape[1]:
        raise ValueError(
            f"the first layer writes d_model={first.wo_nhd.shape[2]}, the second reads "
            f"{second.wq_ndh.shape[1]}"
        )
    wo2_ndh = second.wo_nhd.transpose(0, 2, 1)
    pairs = {
        "q": (second.wq_ndh, second.wk_ndh),
        "k": (second.wk_ndh, second.wq_ndh),
        "v": (second.wv_ndh, wo2_ndh),
    }
    return {name: _composed(first, *pair) for name, pair in pairs.items()}


def composition_baseline(d_model: int) -> float:
    """Root mean square of `composition` for matrices that know nothing of each other: d^-0.5.

    For any singular values, so for any d_head and any number of heads: if the directions are turned
    at random, as Gaussian weights are, a squared cosine between two of them has the mean 1/d, hence
    E ||M W||_F^2 = ||M||_F^2 ||W||_F^2 / d. The mean of r is a little smaller.
    """
    return d_model**-0.5


def _composed(first: Heads, reads_ndh: np.ndarray, onto_ndh: np.ndarray) -> np.ndarray:
    """||wv wo R S^T|| / (||wv wo|| ||R S^T||) for each head with (R, S), [n2, n1].

    From [h, h] products: ||A B C^T||_F^2 = <A^T A B, B C^T C>.
    """
    values_nhh, onto_nhh = _gram(first.wv_ndh), _gram(onto_ndh)
    between_mnhh = first.wo_nhd[None] @ reads_ndh[:, None]
    square_mn = ((values_nhh @ between_mnhh) * (between_mnhh @ onto_nhh[:, None])).sum((2, 3))
    writes_n = (values_nhh * _gram(first.wo_nhd.transpose(0, 2, 1))).sum((1, 2))
    reads_m = (onto_nhh * _gram(reads_ndh)).sum((1, 2))
    product_mn = reads_m[:, None] * writes_n[None]
    return np.sqrt(np.maximum(square_mn, 0) / np.where(product_mn > 0, product_mn, np.nan))


def _gram(w_ndh: np.ndarray) -> np.ndarray:
    return w_ndh.transpose(0, 2, 1) @ w_ndh


def _positive_share(w_nhh: np.ndarray) -> np.ndarray:
    """Sum of the eigenvalues over the sum of their magnitudes; they come in conjugate pairs."""
    values_nh = np.linalg.eigvals(w_nhh)
    size_n = np.abs(values_nh).sum(1)
    return values_nh.real.sum(1) / np.where(size_n > 0, size_n, np.nan)

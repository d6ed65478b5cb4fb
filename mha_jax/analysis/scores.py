"""Scores of attention heads: from one batch of weights to sums for every sequence.

Every score is a mean over query rows of something between 0 and its largest value, and goes with
the value that uniform attention over the visible keys has on the same rows, exactly. What is kept
are sums, so that batches can be joined along b and `bootstrap.finish` can resample sequences.
Letters: b sequences, t query positions, s key positions, n heads. `weights_bnts[b, n, t, s]` is
what query t reads of key s; rows sum to one. Run inside the compiled program.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from mha_jax.analysis import targets

# Weights this close to the heaviest, relative to it, tie with it: a softmax of equal scores and
# 1 / n differ in the last bits.
_TIE = 1e-6


class Sums(NamedTuple):
    """A score before division; further axes, `offset_mass` has one, come last."""

    value: Any  # float32 [b, n]: sum over the rows that count
    baseline: Any  # float32 [b]: the same of uniform attention over the visible keys
    n_rows: Any  # int32 [b]: rows that count
    n_queries: Any  # int32 [b]: rows that were asked and see a key


def mass(
    weights_bnts: jax.Array,
    target_bts: jax.Array,
    visible_ts: ArrayLike,
    *,
    rows_bt: jax.Array | None = None,
    every_row: bool = False,
) -> Sums:
    """Weight on the target's visible keys: sum over s in M_t of A[t, s], a share from 0 to 1.

    Baseline: |M_t| / visible keys of t. The mask-match "mul" of TransformerLens `head_detector.py`,
    restricted to rows with a target in sight.

    Args:
      weights_bnts: attention weights, or `argmax_share` of them for a rate.
      target_bts: bool, see `targets`; b may be 1.
      visible_ts: bool, whether query t sees key s.
      rows_bt: bool, queries that are asked; b may be 1. None: all.
      every_row: count queries without a target in sight as 0, as TransformerLens and Clark et al.
        2019 do.
    """
    visible_ts = jnp.asarray(visible_ts, bool)
    hit_bts = target_bts & visible_ts[None]
    (b,) = jnp.broadcast_shapes(weights_bnts.shape[:1], hit_bts.shape[:1])
    asked_bt = _asked(b, visible_ts, rows_bt)
    counts_bt = asked_bt if every_row else asked_bt & hit_bts.any(-1)
    # where, not a product: a NaN in a row that does not count must not spread.
    value = jnp.where((hit_bts & counts_bt[..., None])[:, None], weights_bnts, 0).sum((2, 3))
    # A count divided once is exactly 1 where all visible keys are targets; a sum of 1 / n is not.
    n_keys_t = jnp.maximum(visible_ts.sum(-1), 1)
    baseline = jnp.where(counts_bt, hit_bts.sum(-1) / n_keys_t[None], 0).sum(-1)
    return Sums(value, baseline, _count(counts_bt), _count(asked_bt))


def argmax_share(weights_bnts: jax.Array) -> jax.Array:
    """One at each row's heaviest key, shared equally among keys that tie: what `mass` of it counts
    is how often the argmax falls on the target.

    A positional head has .9 or more at one offset (Voita et al. 2019, arXiv:1905.09418, section 5).
    """
    heaviest = weights_bnts.max(-1, keepdims=True)
    top_bnts = (weights_bnts >= heaviest * (1 - _TIE)).astype(weights_bnts.dtype)
    return top_bnts / top_bnts.sum(-1, keepdims=True)


def offset_mass(weights_bnts: jax.Array, visible_ts: ArrayLike, *, every_row: bool = False) -> Sums:
    """`mass` at each of `targets.OFFSETS`, o, the last axis: value [b, n, o], baseline [b, o]."""
    target_obts = jnp.stack([targets.offset(weights_bnts.shape[-1], k) for k in targets.OFFSETS])

    def of(target_bts: jax.Array) -> Sums:
        return mass(weights_bnts, target_bts, visible_ts, every_row=every_row)

    return jax.vmap(of, out_axes=-1)(target_obts)


def fixed_offsets(pointer_bt: jax.Array, visible_ts: ArrayLike) -> Sums:
    """How often a fixed offset is where the pointer is, on the rows with a pointer in sight: heads
    that always look at t + k, one for each k of `targets.OFFSETS` in the place of n.

    The largest is what a head's dependency accuracy (`mass` of `argmax_share` on `targets.pointer`)
    has to beat: Clark et al. 2019, arXiv:1906.04341, section 4.2.
    """
    length = pointer_bt.shape[1]
    heads_nts = jnp.concatenate([targets.offset(length, k) for k in targets.OFFSETS])
    return mass(heads_nts[None].astype(jnp.float32), targets.pointer(pointer_bt), visible_ts)


def retrieval(
    weights_bnts: jax.Array, pointer_bt: jax.Array, copied_bt: jax.Array, visible_ts: ArrayLike
) -> Sums:
    """How often the model copies the pointed token while the head's argmax is on it, of the rows
    with a pointer in sight, from 0 to 1.

    Baseline: 1 / visible keys where the token was copied, else 0. Wu et al. 2024, arXiv:2404.15574,
    with rows in place of the tokens of a needle.

    Args:
      weights_bnts: attention weights.
      pointer_bt: the key position the answer stands at; negative where undefined.
      copied_bt: bool, whether the model's output at t is what stands there, see `copied`.
      visible_ts: bool, whether query t sees key s.
    """
    target_bts = targets.pointer(pointer_bt)
    found = mass(argmax_share(weights_bnts), target_bts & copied_bt[..., None], visible_ts)
    return found._replace(n_rows=mass(weights_bnts, target_bts, visible_ts).n_rows)


def copied(output_bt: jax.Array, tokens_bt: jax.Array, pointer_bt: jax.Array) -> jax.Array:
    """Whether the model's output at t is the token that the pointer names, bool [b, t]."""
    pointed_bt = jnp.take_along_axis(tokens_bt, jnp.maximum(pointer_bt, 0), axis=1)
    return (pointer_bt >= 0) & (output_bt == pointed_bt)


def entropy(
    weights_bnts: jax.Array, visible_ts: ArrayLike, *, rows_bt: jax.Array | None = None
) -> Sums:
    """Entropy in nats: -sum over s of A log A, with 0 log 0 = 0, on rows that see two keys or more.

    From 0 (one key) to the baseline, log of the visible keys. Clark et al. 2019, section 3.3.
    """
    nats_bnt = jax.scipy.special.entr(weights_bnts).sum(-1)
    return _statistic(nats_bnt, jnp.log(_n_keys(visible_ts)), visible_ts, rows_bt)


def normalised_entropy(
    weights_bnts: jax.Array, visible_ts: ArrayLike, *, rows_bt: jax.Array | None = None
) -> Sums:
    """Each row's `entropy` over the log of its visible keys: from 0 to the baseline, 1. Ours."""
    largest_t = jnp.log(_n_keys(visible_ts))
    share_bnt = jax.scipy.special.entr(weights_bnts).sum(-1) / largest_t[None, None]
    return _statistic(share_bnt, jnp.ones_like(largest_t), visible_ts, rows_bt)


def confidence(
    weights_bnts: jax.Array, visible_ts: ArrayLike, *, rows_bt: jax.Array | None = None
) -> Sums:
    """The largest weight, up to 1, on rows that see two keys or more.

    Baseline, and least value: 1 / visible keys. Voita et al. 2019, arXiv:1905.09418, section 4.
    """
    return _statistic(weights_bnts.max(-1), 1 / _n_keys(visible_ts), visible_ts, rows_bt)


def distance(
    weights_bnts: jax.Array, visible_ts: ArrayLike, *, rows_bt: jax.Array | None = None
) -> Sums:
    """How far back a row reads in positions: sum over s of A |t - s|, on rows that see two keys or
    more. Baseline: the mean |t - s| of the visible keys.
    """
    t = jnp.arange(weights_bnts.shape[-1], dtype=jnp.float32)
    far_ts = jnp.abs(t[:, None] - t[None, :])
    mean_t = jnp.where(visible_ts, far_ts, 0).sum(-1) / _n_keys(visible_ts)
    far_bnt = jnp.einsum("bnts,ts->bnt", weights_bnts, far_ts)
    return _statistic(far_bnt, mean_t, visible_ts, rows_bt)


def score_variance(
    scores_bnts: jax.Array, visible_ts: ArrayLike, *, rows_bt: jax.Array | None = None
) -> Sums:
    """Variance of a row's scores over its visible keys, from 0, on rows that see two keys or more.

    Of the scores as they enter the softmax, so times 1 / sqrt(d_head) where the model scales them:
    without it the variance of independent q and k of unit variance is d_head (Vaswani et al. 2017,
    section 3.2.1). The sum of squares is divided by the keys less one, so that short rows have no
    smaller expectation. Baseline 0, equal scores; corrected is the value itself.

    Args:
      scores_bnts: the stop `scores`; what stands at keys that are not visible does not count.
      visible_ts: bool, whether query t sees key s.
      rows_bt: bool, queries that are asked; b may be 1. None: all.
    """
    seen_ts, n_keys_t = jnp.asarray(visible_ts, bool), _n_keys(visible_ts)
    seen_11ts, n_keys_11t = seen_ts[None, None], n_keys_t[None, None]
    mean_bnt = jnp.where(seen_11ts, scores_bnts, 0).sum(-1) / n_keys_11t
    square_bnts = jnp.square(scores_bnts - mean_bnt[..., None])
    variance_bnt = jnp.where(seen_11ts, square_bnts, 0).sum(-1) / (n_keys_11t - 1)
    return _statistic(variance_bnt, jnp.zeros_like(n_keys_t), seen_ts, rows_bt)


def _statistic(
    value_bnt: jax.Array, uniform_t: jax.Array, visible_ts: ArrayLike, rows_bt: jax.Array | None
) -> Sums:
    """Sums of a number that each row has, with its value for uniform attention."""
    visible_ts = jnp.asarray(visible_ts, bool)
    asked_bt = _asked(value_bnt.shape[0], visible_ts, rows_bt)
    counts_bt = asked_bt & (visible_ts.sum(-1) >= 2)[None]
    # where, not a product: a NaN in a row that does not count must not spread.
    value = jnp.where(counts_bt[:, None], value_bnt, 0).sum(-1)
    baseline = jnp.where(counts_bt, uniform_t[None], 0).sum(-1)
    return Sums(value, baseline, _count(counts_bt), _count(asked_bt))


def _n_keys(visible_ts: ArrayLike) -> jax.Array:
    """Keys that each row sees, float [t]; at least 2, since only those rows count."""
    return jnp.maximum(jnp.asarray(visible_ts, jnp.float32).sum(-1), 2)


def _asked(b: int, visible_ts: jax.Array, rows_bt: jax.Array | None) -> jax.Array:
    """Queries that could count, bool [b, t]."""
    sees_bt = jnp.broadcast_to(visible_ts.any(-1)[None], (b, visible_ts.shape[0]))
    return sees_bt if rows_bt is None else sees_bt & rows_bt


def _count(rows_bt: jax.Array) -> jax.Array:
    return rows_bt.sum(-1, dtype=jnp.int32)

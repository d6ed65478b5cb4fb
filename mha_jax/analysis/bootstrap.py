"""From sums over sequences to scores with intervals. Host side: numpy, float64.

A score is a ratio of sums over all sequences, so that a sequence weighs as many rows as it has. Its
interval comes from drawing sequences again with replacement (Efron and Tibshirani 1993, chapter 13,
the percentile interval), since rows of a sequence are not independent. NaN means undefined: no row
counts, or uniform attention already has all there is.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from mha_jax.analysis.scores import Sums

LEVEL = 0.95
N_DRAWS = 1000
# Gu et al. 2024, arXiv:2410.10781, section 3: at length 64.
SINK_EPS = 0.3


class Score(NamedTuple):
    """A score of n heads; the axes of `Sums` without b."""

    value: np.ndarray  # [n], mean over the rows that count
    baseline: np.ndarray  # [], the same of uniform attention
    corrected: np.ndarray  # [n], 0 where value = baseline, 1 where value = ideal
    low: np.ndarray  # [n], 95 % interval of `corrected`; NaN with fewer than two sequences
    high: np.ndarray
    n_rows: np.ndarray  # [], rows that count
    share: np.ndarray  # [], of the rows that could have


def finish(
    sums: Sums, ideal: float | np.ndarray = 1.0, *, n_draws: int = N_DRAWS, seed: int = 0
) -> Score:
    """The score of summed rows.

    corrected = (value - baseline) / (ideal - baseline). A head that puts a share of its weight
    where the ideal head does and spreads the rest evenly has that share as its corrected mass, for
    every length and number of targets. Where a score is not linear in the weights (entropy,
    confidence, the argmax) only the ends 0 and 1 are so fixed.

    Args:
      sums: of all batches, joined along b.
      ideal: value of the ideal head: 1 for shares and rates; 0 for entropy and distance. An array
        where `sums` has a further axis.
      n_draws: resamples.
      seed: of the resamples; the same sequences are drawn for all scores of equally many.
    """
    value, baseline, n_rows, n_queries = _float64(sums)
    corrected, drawn = _corrected(sums, ideal, n_draws, seed)
    low, high = _interval(drawn, corrected, ideal * n_rows - baseline)
    total = n_rows.sum(0)
    return Score(
        value=_ratio(value.sum(0), total),
        baseline=_ratio(baseline.sum(0), total),
        corrected=corrected,
        low=low,
        high=high,
        n_rows=total.astype(np.int64),
        share=_ratio(total, n_queries.sum(0)),
    )


def above_offset(accuracy: Sums, offsets: Sums, *, n_draws: int = N_DRAWS, seed: int = 0) -> Score:
    """Dependency accuracy beside the best fixed offset on the same rows.

    `baseline` is here the best offset's accuracy, and corrected = (accuracy - best) / (1 - best):
    positive where no fixed offset does as well. Voita et al. 2019, arXiv:1905.09418, section 5, ask
    for 10 % above it. In every resample the best offset is looked for again.

    Args:
      accuracy: `mass` of `argmax_share` on `targets.pointer`.
      offsets: `scores.fixed_offsets` of the same pointer.
      n_draws: resamples.
      seed: of the resamples.
    """
    score = finish(accuracy, n_draws=1)
    found, _, n_rows, _ = _float64(accuracy)
    fixed = _float64(offsets)[0]
    best = _ratio(fixed.sum(0), n_rows.sum(0)).max()
    corrected = _ratio(score.value - best, 1 - best)

    found_d, fixed_d, rows_d = (resampled(x, n_draws, seed) for x in (found, fixed, n_rows))
    best_d = _ratio(fixed_d, rows_d[:, None]).max(1)[:, None]
    drawn = _ratio(_ratio(found_d, rows_d[:, None]) - best_d, 1 - best_d)
    low, high = _interval(drawn, corrected, n_rows)
    return score._replace(baseline=best, corrected=corrected, low=low, high=high)


def sink_rate(
    layers: Sequence[Sums], eps: float = SINK_EPS, *, n_draws: int = N_DRAWS, seed: int = 0
) -> Score:
    """Share of heads, over all layers, whose alpha exceeds eps: Sink_1^eps of Gu et al. 2024,
    arXiv:2410.10781, section 3. alpha is `mass` on the first position.

    In short sequences uniform attention exceeds eps as well: `baseline` says for which share of the
    heads. `corrected`, with its interval, is therefore the share of heads whose *corrected* alpha
    exceeds eps, which is 0 for uniform attention at every length. n_rows and share are those of the
    layer with the fewest.

    Args:
      layers: `mass` on `targets.position(length, 0)` of each layer, over the same sequences.
      eps: threshold.
      n_draws: resamples.
      seed: of the resamples.
    """
    heads = _joined(layers)
    alpha = finish(heads, n_draws=1)
    corrected, drawn = _corrected(heads, 1.0, n_draws, seed)
    rate = _over(corrected, eps)
    low, high = _interval(_over(drawn, eps), rate, _float64(heads)[2].min(1))
    return Score(
        value=_over(alpha.value, eps),
        baseline=_over(alpha.baseline[None], eps),
        corrected=rate,
        low=low,
        high=high,
        n_rows=alpha.n_rows.min(),
        share=alpha.share.min(),
    )


def resampled(sums: np.ndarray, n_draws: int, seed: int) -> np.ndarray:
    """Sums over resampled sequences: [b, ...] -> [n_draws, ...], one matrix product.

    Drawing b of b sequences with replacement is drawing how often each comes up.
    """
    counts = _counts(len(sums), n_draws, seed)
    return (counts @ sums.reshape(len(sums), -1)).reshape(n_draws, *sums.shape[1:])


@functools.lru_cache(maxsize=2)
def _counts(b: int, n_draws: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.multinomial(b, np.full(b, 1 / b), size=n_draws).astype(np.float64)


def _corrected(
    sums: Sums, ideal: float | np.ndarray, n_draws: int, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """The corrected score [n, ...], and in every resample [n_draws, n, ...]."""
    value, baseline, n_rows, _ = _float64(sums)
    gain, room = value - baseline[:, None], ideal * n_rows - baseline
    drawn = resampled(gain, n_draws, seed), resampled(room, n_draws, seed)
    return _ratio(gain.sum(0), room.sum(0)), _ratio(drawn[0], drawn[1][:, None])


def _interval(
    drawn: np.ndarray, estimate: np.ndarray, room: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Percentiles over the draws; NaN where the estimate is, or fewer than two sequences, of room
    [b, ...], say anything.
    """
    known = np.isfinite(estimate) & (np.count_nonzero(room, axis=0) >= 2)
    # A resample may hold no sequence that counts; it says nothing and is left out.
    bounds = np.nanquantile(np.where(known, drawn, 0), ((1 - LEVEL) / 2, (1 + LEVEL) / 2), axis=0)
    low, high = np.where(known, bounds, np.nan)
    return low, high


def _joined(layers: Sequence[Sums]) -> Sums:
    """The heads of all layers as further axis of one head, each with its layer's rows."""
    n_heads = [np.shape(sums.value)[1] for sums in layers]
    value = np.concatenate([np.asarray(sums.value) for sums in layers], axis=1)[:, None]
    rest = zip(*(sums[1:] for sums in layers), strict=True)
    return Sums(value, *(np.repeat(np.stack(x, 1), n_heads, axis=1) for x in rest))


def _over(alpha: np.ndarray, eps: float) -> np.ndarray:
    """Share of the heads, the last axis and one before it, over eps; NaN where one is undefined."""
    return np.where(np.isnan(alpha), np.nan, alpha > eps).mean((-2, -1))


def _ratio(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """a / b, NaN where b is 0."""
    a, b = np.broadcast_arrays(a, b)
    return np.divide(a, b, out=np.full(a.shape, np.nan), where=b != 0)


def _float64(sums: Sums) -> list[np.ndarray]:
    return [np.asarray(x, np.float64) for x in sums]

"""A fixed random 1-D convolution: one head per tap, and one kv dimension per channel.

    y_t = k^(-1/2) * sum_{j=1..k} W_j x_{t-j}   x_t ~ N(0, I_n), W_j orthogonal, drawn by task.seed

With k = 2 taps (- is not scored):

    position    0    1    2                3                4
    input      x0   x1   x2               x3               x4
    target      -    -   (W1 x1 + W2 x0)/√2   (W1 x2 + W2 x1)/√2   (W1 x3 + W2 x2)/√2

Heads needed: k, one an offset; kv heads needed: n_kv_heads * d_head = n_channels. After
Cordonnier, Loukas and Jaggi 2020 (arXiv:1911.03584): attention with K*K heads and relative
positions expresses any K x K convolution. Meant for one layer without norm, MLP and residual, whose
queries and keys read learned positions alone (`model.qk_from = "positions"`); the mask is full.

`ceiling` bounds R^2 for such attention, and the baseline `ceiling_fit` is the best R^2 found by a
search over such layers: lower where several limits bind. Heads that also read content pass both:
two heads of width 32 on the default sizes were seen at .588 after 4,000 steps, where the bound is
.532.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator
from typing import Any

import numpy as np

from mha_jax.config import LayerSpec, ModelSpec
from mha_jax.tasks import Batch, TaskSpec, block_terms, bounds

_STARTS = 20  # of the search below


@dataclasses.dataclass(frozen=True)
class Config:
    """Sizes of the task."""

    length: int
    n_taps: int
    n_channels: int


def problems(cfg: Config) -> Iterator[tuple[str, str, str]]:
    """Fields out of range, and a sequence in which no position has all its taps."""
    yield from bounds.outside(cfg, length=(2, 8192), n_taps=(1, 128), n_channels=(1, 512))
    if cfg.length <= cfg.n_taps:
        yield (
            "length",
            f"must exceed n_taps={cfg.n_taps}, only positions from n_taps on are scored",
            f"use {cfg.n_taps + 1} or more, or lower n_taps",
        )


def spec(cfg: Config) -> TaskSpec:
    """Roles are tap1..tapk: tap j points j positions back."""
    return TaskSpec(
        inputs="vectors",
        input_sizes=(cfg.n_channels,),
        length=cfg.length,
        mask="full",
        outputs=("y",),
        output_size=cfg.n_channels,
        kind="regression",
        metric="r2",
        direction="max",
        chance=0.0,
        solved_at=0.99,
        roles=tuple(f"tap{j}" for j in range(1, cfg.n_taps + 1)),
    )


def maps(cfg: Config, seed: int) -> np.ndarray:
    """W_1..W_k: float64 [n_taps, output channel, input channel], uniform over orthogonal maps."""
    return orthonormal(cfg.n_taps, cfg.n_channels, cfg.n_channels, seed)


def orthonormal(n_taps: int, n_out: int, n_in: int, seed: int) -> np.ndarray:
    """Maps with orthonormal columns, float64 [n_taps, n_out, n_in], uniform over all such."""
    draw = np.random.default_rng(seed).standard_normal((n_taps, n_out, n_in))
    q, r = np.linalg.qr(draw)
    # QR alone is not uniform: its signs are the algorithm's (Mezzadri 2007, arXiv:math-ph/0609050).
    return q * np.sign(np.diagonal(r, axis1=1, axis2=2))[:, None, :]


def constants(cfg: Config, seed: int, split: str) -> dict[str, Any]:
    """maps: float32 [n_taps, output channel, input channel], the same for every split."""
    del split
    return {"maps": maps(cfg, seed).astype(np.float32)}


def sample(key: Any, constants: dict[str, Any], cfg: Config, n: int) -> Batch:
    """Draw n sequences of white noise and convolve them."""
    import jax.numpy as jnp

    from mha_jax.tasks import draw

    x_bti = draw.normal(key, n, cfg.length, cfg.n_channels)
    y_bto = convolved(x_bti, constants["maps"]) / cfg.n_taps**0.5
    scored_t = jnp.arange(cfg.length) >= cfg.n_taps
    return Batch(
        inputs=x_bti,
        targets=jnp.where(scored_t[None, :, None], y_bto, 0.0)[:, :, None],
        loss_mask=jnp.broadcast_to(scored_t.astype(jnp.float32)[None, :, None], (n, cfg.length, 1)),
        pointers=pointers(n, cfg.length, cfg.n_taps),
    )


def convolved(x_bti: Any, maps_joi: Any) -> Any:
    """sum over j of maps_joi[j - 1] @ x_{t-j}, [b, t, o]; what is before the sequence is zero."""
    import jax.numpy as jnp

    b, length, _ = x_bti.shape
    k, n_out, n_in = maps_joi.shape
    # All taps in one 2-D product, [b*t, in] x [in, taps*out], then a shift by j for tap j.
    # Precision: accelerators multiply in TF32 or bfloat16 by default, too coarse for a label.
    all_taps = jnp.moveaxis(maps_joi, 2, 0).reshape(n_in, k * n_out)
    mapped = jnp.matmul(x_bti.reshape(-1, n_in), all_taps, precision="highest")
    mapped_btjo = mapped.reshape(b, length, k, n_out)
    return sum(
        jnp.pad(mapped_btjo[:, :-j, j - 1], ((0, 0), (j, 0), (0, 0))) for j in range(1, k + 1)
    )


def pointers(n: int, length: int, n_taps: int) -> dict[str, Any]:
    """tap1..tapk -> int32 [n, length]: j positions back, -1 where not all taps are in sight."""
    import jax.numpy as jnp

    position = jnp.arange(length, dtype=jnp.int32)
    return {
        f"tap{j}": jnp.broadcast_to(jnp.where(position >= n_taps, position - j, -1), (n, length))
        for j in range(1, n_taps + 1)
    }


def ceiling(cfg: Config, seed: int, model: ModelSpec) -> float | None:
    """Upper bound of R^2 for attention whose weights depend on positions alone.

    Seen from one query position such a layer is `sum_h a_h (x) M_h`: head h mixes offsets with
    weights a_h and maps the result by M_h. So its taps x out x in tensor has at most rank n_heads
    in the tap unfolding, where it is spanned by vectors a_h >= 0 (a softmax has no negative
    weight), and rank min(n_kv_heads * d_head, d_model) in the input unfolding, since all M_h read
    through the embedding and the shared value dimensions. Without the sign, the best R^2 of a rank
    is the share of that many largest squared singular values in their sum (Eckart and Young); the
    sign lowers it a little, see `by_heads`. The singular values of the input unfolding are all
    equal, because the W_j are orthogonal.

    The rank d_head of each single head is not used, so a layer may have to stay below: it may where
    n_heads * d_head < n_taps * n_channels, or where both ranks bind; see `baselines`. None where
    the argument does not hold: weights that depend on content, more than one layer, an MLP, a norm,
    a gate, another mixer.
    """
    layer = model.layers[0]
    positional = model.qk_from == "positions" and layer.mixer == "grouped"
    linear = not (layer.d_ff or model.gate or model.norm != "none")
    if not positional or not linear or len(model.layers) > 1:
        return None
    unfolded = maps(cfg, seed).reshape(cfg.n_taps, -1)
    d_in = min(layer.n_kv_heads * layer.d_head, model.d_model)
    return min(by_heads(unfolded, layer.n_heads), d_in / cfg.n_channels, 1.0)


def baselines(cfg: Config, seed: int, model: ModelSpec) -> dict[str, float]:
    """ceiling_fit: the best R^2 that was found for attention whose weights depend on positions
    alone; none where `ceiling` is None.

    Beyond what `ceiling` counts, each head passes d_head channels, and the query heads of a kv head
    share the map into them. The weights of a head over the taps are any a_h >= 0: a softmax row
    sums to one over all positions, but the length of a_h is made up for by the map that follows,
    and weight on a position without a tap lets in noise alone, so that it never helps.

    The search (`block_terms`, cached) finds local optima: a layer may do better, within `ceiling`.
    Trained layers of five shapes ended .002 to .03 below it (2,000 steps, one or two seeds). Those
    of three shapes with heads narrower than the 16 positions ended .045 to .06 below; with 5
    positions .01 to .035. The rank of a head's logits, at most d_head, is not counted.
    """
    bound = ceiling(cfg, seed, model)
    if bound is None:
        return {}
    if _is_reached(cfg, model):
        return {"ceiling_fit": bound}
    return {"ceiling_fit": _fit(cfg, seed, model.layers[0], model.d_model, model.use_wo)}


def _is_reached(cfg: Config, model: ModelSpec) -> bool:
    """Whether heads can be written down that reach the ceiling."""
    layer, n = model.layers[0], cfg.n_channels
    if model.d_model < n:
        return False
    if layer.d_head >= n:  # the map of each head can be any
        return True
    # So many kv heads pass all channels, or all that they can together; as a team they serve one
    # tap with each of their query heads.
    team = min(-(-n // layer.d_head), layer.n_kv_heads)
    return layer.n_kv_heads // team * layer.queries_per_kv >= cfg.n_taps


@functools.lru_cache(maxsize=256)
def _fit(cfg: Config, seed: int, layer: LayerSpec, d_model: int, use_wo: bool) -> float:
    d_out = d_model if use_wo else cfg.n_channels
    return block_terms.best_share(
        maps(cfg, seed), layer.n_heads, layer.n_kv_heads, layer.d_head, d_model, d_out
    )


def by_heads(unfolded: np.ndarray, n_heads: int) -> float:
    """The largest share of the squared entries of `unfolded` [taps, anything] that lies in the span
    of `n_heads` non-negative vectors over the taps.

    Up to limits these spans are the subspaces that hold one non-negative vector p: if p > 0, then
    p + eps * b is non-negative for every b and small eps. So p is searched, from many starts, and
    the other dimensions are the largest eigenvectors of what is orthogonal to it.
    """
    n_taps = len(unfolded)
    if n_heads >= n_taps:
        return 1.0
    from scipy.optimize import minimize

    gram = unfolded @ unfolded.T
    gram /= np.trace(gram)

    def share(p: np.ndarray) -> float:
        p = p / np.linalg.norm(p)
        others = np.eye(n_taps) - np.outer(p, p)
        eigenvalues = np.linalg.eigvalsh(others @ gram @ others)
        return float(p @ gram @ p + eigenvalues[n_taps - n_heads + 1 :].sum())

    starts = [*np.random.default_rng(0).uniform(size=(_STARTS, n_taps)), *np.eye(n_taps)]
    ends = [minimize(lambda q: -share(q * q), np.sqrt(start)).x ** 2 for start in starts]
    return max(share(p) for p in [*starts, *ends])

"""A convolution as wide as the layer: every column of the answer needs every tap.

    y_t = sum_{j=1..k} W_j x_{t-j}    x_t ~ N(0, I_n), W_j drawn by task.seed: k n rows, n columns,
                                      which are orthonormal

`taps` with k times as many outputs as inputs, so that heads of width n can answer it column by
column. k = 2 taps of n = 1 channel, W_1 = (a, b), W_2 = (c, d), - is not scored:

    position    0    1    2               3               4
    input      x0   x1   x2              x3              x4
    part1       -    -   a x1 + c x0     a x2 + c x1     a x3 + c x2
    part2       -    -   b x1 + d x0     b x2 + d x1     b x3 + d x2

With `readout="none"` the columns of the last layer are the answer, in the order of the parts. Then
the task tells what W_O is for. With it, k heads of width n serve a tap each and W_O adds them up in
every column: R^2 = 1. Without it, column c is written by head c // d_head alone, and however many
heads there are, each *slot*, the d_head columns of one head, gets one attention pattern. With
`readout="linear"` a linear map follows, which is W_O under another name: nothing is lost.

Heads needed: k. Meant for one layer without norm, MLP and residual, whose queries and keys read
positions alone (`model.qk_from = "positions"`), as in `taps`; the mask is full.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np

from mha_jax.config import ModelSpec
from mha_jax.tasks import Batch, TaskSpec, taps

_STARTS, _STEPS = 32, 300  # of the search for one pattern


@dataclasses.dataclass(frozen=True)
class Config:
    """Sizes of the task."""

    length: int
    n_taps: int
    n_channels: int
    readout: str


def problems(cfg: Config) -> Iterator[tuple[str, str, str]]:
    """Fields out of range, an unknown read-out, and a sequence in which no position has all its
    taps.
    """
    yield from taps.problems(_of_taps(cfg))
    if cfg.readout not in ("linear", "none"):
        yield "readout", "must be 'linear' or 'none'", "choose one of them"


def spec(cfg: Config) -> TaskSpec:
    """As `taps`, with the columns of the answer in parts, part1..partk, of n_channels each."""
    parts = tuple(f"part{i}" for i in range(1, cfg.n_taps + 1))
    return dataclasses.replace(taps.spec(_of_taps(cfg)), outputs=parts, readout=cfg.readout)


def _of_taps(cfg: Config) -> taps.Config:
    return taps.Config(cfg.length, cfg.n_taps, cfg.n_channels)


def maps(cfg: Config, seed: int) -> np.ndarray:
    """W_1..W_k: float64 [n_taps, output column, input channel], each with orthonormal columns."""
    return taps.orthonormal(cfg.n_taps, cfg.n_taps * cfg.n_channels, cfg.n_channels, seed)


def constants(cfg: Config, seed: int, split: str) -> dict[str, Any]:
    """maps: float32 [n_taps, output column, input channel], the same for every split."""
    del split
    return {"maps": maps(cfg, seed).astype(np.float32)}


def sample(key: Any, constants: dict[str, Any], cfg: Config, n: int) -> Batch:
    """Draw n sequences of white noise and convolve them."""
    import jax.numpy as jnp

    from mha_jax.tasks import draw

    x_bti = draw.normal(key, n, cfg.length, cfg.n_channels)
    y_bto = taps.convolved(x_bti, constants["maps"])
    y_btov = y_bto.reshape(n, cfg.length, cfg.n_taps, cfg.n_channels)
    scored_t = jnp.arange(cfg.length) >= cfg.n_taps
    loss_mask_t = scored_t.astype(jnp.float32)[None, :, None]
    return Batch(
        inputs=x_bti,
        targets=jnp.where(scored_t[None, :, None, None], y_btov, 0.0),
        loss_mask=jnp.broadcast_to(loss_mask_t, (n, cfg.length, cfg.n_taps)),
        pointers=taps.pointers(n, cfg.length, cfg.n_taps),
    )


def ceiling(cfg: Config, seed: int, model: ModelSpec) -> float | None:
    """Upper bound of R^2 for attention whose weights depend on positions alone.

    With W_O or a linear read-out as in `taps.ceiling`. Without both each slot is one head's, and
    the bound is that of `one_pattern` on each slot, weighed by what is in it. None where the
    argument does not hold: see `taps.ceiling`.
    """
    layer = model.layers[0]
    positional = model.qk_from == "positions" and layer.mixer == "grouped"
    linear = not (layer.d_ff or model.gate or model.norm != "none" or model.residual)
    if not positional or not linear or len(model.layers) > 1:
        return None
    w_joi = maps(cfg, seed)
    if model.use_wo or cfg.readout == "linear":
        by_heads = taps.by_heads(w_joi.reshape(cfg.n_taps, -1), layer.n_heads)
    else:
        slots = np.split(w_joi, layer.n_heads, axis=1)  # so many columns as the model must return
        by_heads = sum(one_pattern(slot) * np.sum(slot**2) for slot in slots) / np.sum(w_joi**2)
    d_in = min(layer.n_kv_heads * layer.d_head, model.d_model)
    return min(by_heads, d_in / cfg.n_channels, 1.0)


def baselines(cfg: Config, seed: int, model: ModelSpec) -> dict[str, float]:
    """one_pattern/slot<i>: the best R^2 of the columns of slot i if all get one attention pattern.

    The slots are the equal parts that the heads of the last layer would write without W_O, counted
    from 0; none where the columns do not divide by the heads.
    """
    n_heads = model.layers[-1].n_heads
    if cfg.n_taps * cfg.n_channels % n_heads:
        return {}
    slots = np.split(maps(cfg, seed), n_heads, axis=1)
    return {f"one_pattern/slot{i}": one_pattern(slot) for i, slot in enumerate(slots)}


def one_pattern(maps_joi: np.ndarray) -> float:
    """The largest share of the squared entries that lies in a (x) M, with a >= 0 over the taps and
    any map M: the best R^2 of columns that get the values of one attention pattern.

    It is the largest p G p / tr G over unit vectors p >= 0, G the Gram matrix of the taps. Since
    that is convex in p, p <- max(G p, 0), normalised, never falls (Journee et al. 2010,
    arXiv:0811.4724); the best of many starts is taken, so that the search may end below the bound.
    """
    flat = maps_joi.reshape(len(maps_joi), -1)
    gram = flat @ flat.T / np.sum(flat**2)
    starts = np.random.default_rng(0).uniform(size=(_STARTS, len(gram)))
    p = np.concatenate([starts, np.eye(len(gram))])
    for _ in range(_STEPS):
        p = np.maximum(p @ gram, 0)
        p /= np.linalg.norm(p, axis=1, keepdims=True)
    return float(np.einsum("sj,jl,sl->s", p, gram, p).max())

"""Two tasks for one layer: nearest neighbours, which want wide heads, and a convolution, which
wants many.

N context vectors, then N query vectors, all uniform on the unit sphere of R^n. Query i is asked two
things, through two read-out heads:

    nearest    the context vector that is nearest to it
    taps       k^(-1/2) * sum_{j=1..k} W_j c_{(i + j) mod N}     W_j orthogonal, drawn by task.seed

N = 3, k = 2 (. is not asked):

    position    0    1    2  |    3                   4                   5
    input      c0   c1   c2  |   q0                  q1                  q2
    nearest     .    .    .  |   that of c0, c1, c2 with the largest inner product
    taps        .    .    .  |   (W1 c1 + W2 c2)/√2  (W1 c2 + W2 c0)/√2  (W1 c0 + W2 c1)/√2

Heads needed: one for each tap (see `taps`) and one of width n for the neighbour (see `nearest`). At
a fixed d_model too few heads lose the taps and too many narrow ones the neighbour, so the best
number is k + 1 to d_model / n: the inverted U of Vaswani et al. 2017, table 3 A. Meant for one
layer with learned positions and no norm, MLP and residual.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np

from mha_jax.tasks import Batch, TaskSpec, bounds, taps


@dataclasses.dataclass(frozen=True)
class Config:
    """Sizes of the task."""

    n_context: int
    n_channels: int
    n_taps: int


def problems(cfg: Config) -> Iterator[tuple[str, str, str]]:
    """Fields out of range, and more taps than context vectors."""
    yield from bounds.outside(cfg, n_context=(2, 4096), n_channels=(2, 512), n_taps=(1, 128))
    if cfg.n_taps > cfg.n_context:
        yield (
            "n_taps",
            f"must not exceed n_context={cfg.n_context}, every tap reads another vector",
            f"use {cfg.n_context} or less, or raise n_context",
        )


def spec(cfg: Config) -> TaskSpec:
    """Every position sees the context alone. No solved_at: a sharper softmax is always better."""
    return TaskSpec(
        inputs="vectors",
        input_sizes=(cfg.n_channels,),
        length=2 * cfg.n_context,
        mask="context_query",
        n_context=cfg.n_context,
        outputs=("nearest", "taps"),
        output_size=cfg.n_channels,
        kind="regression",
        metric="r2",
        direction="max",
        chance=0.0,
        solved_at=None,
        roles=("nearest", *(f"tap{j}" for j in range(1, cfg.n_taps + 1))),
    )


def constants(cfg: Config, seed: int, split: str) -> dict[str, Any]:
    """maps: float32 [n_taps, output channel, input channel], the same for every split."""
    del split
    sizes = taps.Config(length=cfg.n_taps + 1, n_taps=cfg.n_taps, n_channels=cfg.n_channels)
    return {"maps": taps.maps(sizes, seed).astype(np.float32)}


def sample(key: Any, constants: dict[str, Any], cfg: Config, n: int) -> Batch:
    """Draw n contexts with their queries."""
    import jax.numpy as jnp

    from mha_jax.tasks import draw

    size = cfg.n_context
    x_bti = draw.normal(key, n, 2 * size, cfg.n_channels)
    x_bti = x_bti / jnp.linalg.norm(x_bti, axis=-1, keepdims=True)
    context_bsi, query_bti = x_bti[:, :size], x_bti[:, size:]
    # Precision: accelerators multiply in TF32 or bfloat16 by default, too coarse for a label.
    scores_bts = jnp.einsum("bti,bsi->bts", query_bti, context_bsi, precision="highest")
    nearest_bt = jnp.argmax(scores_bts, axis=-1).astype(jnp.int32)
    nearest_bti = jnp.take_along_axis(context_bsi, nearest_bt[..., None], axis=1)
    # Query i stands as far behind context vector i as every other: a tap is a turn of the context.
    taps_bti = sum(
        jnp.einsum("bsi,oi->bso", jnp.roll(context_bsi, -j, axis=1), w_oi, precision="highest")
        for j, w_oi in enumerate(constants["maps"], start=1)
    )
    answers_btov = jnp.stack([nearest_bti, taps_bti / cfg.n_taps**0.5], axis=2)
    after = ((0, 0), (size, 0))
    place = jnp.arange(size, dtype=jnp.int32)
    pointers = {"nearest": nearest_bt}
    for j in range(1, cfg.n_taps + 1):
        pointers[f"tap{j}"] = jnp.broadcast_to((place + j) % size, (n, size))
    return Batch(
        inputs=x_bti,
        targets=jnp.pad(answers_btov, (*after, (0, 0), (0, 0))),
        loss_mask=jnp.pad(jnp.ones((n, size, 2)), (*after, (0, 0))),
        pointers={role: jnp.pad(p, after, constant_values=-1) for role, p in pointers.items()},
    )

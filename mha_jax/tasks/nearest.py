"""Nearest neighbour on a sphere: one head of full width, and cutting it into narrow heads costs.

N context vectors, then Q query vectors, all uniform on the unit sphere of R^n. Asked of a query:
the context vector nearest to it.

n = 2, N = 3, Q = 2 (. is not asked):

    position        0            1            2      |      3            4
    input      ( 1.0, 0.0)  ( 0.0, 1.0)  (-0.6,-0.8) | ( 0.6, 0.8)  (-1.0, 0.0)
    target          .            .            .      | ( 0.0, 1.0)  (-0.6,-0.8)
    nearest         .            .            .      |      1            2       where it stands

Heads needed: one with d_head >= n, for any N: its scores are the inner products, its softmax is
sharp. Heads of a rank r < n each see a projection, and theory asks for many of them: a number
exponential in n, or growing as a power of n / r (Amsel, Yehudai and Bruna 2024, arXiv:2407.16153).
So at constant d_model more heads hurt once d_head < n. Meant for one layer without positions, norm,
MLP and residual. Context and queries are drawn afresh and are a set: neither position nor memory
helps.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator
from typing import Any

import numpy as np

from mha_jax.config import ModelSpec
from mha_jax.tasks import Batch, TaskSpec, bounds

_DRAW_SIZE = 2**21  # numbers in the context vectors of the Monte Carlo draw


@dataclasses.dataclass(frozen=True)
class Config:
    """Sizes of the task."""

    n_context: int
    n_queries: int
    n_channels: int


def problems(cfg: Config) -> Iterator[tuple[str, str, str]]:
    """Fields out of range."""
    yield from bounds.outside(cfg, n_context=(2, 4096), n_queries=(1, 4096), n_channels=(2, 512))


def spec(cfg: Config) -> TaskSpec:
    """Every position sees the context alone.

    solved_at .9: on the default sizes heads of full width reach .95 and more, half of it .5.
    """
    return TaskSpec(
        inputs="vectors",
        input_sizes=(cfg.n_channels,),
        length=cfg.n_context + cfg.n_queries,
        mask="context_query",
        n_context=cfg.n_context,
        outputs=("y",),
        output_size=cfg.n_channels,
        kind="regression",
        metric="r2",
        direction="max",
        chance=0.0,
        solved_at=0.9,
        roles=("nearest",),
    )


def sample(key: Any, constants: dict[str, Any], cfg: Config, n: int) -> Batch:
    """Draw n contexts with their queries; on a sphere the nearest has the largest inner product."""
    import jax.numpy as jnp

    from mha_jax.tasks import draw

    del constants
    x_bti = draw.normal(key, n, cfg.n_context + cfg.n_queries, cfg.n_channels)
    x_bti = x_bti / jnp.linalg.norm(x_bti, axis=-1, keepdims=True)
    context_bsi, query_bti = x_bti[:, : cfg.n_context], x_bti[:, cfg.n_context :]
    # Precision: accelerators multiply in TF32 or bfloat16 by default, too coarse for a label.
    scores_bts = jnp.einsum("bti,bsi->bts", query_bti, context_bsi, precision="highest")
    nearest_bt = jnp.argmax(scores_bts, axis=-1).astype(jnp.int32)
    y_bti = jnp.take_along_axis(context_bsi, nearest_bt[..., None], axis=1)
    after = ((0, 0), (cfg.n_context, 0))
    return Batch(
        inputs=x_bti,
        targets=jnp.pad(y_bti, (*after, (0, 0)))[:, :, None],
        loss_mask=jnp.pad(jnp.ones(nearest_bt.shape), after)[..., None],
        pointers={"nearest": jnp.pad(nearest_bt, after, constant_values=-1)},
    )


def baselines(cfg: Config, seed: int, model: ModelSpec) -> dict[str, float]:
    """softmax: R^2 of a first layer whose heads all look alike, with nothing left to learn.

    Its one attention pattern compares min(d_head, n) coordinates at the best temperature; the
    values are read in full, at the best scale. From d_head = n on it is 1, the limit of a sharp
    softmax. A trained layer is above it where its heads differ, below it where training stopped
    short. Monte Carlo of a fixed seed, standard error .002 to .004 at the default sizes.
    """
    del seed
    return {"softmax": _one_pattern(cfg, min(model.layers[0].d_head, cfg.n_channels))}


@functools.cache
def _one_pattern(cfg: Config, rank: int) -> float:
    """The R^2 told above. By symmetry the coordinates compared may be the first ones, and the best
    linear map of the output scales those by one number and the others by another."""
    size, channels = cfg.n_context, cfg.n_channels
    if rank == channels:
        return 1.0
    draws = max(_DRAW_SIZE // (size * channels), 16)
    rng = np.random.default_rng(0)
    x_bsi = rng.standard_normal((draws, size + 1, channels), np.float32)
    x_bsi /= np.linalg.norm(x_bsi, axis=-1, keepdims=True)
    query_bi, context_bsi = x_bsi[:, 0], x_bsi[:, 1:]
    nearest_b = np.einsum("bi,bsi->bs", query_bi, context_bsi).argmax(-1)
    y_bi = context_bsi[np.arange(draws), nearest_b]
    scores_bs = np.einsum("bi,bsi->bs", query_bi[:, :rank], context_bsi[..., :rank])
    scores_bs -= scores_bs.max(-1, keepdims=True)

    def explained(inverse_temperature: float) -> float:
        weights_bs = np.exp(inverse_temperature * scores_bs)
        weights_bs /= weights_bs.sum(-1, keepdims=True)
        z_bi = np.matmul(weights_bs[:, None], context_bsi)[:, 0]
        blocks = ((y_bi[:, c], z_bi[:, c]) for c in (slice(rank), slice(rank, None)))
        return sum(float((y * z).mean(0).sum() ** 2 / (z * z).mean(0).sum()) for y, z in blocks)

    # Targets have length 1 and mean 0, so what is explained of 1 is R^2. Steps of sqrt 2: the
    # maximum is flat.
    return max(explained(2 ** (i / 2)) for i in range(-2, 15))

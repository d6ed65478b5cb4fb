"""A sum of D maxima: one head per maximum, however few kv heads.

    y = sum_{d=1..D} max_t <a_d, x_t>    x_t ~ N(0, I_c), a_d ~ N(0, I_c) fixed by task.seed

The answer is read at a learned query token q after the T vectors. One channel, T = 4, D = 2, a =
(1, -1):

    position    0     1     2     3     q
    input     0.3  -1.2   0.9   0.1  (learned)
    target      .     .     .     .   2.1       = max x + max(-x) = 0.9 + 1.2
    max0        .     .     .     .     2       where the first maximum stands
    max1        .     .     .     .     1

Heads needed: D (Yu et al., ICLR 2026, arXiv:2510.06662, whose experiment this is: ReLU encoder,
one layer without residual, norm and positions, GELU read-out, every vector visible). With n_heads
= D the error falls by one to two decades and parameters do not grow with T; with fewer they grow
exponentially in T. The heads differ in their queries only, so one kv head does as well as D: the
negative control for kv sharing. The paper draws 8,000 sequences once; here every batch is fresh.
The mean of y is far from 0: without biases four heads were seen ten times worse.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator
from typing import Any

import numpy as np

from mha_jax.config import ModelSpec
from mha_jax.tasks import Batch, TaskSpec, bounds

_DRAWN = 2**22  # numbers drawn for the variance of y, and at least _SEQUENCES sequences
_SEQUENCES = 32


@dataclasses.dataclass(frozen=True)
class Config:
    """Sizes of the task, and the width of the MLPs around the attention layer."""

    length: int
    n_maxima: int
    n_channels: int
    width: int


def problems(cfg: Config) -> Iterator[tuple[str, str, str]]:
    """Fields out of range."""
    yield from bounds.outside(
        cfg, length=(2, 8192), n_maxima=(1, 64), n_channels=(1, 512), width=(1, 8192)
    )


def spec(cfg: Config) -> TaskSpec:
    """The query token, last, sees the vectors and not itself.

    chance 1: the error of the mean of y. solved_at 5e-4: runs with n_heads = D end at 1e-4 to 4e-4
    after 5,000 steps (3e-5 to 7e-5 at best), with one head less at 3e-3 to 1e-2, and at 6e-4 in the
    mean of the paper's long ones; all with T = 16 and D = 4.
    """
    return TaskSpec(
        inputs="vectors",
        input_sizes=(cfg.n_channels,),
        length=cfg.length + 1,
        query_token=True,
        encoder="mlp",
        d_encoder=cfg.width,
        readout="mlp",
        d_readout=cfg.width,
        mask="context_query",
        n_context=cfg.length,
        outputs=("y",),
        output_size=1,
        kind="regression",
        metric="nmse",
        direction="min",
        chance=1.0,
        solved_at=5e-4,
        roles=tuple(f"max{d}" for d in range(cfg.n_maxima)),
    )


def constants(cfg: Config, seed: int, split: str) -> dict[str, Any]:
    """directions: float32 [n_maxima, n_channels], the same for every split."""
    del split
    draw = np.random.default_rng(seed).standard_normal((cfg.n_maxima, cfg.n_channels))
    return {"directions": draw.astype(np.float32)}


def baselines(cfg: Config, seed: int, model: ModelSpec) -> dict[str, float]:
    """least_squares: NMSE of the best affine prediction of y from all the entries of the vectors.

    The vectors are independent and standard normal, so that the coefficient of x_t is E[y x_t] =
    E[dy/dx_t] (Stein's lemma) = sum_d a_d P(maximum d stands at t) = sum_d a_d / T, and the NMSE
    is 1 - |sum_d a_d|^2 / (T Var y). The variance of y is that of a fixed draw.
    """
    del model
    return {"least_squares": _least_squares(cfg, seed)}


@functools.lru_cache(maxsize=256)
def _least_squares(cfg: Config, seed: int) -> float:
    directions = constants(cfg, seed, "train")["directions"].astype(np.float64)
    # A factor of the covariance of the products <a_d, x_t> over d: no more numbers than needed.
    factor = np.linalg.qr(directions.T, mode="r")
    draw = np.random.default_rng(0)
    n = max(_SEQUENCES, _DRAWN // (cfg.length * cfg.n_maxima))
    highest = np.full((n, cfg.n_maxima), -np.inf)
    for _ in range(cfg.length):
        highest = np.maximum(highest, draw.standard_normal((n, len(factor))) @ factor)
    y = highest.sum(axis=1)
    explained = np.sum(directions.sum(axis=0) ** 2) / cfg.length
    return float(1 - explained / y.var())


def sample(key: Any, constants: dict[str, Any], cfg: Config, n: int) -> Batch:
    """Draw n sequences; only the query token's row has a target and pointers."""
    import jax.numpy as jnp

    from mha_jax.tasks import draw

    x_btc = draw.normal(key, n, cfg.length, cfg.n_channels)
    # Precision: accelerators multiply in TF32 or bfloat16 by default, too coarse for a label.
    scores_btd = jnp.matmul(x_btc, constants["directions"].T, precision="highest")
    y_b = jnp.max(scores_btd, axis=1).sum(axis=-1)
    place_bd = jnp.argmax(scores_btd, axis=1).astype(jnp.int32)
    before = ((0, 0), (cfg.length, 0))  # the rows before the query token
    return Batch(
        inputs=x_btc,
        targets=jnp.pad(y_b[:, None], before)[..., None, None],
        loss_mask=jnp.pad(jnp.ones((n, 1)), before)[..., None],
        pointers={
            f"max{d}": jnp.pad(place_bd[:, d : d + 1], before, constant_values=-1)
            for d in range(cfg.n_maxima)
        },
    )

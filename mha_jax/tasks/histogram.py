"""Histogram: how often does this token occur in the sequence?

    position   0  1  2  3  4
    input      b  a  b  c  b
    target     2  0  2  0  2        the count, less one

Heads needed: one. The negative control of a head sweep: what counts is width, d_model >= vocab or
an MLP of width >= vocab (Behrens, Biggio and Zdeborova 2024, arXiv:2407.11542). The mask is full;
the task needs an MLP and no positions. The answer stands at no position, so there are no pointers.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

from mha_jax.tasks import Batch, TaskSpec, bounds


@dataclasses.dataclass(frozen=True)
class Config:
    """Sizes of the task."""

    length: int
    vocab: int


def problems(cfg: Config) -> Iterator[tuple[str, str, str]]:
    """Fields out of range."""
    yield from bounds.outside(cfg, length=(2, 8192), vocab=(2, 65536))


def spec(cfg: Config) -> TaskSpec:
    """Class i is the count i + 1.

    Chance is the most likely count: the other length - 1 tokens agree with probability 1/vocab
    each, so the class is binomial, and its mode is floor(length / vocab).
    """
    others, mode = cfg.length - 1, cfg.length // cfg.vocab
    log_ways = math.lgamma(others + 1) - math.lgamma(mode + 1) - math.lgamma(others - mode + 1)
    log_chance = log_ways - others * math.log(cfg.vocab) + (others - mode) * math.log(cfg.vocab - 1)
    return TaskSpec(
        inputs="tokens",
        input_sizes=(cfg.vocab,),
        length=cfg.length,
        mask="full",
        outputs=("count",),
        output_size=cfg.length,
        kind="class",
        metric="accuracy",
        direction="max",
        chance=math.exp(log_chance),
        solved_at=0.99,
        roles=(),
        vocab=tuple(map(str, range(cfg.vocab))),
    )


def sample(key: Any, constants: dict[str, Any], cfg: Config, n: int) -> Batch:
    """Draw n sequences of independent uniform tokens and count by comparing all pairs."""
    import jax.numpy as jnp

    from mha_jax.tasks import draw

    del constants
    (bits,) = draw.columns(key, n, cfg.length)
    tokens = draw.integers(bits, cfg.vocab)
    counts = jnp.sum(tokens[:, :, None] == tokens[:, None, :], axis=-1, dtype=jnp.int32)
    return Batch(
        inputs=tokens,
        targets=(counts - 1)[..., None],
        loss_mask=jnp.ones((n, cfg.length, 1)),
        pointers={},
    )

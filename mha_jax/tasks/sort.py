"""Sort: position i outputs the i-th smallest symbol of the sequence.

    position   0  1  2  3
    input      f  b  h  c
    target     b  c  f  h
    source     1  3  0  2        where that symbol stands

Heads needed: one. A control: more heads do not help. A symbol is found by how many smaller ones
there are, so positions must count before they look: two layers of one head each (the RASP program
`sort_unique` of Weiss, Goldberg and Yahav 2021, arXiv:2106.06981, compiles to that with Tracr,
Lindner et al. 2023, arXiv:2301.05062). But a model as wide as the vocabulary can read all symbols
off one average of them: the base setting was seen to solve the task with its weight on `source` at
chance. The symbols of a sequence are different and the mask is full.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

from mha_jax.config import ModelSpec
from mha_jax.tasks import Batch, TaskSpec, bounds


@dataclasses.dataclass(frozen=True)
class Config:
    """Sizes of the task."""

    length: int
    vocab: int


def problems(cfg: Config) -> Iterator[tuple[str, str, str]]:
    """Fields out of range, and too few symbols to choose from."""
    yield from bounds.outside(cfg, length=(2, 4096), vocab=(2, 4096))
    if cfg.vocab <= cfg.length:
        yield (
            "vocab",
            f"must exceed length={cfg.length}, or every sequence has the same symbols",
            f"use {cfg.length + 1} or more, or lower length",
        )


def spec(cfg: Config) -> TaskSpec:
    """Tokens in their order. Chance: any fixed symbol; `baselines`: the best at each position."""
    return TaskSpec(
        inputs="tokens",
        input_sizes=(cfg.vocab,),
        length=cfg.length,
        mask="full",
        outputs=("symbol",),
        output_size=cfg.vocab,
        kind="class",
        metric="accuracy",
        direction="max",
        chance=1 / cfg.vocab,
        solved_at=0.99,
        roles=("source",),
        vocab=tuple(map(str, range(cfg.vocab))),
    )


def baselines(cfg: Config, seed: int, model: ModelSpec) -> dict[str, float]:
    """`position`: the likeliest symbol at each position, whatever the sequence is.

    With T of V symbols in order, symbol v stands at position t with probability
    C(v, t) C(V-1-v, T-1-t) / C(V, T). Its ratio to that of v - 1 is at least 1 as long as
    v (T - 1) <= t V, so the likeliest one is v = floor(t V / (T - 1)), at most V - 1.
    """
    del seed, model
    total = 0.0
    for t in range(cfg.length):
        v = min(t * cfg.vocab // (cfg.length - 1), cfg.vocab - 1)
        below, above = _log_ways(v, t), _log_ways(cfg.vocab - 1 - v, cfg.length - 1 - t)
        total += math.exp(below + above - _log_ways(cfg.vocab, cfg.length))
    return {"position": total / cfg.length}


def _log_ways(n: int, k: int) -> float:
    """Logarithm of the binomial coefficient of n over k."""
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)


def sample(key: Any, constants: dict[str, Any], cfg: Config, n: int) -> Batch:
    """Draw n sets of symbols in random order; a symbol's place is the count of smaller ones."""
    import jax.numpy as jnp

    from mha_jax.tasks import draw

    del constants
    (bits,) = draw.columns(key, n, cfg.vocab)
    tokens = draw.ranks(bits, cfg.length)
    position = jnp.arange(cfg.length, dtype=jnp.int32)
    place_bs = jnp.sum(tokens[:, None, :] < tokens[:, :, None], axis=-1, dtype=jnp.int32)
    source_bt = jnp.argmax(place_bs[:, None, :] == position[None, :, None], axis=-1)
    source_bt = source_bt.astype(jnp.int32)
    return Batch(
        inputs=tokens,
        targets=jnp.take_along_axis(tokens, source_bt, axis=1)[..., None],
        loss_mask=jnp.ones((n, cfg.length, 1)),
        pointers={"source": source_bt},
    )

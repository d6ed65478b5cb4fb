"""Induction: a block of random tokens stands twice in noise; in the second copy, say what follows.

A block of 4 with 2, 3 and 1 tokens of noise before, between and after (. is not asked):

    position    0  1  2  3  4  5  6  7  8  9 10 11 12 13
    input       g  h  c  a  d  f  g  g  e  c  a  d  f  h
    target      .  .  .  .  .  .  .  .  .  a  d  f  .  .
    induction   .  .  .  .  .  .  .  .  .  3  4  5  .  .    the successor of the earlier occurrence
    previous    .  0  1  2  3  4  5  6  7  8  9 10 11 12

Heads needed: one in each of two layers (Olsson et al. 2022, arXiv:2209.11895): one that looks at
the previous token, one that looks for the token that was preceded by its own. One layer would need
width about the vocabulary (Sanford, Hsu and Telgarsky 2024, arXiv:2408.14332). A control: more
heads are not needed.

The length of the block and all three gaps are drawn per sequence: with a fixed period one layer
that looks at a fixed offset is always right. With the default sizes the best fixed offset finds the
answer .033 of the time, and the best key position chosen for every query position .068; chance is
.031. The tokens of a block differ from each other and from the noise, so that the answer is unique.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np

from mha_jax.config import ModelSpec
from mha_jax.tasks import Batch, TaskSpec, bounds


@dataclasses.dataclass(frozen=True)
class Config:
    """Sizes of the task."""

    length: int
    vocab: int
    min_block: int
    max_block: int


def problems(cfg: Config) -> Iterator[tuple[str, str, str]]:
    """Fields out of range, and blocks that do not fit."""
    yield from bounds.outside(
        cfg, length=(4, 8192), vocab=(3, 4096), min_block=(2, 4096), max_block=(2, 4095)
    )
    if cfg.max_block < cfg.min_block:
        yield (
            "max_block",
            f"must be at least min_block={cfg.min_block}",
            f"use {cfg.min_block} or more, or lower min_block",
        )
    if cfg.length < 2 * cfg.max_block:
        yield (
            "length",
            f"must be at least 2 * max_block={2 * cfg.max_block}, a block stands twice",
            f"use {2 * cfg.max_block} or more, or lower max_block",
        )
    if cfg.vocab <= cfg.max_block:
        yield (
            "vocab",
            f"must exceed max_block={cfg.max_block}, tokens of a block differ and one is noise",
            f"use {cfg.max_block + 1} or more, or lower max_block",
        )


def spec(cfg: Config) -> TaskSpec:
    """Tokens in, the next token out, asked within the second copy."""
    return TaskSpec(
        inputs="tokens",
        input_sizes=(cfg.vocab,),
        length=cfg.length,
        mask="causal",
        outputs=("symbol",),
        output_size=cfg.vocab,
        kind="class",
        metric="accuracy",
        direction="max",
        chance=1 / cfg.vocab,
        solved_at=0.99,
        roles=("induction", "previous"),
        autoregressive=True,
        vocab=tuple(map(str, range(cfg.vocab))),
    )


def sample(key: Any, constants: dict[str, Any], cfg: Config, n: int) -> Batch:
    """Draw n sequences: the block's length and the gaps uniformly, one after the other."""
    import jax.numpy as jnp

    from mha_jax.tasks import draw

    del constants
    symbol_bits, noise_bits, size_bits, gap_bits, start_bits = draw.columns(
        key, n, cfg.vocab, cfg.length, 1, 1, 1
    )
    size_b1 = cfg.min_block + draw.integers(size_bits, cfg.max_block - cfg.min_block + 1)
    gap_b1 = draw.integers(gap_bits, cfg.length - 2 * size_b1 + 1)
    start_b1 = draw.integers(start_bits, cfg.length - 2 * size_b1 - gap_b1 + 1)
    period_b1 = size_b1 + gap_b1

    # Of a random order of the vocabulary the first `size` are the block and the rest are noise.
    order_bv = draw.ranks(symbol_bits)
    noise_bt = size_b1 + draw.integers(noise_bits, cfg.vocab - size_b1)
    position = jnp.arange(cfg.length, dtype=jnp.int32)[None, :]
    first_bt = position - start_b1  # place in the first copy, and in the second
    second_bt = first_bt - period_b1
    place_bt = jnp.where(second_bt >= 0, second_bt, first_bt)
    in_block_bt = (place_bt >= 0) & (place_bt < size_b1)
    tokens = jnp.take_along_axis(order_bv, jnp.where(in_block_bt, place_bt, noise_bt), axis=1)

    asked_bt = (second_bt >= 0) & (second_bt < size_b1 - 1)
    following_bt = jnp.pad(tokens[:, 1:], ((0, 0), (0, 1)))
    return Batch(
        inputs=tokens,
        targets=jnp.where(asked_bt, following_bt, 0)[..., None],
        loss_mask=asked_bt.astype(jnp.float32)[..., None],
        pointers={
            "induction": jnp.where(asked_bt, position - period_b1 + 1, -1),
            "previous": jnp.broadcast_to(position - 1, tokens.shape),
        },
    )


def baselines(cfg: Config, seed: int, model: ModelSpec) -> dict[str, float]:
    """fixed_offset: accuracy of copying the token at the best fixed offset. Exact.

    A period p = size + gap has probability 1 / (length - 2 size + 1) for each gap, a block asks
    size - 1 times, and the tokens differ, so an offset that is no period is never right.
    """
    del seed, model
    size = np.arange(cfg.min_block, cfg.max_block + 1)
    period = np.arange(1, cfg.length)[:, None]
    possible = (period >= size) & (period <= cfg.length - size)
    right = np.where(possible, (size - 1) / (cfg.length - 2 * size + 1), 0).sum(1)
    return {"fixed_offset": float(right.max() / (size - 1).sum())}

"""Needle: one marked item among distractors, asked for at the end.

length = 8, the needle 5 positions before the question (. is not asked):

    position   0  1  2  3  4  5  6  7
    symbol     c  a  b  b  d  a  c  ?
    mark       -  -  *  -  -  -  -  -
    target     .  .  .  .  .  .  .  b
    needle     .  .  .  .  .  .  .  2       where it stands

Heads needed: one in one layer, looking for the mark. A control for the number of heads, and the
simplest task in which the kept cache is the point: with `window` W a model of L layers sees back
L * (W - 1) positions at most. A needle beyond that, and not among the first `n_sinks` positions, is
gone, and the answer is at chance, with or without sinks. With `distance` 0 the accuracy is about
the share of distances within sight, the rest at chance: .287 was seen for one layer with W = 16
and the default sizes, where that makes 15/63 + 48/63 * 1/16 = .286.

Positions solve it if `distance` is fixed, so the default draws it, uniformly, and the base setting
has no position embedding: then only the mark tells the needle. The mark is a field of its own,
added to the symbol: were marked symbols tokens of their own, uniform attention would do. For the
same reason use a layer without MLP: what it mixes is linear in symbol and mark.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from mha_jax.tasks import Batch, TaskSpec, bounds


@dataclasses.dataclass(frozen=True)
class Config:
    """Sizes of the task."""

    length: int
    vocab: int
    distance: int


def problems(cfg: Config) -> Iterator[tuple[str, str, str]]:
    """Fields out of range, and a needle before the sequence begins."""
    yield from bounds.outside(cfg, length=(2, 65536), vocab=(2, 65536), distance=(0, 65535))
    if cfg.distance >= cfg.length:
        yield (
            "distance",
            f"must be less than length={cfg.length}, the question is the last position",
            f"use 1 to {cfg.length - 1}, or 0 to draw it, or raise length",
        )


def spec(cfg: Config) -> TaskSpec:
    """Two fields: symbol (the question is the last one) and mark."""
    return TaskSpec(
        inputs="fields",
        input_sizes=(cfg.vocab + 1, 2),
        length=cfg.length,
        mask="causal",
        outputs=("symbol",),
        output_size=cfg.vocab,
        kind="class",
        metric="accuracy",
        direction="max",
        chance=1 / cfg.vocab,
        solved_at=0.99,
        roles=("needle",),
        vocab=(*map(str, range(cfg.vocab)), "?"),
    )


def sample(key: Any, constants: dict[str, Any], cfg: Config, n: int) -> Batch:
    """Draw n sequences; only the last position is asked."""
    import jax.numpy as jnp

    from mha_jax.tasks import draw

    del constants
    last = cfg.length - 1
    symbol_bits, distance_bits = draw.columns(key, n, last, 1)
    symbols = draw.integers(symbol_bits, cfg.vocab)
    distance_b1 = cfg.distance or 1 + draw.integers(distance_bits, last)
    needle_b1 = jnp.broadcast_to(jnp.asarray(last - distance_b1, jnp.int32), (n, 1))
    marked_bt = jnp.arange(cfg.length, dtype=jnp.int32)[None, :] == needle_b1
    question = jnp.full((n, 1), cfg.vocab, jnp.int32)
    before = ((0, 0), (last, 0))
    answer = jnp.take_along_axis(symbols, needle_b1, axis=1)
    return Batch(
        inputs=jnp.stack(
            [jnp.concatenate([symbols, question], axis=1), marked_bt.astype(jnp.int32)], axis=-1
        ),
        targets=jnp.pad(answer, before)[..., None],
        loss_mask=jnp.pad(jnp.ones((n, 1)), before)[..., None],
        pointers={"needle": jnp.pad(needle_b1, before, constant_values=-1)},
    )

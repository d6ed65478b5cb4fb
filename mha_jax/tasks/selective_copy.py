"""Selective copy: remember the marked tokens among noise, say them in order after a delimiter.

length = 7, n_marked = 3 (. is not asked):

    position   0  1  2  3  4  5  6 |  7  8  9
    symbol     c  a  b  e  d  a  c |  |  a  d
    mark       -  *  -  -  *  -  * |  -  -  -
    target     .  .  .  .  .  .  . |  a  d  c
    source     .  .  .  .  .  .  . |  1  4  6       where it stands

Heads needed: one a layer in two layers: one that looks at the last marked token before a marked
token, one that looks for the marked token whose predecessor was said last. A control: more heads
are not needed. The second need not look at `source`, since a later position can carry the symbol
after the first layer, such as the next marked token: two layers of two heads were seen at .9999
with .10 and .14 of the second layer's attention on `source`.

From Jing et al. 2019 (arXiv:1706.02761) by way of Gu and Dao 2023 (arXiv:2312.00752), whose noise
is one blank; here it is any symbol, so only the mark tells.

The marked places are drawn, so no position or fixed offset solves it. The marked symbols of a
sequence differ, so what was said last names what comes next. A guess among the marked symbols that
are not said yet, without their order, is right .34 of the time with the default sizes.
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
    n_marked: int


def problems(cfg: Config) -> Iterator[tuple[str, str, str]]:
    """Fields out of range, and more marked tokens than there is room or symbols for."""
    yield from bounds.outside(cfg, length=(2, 4096), vocab=(2, 4096), n_marked=(1, 4095))
    for field, what in (("length", "places"), ("vocab", "marked symbols differ")):
        if cfg.n_marked > getattr(cfg, field):
            yield (
                field,
                f"must be at least n_marked={cfg.n_marked}, {what}",
                f"use {cfg.n_marked} or more, or lower n_marked",
            )


def spec(cfg: Config) -> TaskSpec:
    """Two fields: symbol (the delimiter is the last one) and mark.

    Autoregressive in the symbol: what is said is the next position's input, unmarked.
    """
    return TaskSpec(
        inputs="fields",
        input_sizes=(cfg.vocab + 1, 2),
        length=cfg.length + cfg.n_marked,
        mask="causal",
        outputs=("symbol",),
        output_size=cfg.vocab,
        kind="class",
        metric="accuracy",
        direction="max",
        chance=1 / cfg.vocab,
        solved_at=0.99,
        roles=("source",),
        autoregressive=True,
        vocab=(*map(str, range(cfg.vocab)), "|"),
        delimiters=(cfg.vocab,),
    )


def sample(key: Any, constants: dict[str, Any], cfg: Config, n: int) -> Batch:
    """Draw n sequences: places, different symbols for them, noise for the others."""
    import jax.numpy as jnp

    from mha_jax.tasks import draw

    del constants
    place_bits, symbol_bits, noise_bits = draw.columns(key, n, cfg.length, cfg.vocab, cfg.length)
    marked_bt = draw.ranks(place_bits) < cfg.n_marked  # of a permutation: as many, anywhere
    said_bm = draw.ranks(symbol_bits, cfg.n_marked)
    count_bt = jnp.cumsum(marked_bt, axis=1)
    in_order_bt = jnp.take_along_axis(said_bm, jnp.maximum(count_bt - 1, 0), axis=1)
    symbols = jnp.where(marked_bt, in_order_bt, draw.integers(noise_bits, cfg.vocab))
    # Before the m-th marked place, counted from 0, at most m marks have been met.
    met_bmt = count_bt[:, None, :] <= jnp.arange(cfg.n_marked)[None, :, None]
    source_bm = jnp.sum(met_bmt, axis=-1, dtype=jnp.int32)

    delimiter = jnp.full((n, 1), cfg.vocab, jnp.int32)
    symbol_bt = jnp.concatenate([symbols, delimiter, said_bm[:, :-1]], axis=1)
    mark_bt = jnp.pad(marked_bt.astype(jnp.int32), ((0, 0), (0, cfg.n_marked)))
    before = ((0, 0), (cfg.length, 0))
    return Batch(
        inputs=jnp.stack([symbol_bt, mark_bt], axis=-1),
        targets=jnp.pad(said_bm, before)[..., None],
        loss_mask=jnp.pad(jnp.ones((n, cfg.n_marked)), before)[..., None],
        pointers={"source": jnp.pad(source_bm, before, constant_values=-1)},
    )

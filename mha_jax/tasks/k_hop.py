"""k-hop induction: go to what followed the last earlier occurrence, k times; say what is there.

A vocabulary of 4, n_hops = 2: two positions, and asked of each the symbol there (. is undefined
and not asked):

    position   0  1  2  3 |  4  5  6  7 |  8  9 10 11
    input      a  c  b  d |  c  a  d  b |  a  d  c  b
    hop1       .  .  .  . |  2  1  4  3 |  6  7  5  8
    symbol1    .  .  .  . |  b  c  c  d |  d  b  a  a
    hop2       .  .  .  . |  .  .  2  . |  4  3  1  6
    symbol2    .  .  .  . |  .  .  b  . |  c  d  c  d

At position 8 stands a: the last earlier a is at 5 and d follows it at 6 (hop1); the last d before 6
is at 3 and c follows it at 4 (hop2).

Heads needed: one a layer; the resource is depth, about 2 + log2 k layers (Sanford, Hsu and
Telgarsky 2024, arXiv:2402.09268, whose function this is). Every hop up to k is asked, each by a
read-out head of its own, so that one model shows how many hops its depth allows: with two heads a
layer, two layers were seen at .999 and .61 for hops 1 and 2, three at 1.000 for both. No head has
to look at hop2: those three had both layers after the first on hop1, whose position carries, one
layer later, the symbol of its own hop.

A sequence is a row of shuffles of the whole vocabulary, cut at `length`. Of uniform tokens the last
occurrence is often near and short ways are often right: for 8 symbols the token itself is the
answer to hop 2 .45 of the time. With shuffles the best fixed offset is right .16 of the time (hop 1
and hop 2), the best key position chosen for every query position .25 and .23; chance is .125.
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
    n_hops: int


def problems(cfg: Config) -> Iterator[tuple[str, str, str]]:
    """Fields out of range, and sequences too short for k hops."""
    yield from bounds.outside(cfg, length=(2, 8192), vocab=(2, 1024), n_hops=(1, 64))
    if cfg.length <= cfg.vocab * cfg.n_hops:
        yield (
            "length",
            f"must exceed vocab * n_hops={cfg.vocab * cfg.n_hops}, a hop may go back so far",
            f"use {cfg.vocab * cfg.n_hops + 1} or more, or lower vocab or n_hops",
        )


def spec(cfg: Config) -> TaskSpec:
    """Read-out heads and roles are hop1..hopk."""
    hops = tuple(f"hop{j}" for j in range(1, cfg.n_hops + 1))
    return TaskSpec(
        inputs="tokens",
        input_sizes=(cfg.vocab,),
        length=cfg.length,
        mask="causal",
        outputs=hops,
        output_size=cfg.vocab,
        kind="class",
        metric="accuracy",
        direction="max",
        chance=1 / cfg.vocab,
        solved_at=0.99,
        roles=hops,
        vocab=tuple(map(str, range(cfg.vocab))),
    )


def sample(key: Any, constants: dict[str, Any], cfg: Config, n: int) -> Batch:
    """Draw n rows of shuffles; a hop is asked wherever it is defined."""
    import jax.numpy as jnp

    from mha_jax.tasks import draw

    del constants
    n_shuffles = -(-cfg.length // cfg.vocab)
    (bits,) = draw.columns(key, n, n_shuffles * cfg.vocab)
    shuffles = draw.ranks(bits.reshape(n, n_shuffles, cfg.vocab))
    tokens = shuffles.reshape(n, -1)[:, : cfg.length]
    position = jnp.arange(cfg.length, dtype=jnp.int32)
    earlier_ts = position[None, :] < position[:, None]
    same_bts = (tokens[:, :, None] == tokens[:, None, :]) & earlier_ts[None]
    last_bt = jnp.max(jnp.where(same_bts, position[None, None, :], -1), axis=-1)
    hop_bt = jnp.where(last_bt >= 0, last_bt + 1, -1)

    def follow(to_bt: Any, at_bt: Any) -> Any:
        """to[at], -1 where `at` is undefined."""
        return jnp.where(at_bt >= 0, jnp.take_along_axis(to_bt, jnp.maximum(at_bt, 0), axis=1), -1)

    hops = [hop_bt]
    while len(hops) < cfg.n_hops:
        hops.append(follow(hop_bt, hops[-1]))
    answer_bto = jnp.stack([follow(tokens, hop_bt) for hop_bt in hops], axis=-1)
    return Batch(
        inputs=tokens,
        targets=jnp.maximum(answer_bto, 0),
        loss_mask=(answer_bto >= 0).astype(jnp.float32),
        pointers={f"hop{j}": hop_bt for j, hop_bt in enumerate(hops, start=1)},
    )

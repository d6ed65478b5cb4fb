"""Multi-query associative recall: keys with their values, then the keys again; name the values.

P = 2 pairs, T = 12 (k, v: key and value symbols; - is a filler, . is not asked):

    position   0  1  2  3 |  4  5  6  7  8  9 10 11
    input     k5 v3 k1 v8 | k1  - k5  -  -  -  -  -
    target     .  .  .  . | v8  . v3  .  .  .  .  .
    source     .  .  .  . |  3  .  1  .  .  .  .  .     where the value stands

The generator is Zoology's (Arora et al. 2023, arXiv:2312.04927): the pairs come first; every key
returns once, in a slot of two positions; slots are drawn one after another without replacement with
p(s) ~ s^(a-1), a = 0.01, for slot s = 1, 2, ..., the first pair's first: where there are more slots
than pairs most returns are near the pairs, and early pairs return early. The label stands
at the returned key itself; the token after it is a filler, not the answer. A filler is token 0 or,
with `random_fillers`, any token: then a filler can look like a returned key and is not asked.

Heads needed: one in each of two layers, the first to move a key to the value after it, the second
to find it. A control: the width of a head is the resource, and at equal width more heads were seen
to learn later. Position helps a little: with the default sizes, which leave no slot free, the best
fixed offset is right .20 of the time and the best key position chosen for every query position .22,
where a guess among the P = 8 values of the context is right .125 of the time.

A model may be right without looking at `source`: pairs stand at fixed positions, so one position
can relay the value of another. Two layers of one head were seen at .9999 with .14 of the second
layer's attention on `source` and the rest on relays.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np

from mha_jax.tasks import Batch, TaskSpec, bounds

_POWER = 0.01  # a: the exponent of the slots' power law, plus one


@dataclasses.dataclass(frozen=True)
class Config:
    """Sizes of the task."""

    length: int
    n_pairs: int
    vocab: int
    random_fillers: bool


def problems(cfg: Config) -> Iterator[tuple[str, str, str]]:
    """Fields out of range, no room for the keys to return in, and too few symbols."""
    yield from bounds.outside(cfg, length=(4, 8192), n_pairs=(1, 2048), vocab=(4, 16384))
    if cfg.length % 2:
        yield "length", "must be even, a slot is two positions", f"use {cfg.length + 1}"
    if cfg.length < 4 * cfg.n_pairs:
        yield (
            "length",
            f"must be at least 4 * n_pairs={4 * cfg.n_pairs}, every key returns in its own slot",
            f"use {4 * cfg.n_pairs} or more, or lower n_pairs",
        )
    if cfg.vocab < 2 * cfg.n_pairs + 2:
        yield (
            "vocab",
            f"must be at least 2 * n_pairs + 2 = {2 * cfg.n_pairs + 2}, no two keys are equal",
            f"use {2 * cfg.n_pairs + 2} or more, or lower n_pairs",
        )


def spec(cfg: Config) -> TaskSpec:
    """Token 0 is the filler, then keys below vocab // 2, then values.

    Not autoregressive in the sense of TaskSpec: the answer does not stand in the input.
    """
    half = cfg.vocab // 2
    keys = tuple(f"k{i}" for i in range(1, half))
    return TaskSpec(
        inputs="tokens",
        input_sizes=(cfg.vocab,),
        length=cfg.length,
        mask="causal",
        outputs=("value",),
        output_size=cfg.vocab,
        kind="class",
        metric="accuracy",
        direction="max",
        chance=1 / (cfg.vocab - half),
        solved_at=0.99,
        roles=("source",),
        vocab=("-", *keys, *(f"v{i}" for i in range(cfg.vocab - half))),
        classes=(0, *(1 for _ in keys), *(2 for _ in range(cfg.vocab - half))),
    )


def slot_probabilities(cfg: Config) -> np.ndarray:
    """float64 [slot]: of the first draw; later draws renormalise over the slots that are left."""
    weights = np.arange(1, (cfg.length - 2 * cfg.n_pairs) // 2 + 1) ** (_POWER - 1)
    return weights / weights.sum()


def sample(key: Any, constants: dict[str, Any], cfg: Config, n: int) -> Batch:
    """Draw n sequences: pairs, slots, fillers."""
    import jax
    import jax.numpy as jnp

    from mha_jax.tasks import draw

    del constants
    pairs, half, context = cfg.n_pairs, cfg.vocab // 2, 2 * cfg.n_pairs
    p_s = slot_probabilities(cfg)
    key_bits, value_bits, slot_bits, filler_bits = draw.columns(
        key, n, half - 1, cfg.vocab - half, len(p_s), cfg.length
    )
    keys_bp = 1 + draw.ranks(key_bits, pairs)
    values_bp = half + draw.ranks(value_bits, pairs)
    # Drawing without replacement is a race of exponential clocks of rates p: the order in which
    # they ring is that of the draws ("Gumbel top-k", Kool et al. 2019, arXiv:1903.06059).
    rings_bs = draw.exponential(slot_bits) / jnp.asarray(p_s, jnp.float32)[None]
    slots_bp = jax.lax.top_k(-rings_bs, pairs)[1]
    where_bp = context + 2 * slots_bp

    pointer_bp = jnp.broadcast_to(2 * jnp.arange(pairs, dtype=jnp.int32)[None] + 1, (n, pairs))
    row_b1 = jnp.arange(n)[:, None]

    def at_returns(fill: int, x_bp: Any) -> Any:
        """[b, pair] -> int32 [b, t], `fill` where no key returns."""
        return jnp.full((n, cfg.length), fill, jnp.int32).at[row_b1, where_bp].set(x_bp)

    pairs_bt = jnp.stack([keys_bp, values_bp], axis=-1).reshape(n, context)
    tokens = at_returns(0, keys_bp).at[:, :context].set(pairs_bt)
    if cfg.random_fillers:
        tokens = jnp.where(tokens > 0, tokens, draw.integers(filler_bits, cfg.vocab))
    source = at_returns(-1, pointer_bp)
    return Batch(
        inputs=tokens,
        targets=at_returns(0, values_bp)[..., None],
        loss_mask=(source >= 0).astype(jnp.float32)[..., None],
        pointers={"source": source},
    )

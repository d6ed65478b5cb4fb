"""Dyck-k: which of k kinds of bracket does the next one close?

Two kinds, depth at most 2 (asked where the next bracket closes, - is not asked):

    position   0  1  2  3  4  5  6
    input      (  [  ]  (  )  )  [        the last bracket, ], is not read
    target     -  [  -  (  (  -  [        kind of the bracket that closes next
    opener     -  1  -  3  0  -  6        where it was opened

All balanced strings of n_pairs pairs whose depth never passes max_depth are equally likely, and so
are the kinds. Whether the next bracket closes is given away by the loss mask alone, so what is
measured is memory of the kind.

Heads needed: one a layer; the resource is depth and precision, not heads. Two layers of soft
attention generate Dyck-k of bounded depth (Yao et al. 2021, arXiv:2105.11115): the first measures
the depth by attending to all brackets alike, the second finds the last one opened at it.
Half of the answers or more need no stack, since a bracket that opened just now closes next:
`baselines` has what that gives.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator
from typing import Any

import numpy as np

from mha_jax.config import ModelSpec
from mha_jax.tasks import Batch, TaskSpec, bounds


@dataclasses.dataclass(frozen=True)
class Config:
    """Sizes of the task."""

    n_pairs: int
    max_depth: int
    n_types: int


def problems(cfg: Config) -> Iterator[tuple[str, str, str]]:
    """Fields out of range."""
    yield from bounds.outside(cfg, n_pairs=(1, 1024), max_depth=(1, 1024), n_types=(2, 4096))


def spec(cfg: Config) -> TaskSpec:
    """Tokens: kinds 0..k-1 that open, then the same that close. Chance: any fixed kind."""
    return TaskSpec(
        inputs="tokens",
        input_sizes=(2 * cfg.n_types,),
        length=2 * cfg.n_pairs - 1,
        mask="causal",
        outputs=("type",),
        output_size=cfg.n_types,
        kind="class",
        metric="accuracy",
        direction="max",
        chance=1 / cfg.n_types,
        solved_at=0.99,
        roles=("opener",),
        vocab=(*(f"({i}" for i in range(cfg.n_types)), *(f"){i}" for i in range(cfg.n_types))),
    )


@functools.lru_cache(maxsize=8)
def p_open(n_pairs: int, max_depth: int) -> np.ndarray:
    """Probability that a uniformly drawn balanced string opens a bracket: float64 [step, depth].

    The share of the ways to end that start so: with r steps left at depth d there are w(r, d) =
    w(r-1, d-1) + w(r-1, d+1) of them, none below depth 0 or above the largest. Rows of w are kept
    up to a factor.
    """
    steps, depths = 2 * n_pairs, min(max_depth, n_pairs) + 1
    share = np.zeros((steps, depths))
    ways = np.zeros(depths + 2)  # index d + 1
    ways[1] = 1
    for t in reversed(range(steps)):
        closing, opening = ways[:-2], ways[2:]
        total = closing + opening
        share[t] = np.divide(opening, total, out=np.zeros(depths), where=total > 0)
        ways[1:-1] = total / total.max()
    return share


def baselines(cfg: Config, seed: int, model: ModelSpec) -> dict[str, float]:
    """`fixed_offset`: the kind of the bracket at the best fixed distance, which is the last one.

    Right for a bracket that was opened just now, 1/k of the time otherwise. Moving what is inside a
    pair behind it, x(w)y -> x()wy, keeps a string balanced and no deeper, and for w of a given
    length has an inverse: no distance is more frequent than zero.
    """
    del seed, model
    share = p_open(cfg.n_pairs, cfg.max_depth)
    at, adjacent = np.zeros(share.shape[1]), 0.0  # probability of each depth; pairs ()
    at[0] = 1
    for t in range(2 * cfg.n_pairs):
        opens, closes = at * share[t], at * (1 - share[t])
        at = np.append(closes[1:], 0) + np.append(0, opens[:-1])
        if t + 1 < 2 * cfg.n_pairs:
            adjacent += float(np.append(0, opens[:-1]) @ (1 - share[t + 1]))
    right = adjacent / cfg.n_pairs
    return {"fixed_offset": right + (1 - right) / cfg.n_types}


def sample(key: Any, constants: dict[str, Any], cfg: Config, n: int) -> Batch:
    """Draw n strings step by step; a closing bracket's partner is the last one opened at its
    depth."""
    import jax
    import jax.numpy as jnp

    from mha_jax.tasks import draw

    del constants
    length = 2 * cfg.n_pairs
    step_bits, type_bits = draw.columns(key, n, length, length)
    uniform_bt = draw.uniform(step_bits)
    share = jnp.asarray(p_open(cfg.n_pairs, cfg.max_depth), jnp.float32)

    def step(depth_b: Any, now: tuple[Any, Any]) -> tuple[Any, Any]:
        uniform_b, share_d = now
        opens_b = uniform_b < share_d[depth_b]
        return depth_b + jnp.where(opens_b, 1, -1), opens_b

    _, opens_tb = jax.lax.scan(step, jnp.zeros(n, jnp.int32), (uniform_bt.T, share))
    opens_bt = opens_tb.T
    # Depth of the inside of the pair to which a bracket belongs.
    depth_bt = jnp.cumsum(jnp.where(opens_bt, 1, -1), axis=1) + jnp.where(opens_bt, 0, 1)
    position = jnp.arange(length, dtype=jnp.int32)
    partner_bts = (
        (depth_bt[:, None, :] == depth_bt[:, :, None])
        & opens_bt[:, None, :]
        & (position[None, None, :] <= position[None, :, None])
    )
    opener_bt = jnp.max(jnp.where(partner_bts, position[None, None, :], 0), axis=-1)
    types = draw.integers(type_bits, cfg.n_types)
    type_bt = jnp.take_along_axis(types, opener_bt, axis=1)
    tokens = jnp.where(opens_bt, type_bt, type_bt + cfg.n_types)
    asked_bt = ~opens_bt[:, 1:]
    return Batch(
        inputs=tokens[:, :-1],
        targets=jnp.where(asked_bt, type_bt[:, 1:], 0)[..., None],
        loss_mask=asked_bt.astype(jnp.float32)[..., None],
        pointers={"opener": jnp.where(asked_bt, opener_bt[:, 1:], -1)},
    )

"""Repeated random tokens: inputs on which nothing but an earlier repeat tells what comes next.

A start token, then one random block of `period` tokens over and over. Length 8, period 3:

    position     0  1  2  3  4  5  6  7
    input        ^  c  a  f  c  a  f  c
    latest       .  .  .  .  2  3  4  5    behind the previous occurrence
    every        .  .  .  .  2  3  4  5,2  behind every earlier occurrence

The tokens of a block differ, so that each key is an answer for one reason only. All sequences have
the same period, so a head at the fixed offset 1 - period scores like an induction head: read these
forms beside `targets.induction` on the task's own data.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from mha_jax.tasks import draw


def block_period(length: int, repeats: int, n_ids: int) -> int:
    """The longest period with which a start token and `repeats` blocks fit into the length, and no
    longer than the number of token ids to choose from.

    Raises:
      ValueError: it would be below 2, where the key behind the previous occurrence is the query.
    """
    period = min((length - 1) // repeats, n_ids)
    if period < 2:
        raise ValueError(
            f"length={length} and {n_ids} token ids leave no block of 2 tokens {repeats} times"
        )
    return period


def tokens(
    key: jax.Array, n: int, length: int, period: int, ids: Sequence[int], start: int
) -> jax.Array:
    """n sequences: the start token, then a block of random tokens repeated to the end of `length`.

    Olsson et al. 2022, arXiv:2209.11895, repeat 25 random tokens 4 times behind a start token and
    leave the most and least common tokens out of `ids`; with 2 repeats it is the common short form.

    Args:
      key: random key.
      n: number of sequences; the first ones do not depend on it.
      length: positions of a sequence.
      period: tokens of the block, all different; see `block_period`.
      ids: token ids that a block may hold.
      start: id of the start token.

    Returns:
      int32 [n, length].

    Raises:
      ValueError: the start token is among `ids`, or they are fewer than the period.
    """
    if start in ids or len(set(ids)) < period:
        raise ValueError(
            f"ids must hold {period} different tokens or more, and not the start token {start}"
        )
    distinct = sorted(set(ids))
    (bits,) = draw.columns(key, n, len(distinct))
    block_bp = jnp.asarray(distinct, jnp.int32)[draw.ranks(bits, period)]
    body_bt = block_bp[:, jnp.arange(length - 1) % period]
    return jnp.pad(body_bt, ((0, 0), (1, 0)), constant_values=start)


def latest(length: int, period: int) -> jax.Array:
    """The key behind the previous occurrence of the query's token: bool [1, t, s] with
    s = t - period + 1, for rows of the second and later repeats.
    """
    return _behind(length, period) & (_ago(length) == period)[None]


def every(length: int, period: int) -> jax.Array:
    """Keys behind every earlier occurrence of the query's token: bool [1, t, s] with
    s = t - m * period + 1, m = 1, 2, ..., for rows of the second and later repeats.

    Prefix matching, Olsson et al. 2022, arXiv:2209.11895: the weights on all of them are summed.
    """
    return _behind(length, period)


def _ago(length: int) -> jax.Array:
    """How long before the query the key's previous token stands, [t, s]."""
    return jnp.arange(length)[:, None] - jnp.arange(length)[None, :] + 1


def _behind(length: int, period: int) -> jax.Array:
    ago_ts = _ago(length)
    in_block = jnp.arange(length)[None, :] >= 2  # behind a token of the first block or a later one
    return ((ago_ts > 0) & (ago_ts % period == 0) & in_block)[None]

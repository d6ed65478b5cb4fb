"""Slots: which columns of an answer which head can write, and how good they are.

The concatenated heads lie side by side, so that without W_O, and with nothing behind the layer,
head i writes the i-th n-th of the columns and no other: its *slot*. The same parts of the columns
are called slots where W_O or another map lets every head write to all of them. Letters as in
`attention/core.py`, and c columns.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np


def jacobian_blocks(answer: Callable[[jax.Array], jax.Array], z_btnh: jax.Array) -> jax.Array:
    """How strongly each slot of an answer follows each head, [slot, head]: from 0, in the program.

    J[c, n, h] is the derivative of column c with respect to entry h of z of head n, moved alike at
    all positions. The block of slot i and head j is sqrt(mean over b, t of the sum of J^2 over the
    columns of the slot and the entries of the head): for `z @ W_O` the Frobenius norm of the block
    of W_O. Block-diagonal: only head i moves slot i. Ours.

    Args:
      answer: from z to the columns [b, t, c].
      z_btnh: where the derivative is taken.

    Raises:
      ValueError: c does not divide by n.
    """
    b, t, n, h = z_btnh.shape
    _check(jax.eval_shape(answer, z_btnh).shape[-1], n)

    out_btc, pulled = jax.vjp(answer, z_btnh)

    def of_entry(i: jax.Array) -> jax.Array:
        tangent = jax.nn.one_hot(i, n * h).reshape(1, 1, n, h)
        moved = jnp.broadcast_to(tangent, z_btnh.shape).astype(z_btnh.dtype)
        # The linear map is turned twice, in place of a forward derivative, which the products of
        # bfloat16 models do not have (attention/product.py).
        (column_btc,) = jax.vjp(pulled, jnp.zeros_like(out_btc))[1]((moved,))
        return jnp.square(column_btc).mean((0, 1)).reshape(n, -1).sum(-1)

    squares_es = jax.lax.map(of_entry, jnp.arange(n * h))
    return jnp.sqrt(squares_es.reshape(n, h, n).sum(1)).T


def diagonal_share(blocks_sn: np.ndarray) -> float:
    """Share of the squared block norms that lies on the diagonal: 1 for a block-diagonal Jacobian,
    about 1 / n where every head moves every slot alike; NaN if nothing moves.
    """
    squares_sn = np.square(np.asarray(blocks_sn, np.float64))
    total = squares_sn.sum()
    return float(np.trace(squares_sn) / total) if total > 0 else float("nan")


def slot_r2(
    outputs_btc: np.ndarray, targets_btc: np.ndarray, asked_btc: np.ndarray, n_slots: int
) -> np.ndarray:
    """R^2 of each slot: 1 - squared error / variance of its targets about the mean of each column.

    On the host, float64. NaN where a slot is not asked for, or its targets do not vary.

    Args:
      outputs_btc, targets_btc: the answer, and what it should be.
      asked_btc: 1 where an answer is asked for.
      n_slots: equal parts of the columns.

    Raises:
      ValueError: c does not divide by n_slots.
    """
    _check(np.shape(outputs_btc)[-1], n_slots)
    asked, y, out = (
        np.asarray(x, np.float64).reshape(-1, np.shape(x)[-1])
        for x in (asked_btc, targets_btc, outputs_btc)
    )
    mean_c = (asked * y).sum(0) / np.maximum(asked.sum(0), 1)
    error_s, spread_s = (
        (asked * np.square(x)).sum(0).reshape(n_slots, -1).sum(1) for x in (out - y, y - mean_c)
    )
    known_s = spread_s > 0
    return np.where(known_s, 1 - error_s / np.where(known_s, spread_s, 1), np.nan)


def _check(n_columns: int, n_slots: int) -> None:
    if n_columns % n_slots:
        raise ValueError(f"{n_columns} columns have no {n_slots} equal slots")

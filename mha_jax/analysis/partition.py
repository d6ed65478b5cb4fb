"""How each head divides its attention over cells, sequence by sequence: what `specialization`
starts from.

The cells are the roles of a task with "other" as the last, or the key offsets. Letters: b
sequences, t query positions, s key positions, n query heads; R roles, **in the sorted order of
their names** (see `roles`); c cells. Both functions run inside the compiled program and return

    mass      [b, n, c]  attention weight in each cell, summed over the rows that count
    baseline  [b, c]     what uniform attention over the visible keys would put there
    n_rows    [b]        int32, rows that count

one sequence apart from the other, so that intervals can be had by drawing sequences again.
Concatenate them over batches. Where n_rows is 0 the other two are 0.

Ours; the counting of mass is that of `roles`.
"""

from __future__ import annotations

from collections.abc import Mapping

import jax
import jax.numpy as jnp


def role_masses(
    weights_bnts: jax.Array, pointers: Mapping[str, jax.Array], visible_ts: jax.typing.ArrayLike
) -> dict[str, jax.Array]:
    """Mass on each role's key, and on all other keys, over the rows that tell the roles apart.

    Such a row defines every role, sees every pointer and has no two roles at one key. On another
    row the cells would overlap or be fewer, and a head would seem to serve a role that it cannot be
    told to serve. A role that is never defined or never in sight therefore leaves no row at all and
    its index blank; drop it from `pointers` to see how the heads divide the rest.

    Args:
      weights_bnts: attention weights; rows sum to one over s.
      pointers: role -> int [b, t], the key position asked for; negative where the role is
        undefined.
      visible_ts: bool, whether row t may see key s.

    Returns:
      See the module; c = R + 1, the last cell being "other". Without any role n_rows is 0.
    """
    b, n, length, _ = weights_bnts.shape
    if not pointers:
        return {
            "mass": jnp.zeros((b, n, 1)),
            "baseline": jnp.zeros((b, 1)),
            "n_rows": jnp.zeros(b, jnp.int32),
        }
    seen_ts = jnp.asarray(visible_ts, bool)
    pointer_btr = jnp.stack([jnp.asarray(pointers[role]) for role in sorted(pointers)], -1)
    key_btr = jnp.maximum(pointer_btr, 0)
    row_1t1 = jnp.arange(length)[None, :, None]
    ordered_btr = jnp.sort(pointer_btr, -1)
    apart_bt = (
        (pointer_btr >= 0).all(-1)
        & seen_ts[row_1t1, key_btr].all(-1)
        & (ordered_btr[..., 1:] != ordered_btr[..., :-1]).all(-1)
    )
    hit_bntr = jnp.take_along_axis(weights_bnts, key_btr[:, None], axis=-1)
    # where, not a product: a NaN in a row that does not count must not spread.
    hit_bntr = jnp.where(apart_bt[:, None, :, None], hit_bntr, 0)
    other_bnt = jnp.where(apart_bt[:, None], 1 - hit_bntr.sum(-1), 0)
    chance_t = 1 / jnp.maximum(seen_ts.sum(-1), 1)
    chance_b = jnp.where(apart_bt, chance_t[None], 0).sum(-1)
    n_rows_b = apart_bt.sum(-1, dtype=jnp.int32)
    n_roles = len(pointers)
    return {
        # Rounding may leave 1 - sum below 0, and a mass has a logarithm.
        "mass": jnp.concatenate(
            [hit_bntr.sum(2), jnp.maximum(other_bnt, 0).sum(-1)[..., None]], axis=-1
        ),
        "baseline": jnp.concatenate(
            [jnp.tile(chance_b[:, None], (1, n_roles)), (n_rows_b - n_roles * chance_b)[:, None]],
            axis=-1,
        ),
        "n_rows": n_rows_b,
    }


def offset_masses(
    weights_bnts: jax.Array, visible_ts: jax.typing.ArrayLike
) -> dict[str, jax.Array]:
    """Mass at each key offset s - t, over the rows that see two keys or more.

    Positions of keys relative to the query need no ground truth: the partition of a task without
    roles, and the check on one with roles.

    Args:
      weights_bnts: attention weights; as many keys as queries; rows sum to one over s.
      visible_ts: bool, whether row t may see key s.

    Returns:
      See the module; c = 2T - 1, from offset -(T - 1) to T - 1: the key before the query is cell
      T - 2.
    """
    b = weights_bnts.shape[0]
    seen_ts = jnp.asarray(visible_ts, bool)
    counts_t = seen_ts.sum(-1) > 1
    uniform_ts = seen_ts / jnp.maximum(seen_ts.sum(-1, keepdims=True), 1)
    baseline_c = _by_offset(jnp.where(counts_t[:, None], uniform_ts, 0))
    return {
        "mass": _by_offset(jnp.where((counts_t[:, None] & seen_ts)[None, None], weights_bnts, 0)),
        "baseline": jnp.tile(baseline_c[None], (b, 1)),
        "n_rows": jnp.full(b, counts_t.sum(), jnp.int32),
    }


def _by_offset(x_ts: jax.Array) -> jax.Array:
    """Sums of [..., t, s] along its diagonals, [..., 2T - 1]."""
    length = x_ts.shape[-1]
    padding = [(0, 0)] * (x_ts.ndim - 1) + [(0, length)]
    # Rows of 2T read in rows of 2T - 1: each row stands one place further right than the one above
    # it, and with the last row on top that aligns equal offsets.
    flat = jnp.pad(x_ts[..., ::-1, :], padding).reshape(*x_ts.shape[:-2], -1)
    return flat[..., :-length].reshape(*x_ts.shape[:-2], length, 2 * length - 1).sum(-2)

"""How much of each head's attention lands where a role points: sums inside the compiled program,
scores at the end.

A role (a relation of the task: "previous position", "same word", ...) names for a query row t at
most one key position, its pointer. Letters: b sequences, t query positions, s key positions, n
query heads, k kv heads; R roles, **in the sorted order of their names** (jax sorts the keys of a
dict, so no other order survives a compiled program).

Source: the mask-match of TransformerLens `head_detector.py` ("mul"), restricted to rows that have a
target; its correction for chance, (mass - baseline) / (1 - baseline), is ours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def role_sums(
    weights_bnts: jax.Array, pointers: Mapping[str, jax.Array], visible_ts: jax.typing.ArrayLike
) -> dict[str, jax.Array]:
    """Sums over the valid rows of a batch: rows whose pointer is not -1.

    Args:
      weights_bnts: attention weights; rows sum to one over s.
      pointers: role -> int [b, t], the key position asked for; negative where the role is
        undefined.
      visible_ts: bool, whether row t may see key s.

    Returns:
      `mass` [n, R]: weight on the pointer. `baseline` [R]: what uniform attention over the row's
      visible keys would put there (1 / visible keys; 0 for a pointer out of sight, such as beyond a
      window). `n_rows` [R], int32. Add them over batches, then call `scores`.
    """
    seen_ts = jnp.asarray(visible_ts, jnp.float32)
    uniform_ts = seen_ts / jnp.maximum(seen_ts.sum(-1, keepdims=True), 1)
    mass, baseline, n_rows = [], [], []
    for role in sorted(pointers):
        pointer_bt = pointers[role]
        valid_bt = pointer_bt >= 0
        key_bt = jnp.where(valid_bt, pointer_bt, 0)
        hit_bnt = jnp.take_along_axis(weights_bnts, key_bt[:, None, :, None], axis=-1)[..., 0]
        # where, not a product: a NaN in a row that does not count must not spread.
        mass.append(jnp.where(valid_bt[:, None, :], hit_bnt, 0).sum((0, 2)))
        chance_bt = uniform_ts[jnp.arange(key_bt.shape[1])[None, :], key_bt]
        baseline.append(jnp.where(valid_bt, chance_bt, 0).sum())
        n_rows.append(valid_bt.sum(dtype=jnp.int32))
    n_heads = weights_bnts.shape[1]
    return {
        "mass": jnp.stack(mass, -1) if mass else jnp.zeros((n_heads, 0)),
        "baseline": jnp.stack(baseline) if baseline else jnp.zeros(0),
        "n_rows": jnp.stack(n_rows) if n_rows else jnp.zeros(0, jnp.int32),
    }


def scores(sums: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Means from summed `role_sums` (host side, float64).

    Returns:
      `mass` [n, R], mean weight on the pointer; `baseline` [R], its chance level; `corrected` [n,
      R], 0 at chance and 1 where all weight is on the pointer; `n_rows` [R]. NaN for a role without
      a valid row, and for `corrected` where a row sees one key only.
    """
    n_rows = np.asarray(sums["n_rows"], np.int64)
    rows = np.where(n_rows > 0, n_rows, np.nan)
    mass = np.asarray(sums["mass"], np.float64) / rows
    baseline = np.asarray(sums["baseline"], np.float64) / rows
    room = np.where(baseline < 1, 1 - baseline, np.nan)
    return {
        "mass": mass,
        "baseline": baseline,
        "corrected": (mass - baseline) / room,
        "n_rows": n_rows,
    }


def head_rows(
    layers: Sequence[Mapping[str, Any] | None], roles: Sequence[str], n_kv_heads: Sequence[int]
) -> list[dict[str, Any]]:
    """The rows of `heads.csv`, one for each layer, head and role; layers, heads and kv heads count
    from 0.

    Args:
      layers: summed `role_sums`, one a layer; None for a layer without attention weights, which
        has no rows.
      roles: names of the roles, in any order: the order of the rows.
      n_kv_heads: kv heads of each layer; query head i reads kv head i // (n / k).
    """
    column = {role: i for i, role in enumerate(sorted(roles))}
    rows = []
    for layer, (sums, k) in enumerate(zip(layers, n_kv_heads, strict=True)):
        if sums is None:
            continue
        score = scores(sums)
        n = score["mass"].shape[0]
        for head in range(n):
            for role in roles:
                r = column[role]
                rows.append(
                    {
                        "layer": layer,
                        "head": head,
                        "kv_head": head // (n // k),
                        "role": role,
                        "mass": float(score["mass"][head, r]),
                        "baseline": float(score["baseline"][r]),
                        "corrected": float(score["corrected"][head, r]),
                        "n_rows": int(score["n_rows"][r]),
                    }
                )
    return rows

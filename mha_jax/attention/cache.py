"""The key/value cache of one layer: which positions it keeps, and attention over it.

Arrays are [b, k, s, h] with s slots: with [b, s, k, h] every step would copy the cache to multiply
with it. A layer without a window has a slot for each position. One with a window has `n_sinks`
slots for the first positions and a ring of `window` for the newest, so that position p overwrites
position p - window where it stands and nothing is ever shifted. Which position stands in a slot
follows from the number of tokens alone. Letters as in `core`, and c new tokens.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mha_jax.attention.core import LOWEST, Mask

Cache = dict[str, jax.Array]


class Layout(NamedTuple):
    """Slots of a layer, and which positions share one."""

    n_slots: int
    n_sinks: int  # slots that keep the first positions
    ring: int  # slots that go round; 0: a slot for each position

    @classmethod
    def of(cls, mask: Mask, capacity: int) -> Layout:
        """The slots for sequences of up to `capacity` tokens under a causal mask.

        Raises:
          ValueError: a mask that is not causal, whose early queries need later keys.
        """
        if mask.kind != "causal":
            raise ValueError(f"only mask='causal' decodes token by token, not {mask.kind!r}")
        if not mask.window or mask.n_sinks + mask.window >= capacity:
            return cls(capacity, 0, 0)
        return cls(mask.n_sinks + mask.window, mask.n_sinks, mask.window)

    def slot(self, position: Any) -> Any:
        """The slot of a position: integer arrays, numpy's or JAX's."""
        if not self.ring:
            return position
        turned = self.n_sinks + (position - self.n_sinks) % self.ring
        return position * (position < self.n_sinks) + turned * (position >= self.n_sinks)

    def positions(self, length_b: jax.Array) -> jax.Array:
        """The position that stands in each slot after `length_b` tokens, int [b, s]; -1: none."""
        slot_1s, length_b1 = jnp.arange(self.n_slots)[None], length_b[:, None]
        newest_bs = jnp.broadcast_to(slot_1s, (len(length_b), self.n_slots))
        if self.ring:
            turns_bs = (length_b1 - 1 - slot_1s) // self.ring
            newest_bs = jnp.where(
                slot_1s < self.n_sinks, newest_bs, slot_1s + self.ring * jnp.maximum(turns_bs, 0)
            )
        return jnp.where(newest_bs < length_b1, newest_bs, -1)


class Step(NamedTuple):
    """Where the next c tokens of b sequences stand."""

    length_b: jax.Array  # tokens of each sequence so far
    n_valid_b: jax.Array  # how many of the c tokens count, the first ones
    position_bc: jax.Array
    capacity: int  # tokens that a sequence may have
    qk_rows: jax.Array | None = None  # as in `stops.Context`


def empty(b: int, n_kv_heads: int, d_head: int, layout: Layout, dtype: Any) -> Cache:
    """A cache without tokens."""
    shape = (b, n_kv_heads, layout.n_slots, d_head)
    return {"k_bksh": jnp.zeros(shape, dtype), "v_bksh": jnp.zeros(shape, dtype)}


def append(
    x_bksh: jax.Array,
    new_bckh: jax.Array,
    length_b: jax.Array,
    n_valid_b: jax.Array,
    layout: Layout,
) -> jax.Array:
    """One array of a cache after the next tokens, in place where it is donated.

    Args:
      x_bksh: before them.
      new_bckh: the tokens'; only the first `n_valid_b` of each sequence count.
      length_b: tokens of each sequence so far.
      n_valid_b: how many are added.
      layout: of the layer.
    """
    b, c = new_bckh.shape[:2]
    position_bc = length_b[:, None] + jnp.arange(c)[None]
    end_b1 = (length_b + n_valid_b)[:, None]
    kept_bc = position_bc < end_b1
    if layout.ring and c > 1:  # of tokens that share a slot only the last one is written
        kept_bc &= (position_bc < layout.n_sinks) | (position_bc >= end_b1 - layout.ring)
    slot_bc = jnp.where(kept_bc, layout.slot(position_bc), layout.n_slots)  # beyond: dropped
    row_b1 = jnp.arange(b)[:, None]
    return x_bksh.at[row_b1, :, slot_bc].set(new_bckh.astype(x_bksh.dtype), mode="drop")


def attend(
    q_bckgh: jax.Array,
    position_bc: jax.Array,
    keys_bksh: jax.Array,
    values_bksh: jax.Array,
    position_bs: jax.Array,
    mask: Mask,
    scale: float,
) -> jax.Array:
    """z_bckgh of queries over keys that stand anywhere, each with its position; -1: no key.

    As `core.reference`, with scores and softmax in float32. One query of one sequence, or of one kv
    head, multiplies and adds: a product with so short an axis would copy the cache.
    """
    b, c, k, g, h = q_bckgh.shape
    f32 = jnp.float32
    seen_bcs = mask.sees(position_bc[:, :, None], position_bs[:, None, :])
    seen_bcs &= position_bs[:, None, :] >= 0
    # An empty row, of a token that does not count, becomes a mean: nothing reads it.
    q_bkrh = (q_bckgh.astype(f32) * scale).transpose(0, 2, 1, 3, 4).reshape(b, k, c * g, h)
    seen_bkrs = jnp.repeat(seen_bcs, g, axis=1)[:, None]
    if c == 1 and 1 in (b, k):
        scores_bkrs = (q_bkrh[:, :, :, None] * keys_bksh[:, :, None].astype(f32)).sum(-1)
    else:
        scores_bkrs = jnp.einsum(
            "bkrh,bksh->bkrs", q_bkrh, keys_bksh.astype(f32), preferred_element_type=f32
        )
    weights_bkrs = jax.nn.softmax(jnp.where(seen_bkrs, scores_bkrs, LOWEST))
    if c == 1 and 1 in (b, k):
        z_bkrh = (weights_bkrs[..., None] * values_bksh[:, :, None].astype(f32)).sum(-2)
    else:
        z_bkrh = jnp.einsum(
            "bkrs,bksh->bkrh", weights_bkrs, values_bksh.astype(f32), preferred_element_type=f32
        )
    return z_bkrh.reshape(b, k, c, g, h).transpose(0, 2, 1, 3, 4)


def extend(
    cache: Cache, q_bckgh: jax.Array, new: Cache, step: Step, mask: Mask, scale: float
) -> tuple[jax.Array, Cache]:
    """Attends from the next tokens to all that they see, and adds them to the cache.

    One token goes in first and reads the cache alone. Of more the first ones may read what the last
    ones overwrite, so they read the cache as it was, and each other.

    Args:
      cache: `k_bksh` and `v_bksh` before the tokens.
      q_bckgh: their queries.
      new: their `k_bckh` and `v_bckh`.
      step: where they stand.
      mask, scale: of the layer.

    Returns:
      z_bckgh, float32, and the cache with the tokens.
    """
    c, layout = q_bckgh.shape[1], Layout.of(mask, step.capacity)
    counts = step.length_b, step.n_valid_b
    # As they will stand in the cache, so that a chunk reads what single steps do.
    added = [new[f"{name}_bckh"].astype(cache[f"{name}_bksh"].dtype) for name in "kv"]
    before = [cache["k_bksh"], cache["v_bksh"]]
    after = [append(x, y, *counts, layout) for x, y in zip(before, added, strict=True)]
    if c == 1:
        read, position_bs = after, layout.positions(step.length_b + step.n_valid_b)
    else:
        pairs = zip(before, added, strict=True)
        read = [jnp.concatenate([x, y.transpose(0, 2, 1, 3)], axis=2) for x, y in pairs]
        valid_bc = jnp.arange(c)[None] < step.n_valid_b[:, None]
        own_bc = jnp.where(valid_bc, step.position_bc, -1)
        position_bs = jnp.concatenate([layout.positions(step.length_b), own_bc], axis=1)
    keys, values = read
    z_bckgh = attend(q_bckgh, step.position_bc, keys, values, position_bs, mask, scale)
    return z_bckgh, dict(zip(("k_bksh", "v_bksh"), after, strict=True))


def nbytes(cache: Any) -> int:
    """Bytes of all arrays of a cache, or of those of many layers; of shapes as well as arrays."""
    return sum(int(np.prod(x.shape)) * x.dtype.itemsize for x in jax.tree.leaves(cache))

"""The key/value cache of one layer: which positions it keeps, and attention over it.

Arrays are [b, k, s, h] with s slots: with [b, s, k, h] every step would copy the cache to multiply
with it. A layer without a window has a slot for each position. One with a window has `n_sinks`
slots for the first positions and a ring of `window` for the newest, so that position p overwrites
position p - window where it stands and nothing is ever shifted. Which position stands in a slot
follows from the number of tokens alone. Letters as in `core`, and c new tokens, r rows of queries
of one kv head.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mha_jax.attention.core import LOWEST, Mask, beside_sink

Cache = dict[str, jax.Array]  # of one layer: [b, k, s, h] by name, as `storage` says


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


class Part(NamedTuple):
    """Keys and values that stand together, and which queries read them."""

    keys: tuple[jax.Array, ...]  # [b, k, s, h], or k = 1: for all kv heads; their products add up
    values_bksh: jax.Array
    seen_bcs: jax.Array


class Step(NamedTuple):
    """Where the next c tokens of b sequences stand."""

    length_b: jax.Array  # tokens of each sequence so far
    n_valid_b: jax.Array  # how many of the c tokens count, the first ones
    position_bc: jax.Array
    capacity: int  # tokens that a sequence may have
    qk_rows: jax.Array | None = None  # as in `stops.Context`
    lent: Any = None  # what the layer whose keys and values this one reads gave out

    def own(self) -> jax.Array:
        """Positions of the tokens that count, int [b, c]; -1: it does not."""
        c = self.position_bc.shape[1]
        return jnp.where(jnp.arange(c)[None] < self.n_valid_b[:, None], self.position_bc, -1)


# The keys, whose products add up, and the values of arrays [b, k, s, h] at positions [b, s].
Reader = Callable[[Cache, jax.Array], tuple[tuple[jax.Array, ...], jax.Array]]


def put(
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
    return write(x_bksh, slot_bc, new_bckh)


def storage(dtype: Any) -> Any:
    """The dtype of arrays that hold numbers of a dtype: of bfloat16 its 16 bits. A CPU writes no
    bfloat16 in place: it would make float32 of the whole array and back.
    """
    return jnp.uint16 if dtype == jnp.bfloat16 else dtype


def stored(x: jax.Array, dtype: Any) -> jax.Array:
    """Numbers as an array of a dtype holds them."""
    if dtype != jnp.uint16:
        return x.astype(dtype)
    return jax.lax.bitcast_convert_type(x.astype(jnp.bfloat16), jnp.uint16)


def numbers(x: jax.Array) -> jax.Array:
    """What an array holds."""
    return jax.lax.bitcast_convert_type(x, jnp.bfloat16) if x.dtype == jnp.uint16 else x


def write(x: jax.Array, slot_bc: jax.Array, new: jax.Array) -> jax.Array:
    """x [b, k, s, ...] with new [b, c, k, ...], as numbers, in these slots; those from s on are
    dropped.

    XLA makes another operation of a write of one slot, puts it into both the loop that reads the
    array and the one that hands it on, and copies it for that; a second slot, dropped, stops it.
    """
    (b, c), new = slot_bc.shape, stored(new, x.dtype)
    if b * c == 1:
        slot_bc = jnp.concatenate([slot_bc, jnp.full_like(slot_bc, x.shape[2])], axis=1)
        new = jnp.concatenate([new, new], axis=1)
    return x.at[jnp.arange(b)[:, None], :, slot_bc].set(new, mode="drop")


def append(
    kept: Cache, new: Cache, step: Step, mask: Mask, read: Reader
) -> tuple[Cache, tuple[Part, ...]]:
    """Adds the next tokens, and gives out what their queries read.

    One token goes in first and reads the cache alone. Of more the first ones may read what the last
    ones overwrite, so they read the cache as it was, and each other.

    Args:
      kept: before the tokens.
      new: of the tokens, [b, c, k, h], by the same names.
      step: where they stand.
      mask: of the layer.
      read: makes keys and values of what is stored.
    """
    layout, c = Layout.of(mask, step.capacity), step.position_bc.shape[1]

    after = {
        name: put(x, new[name], step.length_b, step.n_valid_b, layout) for name, x in kept.items()
    }
    if c == 1:
        at_bs = layout.positions(step.length_b + step.n_valid_b)
        return after, (part(after, at_bs, step, mask, read),)
    # As they will stand in the cache, so that a chunk reads what single steps do.
    chunk = {name: stored(new[name], x.dtype).transpose(0, 2, 1, 3) for name, x in kept.items()}
    before = part(kept, layout.positions(step.length_b), step, mask, read)
    return after, (before, part(chunk, step.own(), step, mask, read))


def part(arrays: Cache, position_bs: jax.Array, step: Step, mask: Mask, read: Reader) -> Part:
    """What the next tokens' queries read of what is stored at these positions; -1: nothing is."""
    keys, values_bksh = read({n: numbers(x) for n, x in arrays.items()}, position_bs)
    seen_bcs = mask.sees(step.position_bc[:, :, None], position_bs[:, None, :])
    return Part(keys, values_bksh, seen_bcs & (position_bs[:, None, :] >= 0))


def attend(
    q: Sequence[jax.Array], parts: Sequence[Part], scale: float, sink_kg: jax.Array | None = None
) -> jax.Array:
    """z_bckgh of queries over keys that stand anywhere, float32.

    As `core.reference`, with scores and softmax in float32. Where both queries and keys are
    bfloat16, so are the factors of the products: no key or value is made wider.

    Args:
      q: for each of the parts' keys the queries, [b, c, k, g, h].
      parts: what they read.
      scale: of the scores.
      sink_kg: a logit of each head that takes part in its softmax and has no value.
    """
    b, c, k, g = q[0].shape[:4]
    rows = [_rows(x, scale) for x in q]
    scores_bkrs = jnp.concatenate([_scores(rows, part) for part in parts], axis=-1)
    # The rows r are (c, g).
    sink_1kr1 = None if sink_kg is None else jnp.tile(sink_kg, (1, c))[None, :, :, None]
    weights_bkrs = beside_sink(scores_bkrs, sink_1kr1)
    total, start = jnp.zeros(()), 0
    for part in parts:
        n_slots = part.values_bksh.shape[2]
        here_bkrs = weights_bkrs[..., start : start + n_slots]
        total = total + _times(here_bkrs.astype(q[0].dtype), part.values_bksh, "bkrs,bksh->bkrh")
        start += n_slots
    return total.reshape(b, k, c, g, -1).transpose(0, 2, 1, 3, 4)


def _rows(q_bckgh: jax.Array, scale: float) -> jax.Array:
    b, c, k, g, h = q_bckgh.shape
    scaled = (q_bckgh.astype(jnp.float32) * scale).astype(q_bckgh.dtype)
    return scaled.transpose(0, 2, 1, 3, 4).reshape(b, k, c * g, h)


def _scores(rows: Sequence[jax.Array], part: Part) -> jax.Array:
    b, k, r, _ = rows[0].shape
    total = jnp.zeros(())
    for q_bkrh, keys_bksh in zip(rows, part.keys, strict=True):
        shared = keys_bksh.shape[1] != k
        q_bkrh = q_bkrh.reshape(b, 1, k * r, -1) if shared else q_bkrh
        scores_bkrs = _times(q_bkrh, keys_bksh, "bkrh,bksh->bkrs")
        total = total + scores_bkrs.reshape(b, k, r, -1)
    # An empty row, of a token that does not count, becomes a mean: nothing reads it.
    seen_bkrs = jnp.repeat(part.seen_bcs, r // part.seen_bcs.shape[1], axis=1)[:, None]
    return jnp.where(seen_bkrs, total, LOWEST)


def _times(rows: jax.Array, kept: jax.Array, letters: str) -> jax.Array:
    """A product in float32, or with both factors in bfloat16 and sums in float32."""
    dtype = jnp.bfloat16 if rows.dtype == kept.dtype == jnp.bfloat16 else jnp.float32
    factors = (rows.astype(dtype), kept.astype(dtype))
    return jnp.einsum(letters, *factors, preferred_element_type=jnp.float32)


def nbytes(cache: Any) -> int:
    """Bytes of all arrays of a cache, or of those of many layers; of shapes as well as arrays."""
    return sum(int(np.prod(x.shape)) * x.dtype.itemsize for x in jax.tree.leaves(cache))

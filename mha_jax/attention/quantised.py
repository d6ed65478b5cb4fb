"""Keys and values in 8 or 4 bits, after KIVI (Liu et al. 2024, arXiv:2402.02750).

Tokens are quantised `group` at a time, once all of them are older than the newest `tail` tokens,
which stay as they are. Keys are quantised per channel over the tokens of their group, values per
token over the channels of a head; each to the smallest value of its set plus a whole number, 0 to
2^bits - 1, of equal steps. Which tokens are quantised follows from the number of tokens alone: of n
tokens the first group * floor(max(n - tail, 0) / group).

Over a whole sequence a query sees what it would have seen in the cache, so a model is trained and
judged with its cache; the rounding passes gradients on unchanged. Letters as in `cache`, and j
groups of tokens.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from mha_jax.attention import core
from mha_jax.attention.cache import (
    Cache,
    Layout,
    Part,
    Step,
    numbers,
    put,
    storage,
    write,
)
from mha_jax.config import KV_BITS, ModelSpec


@dataclasses.dataclass(frozen=True)
class Quantised:
    """How keys and values are stored."""

    bits: int  # 8 | 4
    group: int  # tokens that are quantised together
    tail: int  # the newest tokens, which stay as they are
    dtype: Any = jnp.float32  # of what stays, and of steps and smallest values

    @classmethod
    def of(cls, model: ModelSpec) -> Quantised | None:
        """As a model describes it; None: nothing is quantised."""
        if model.kv_quant == "none":
            return None
        dtype = jnp.dtype(model.cache_dtype)
        return cls(KV_BITS[model.kv_quant], model.kv_group, model.kv_tail, dtype)

    def n_quantised(self, n_tokens: Any) -> Any:
        """How many of the first tokens are: integer arrays, numpy's or JAX's."""
        older = n_tokens - self.tail
        return older * (older > 0) // self.group * self.group

    def codes(self, x: jax.Array, axis: int) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Whole numbers, uint8, steps and smallest values of x over an axis, which they keep."""
        low, high = x.min(axis, keepdims=True), x.max(axis, keepdims=True)
        levels = 2**self.bits - 1
        low, step = low.astype(self.dtype), ((high - low) / levels).astype(self.dtype)
        low32, step32 = low.astype(jnp.float32), step.astype(jnp.float32)
        number = jnp.round((x - low32) / jnp.where(step32 > 0, step32, 1.0))
        return jnp.clip(number, 0, levels).astype(jnp.uint8), step, low

    def seen_as(self, x: jax.Array, axis: int) -> jax.Array:
        """x as it is after it was quantised over an axis; its gradient is that of x."""
        x32 = x.astype(jnp.float32)
        number, step, low = self.codes(x32, axis)
        made = number * step.astype(jnp.float32) + low.astype(jnp.float32)
        return (x32 + jax.lax.stop_gradient(made - x32)).astype(x.dtype)

    def reference(
        self,
        q_btkgh: jax.Array,
        k_bskh: jax.Array,
        v_bskh: jax.Array,
        mask: core.Mask,
        scale: float,
        replaced: Callable[[str, jax.Array], jax.Array],
        sink_kg: jax.Array | None,
    ) -> core.Attended:
        """`core.reference` in which each query reads old keys and values as quantised."""
        b, t, k, g, h = q_btkgh.shape
        whole, f32 = t // self.group * self.group, jnp.float32
        grouped_bjskh = k_bskh[:, :whole].reshape(b, -1, self.group, k, h)
        old_k = jnp.concatenate(
            [self.seen_as(grouped_bjskh, 2).reshape(b, whole, k, h), k_bskh[:, whole:]], axis=1
        )
        old_v = self.seen_as(v_bskh, 3)
        old_ts = np.arange(t)[None] < self.n_quantised(np.arange(1, t + 1))[:, None]

        def scores(keys_bskh: jax.Array) -> jax.Array:
            return jnp.einsum("btkgh,bskh->bkgts", q_btkgh, keys_bskh, preferred_element_type=f32)

        scores_bkgts = scale * jnp.where(old_ts, scores(old_k), scores(k_bskh))
        scores_bkgts = replaced("scores_bkgts", scores_bkgts)
        weights_bkgts = core.softmax(scores_bkgts, mask.table(t), sink_kg)
        weights_bkgts = replaced("weights_bkgts", weights_bkgts)

        def weighted(which_ts: np.ndarray, values_bskh: jax.Array) -> jax.Array:
            here = jnp.where(which_ts, weights_bkgts, 0).astype(values_bskh.dtype)
            return jnp.einsum("bkgts,bskh->btkgh", here, values_bskh, preferred_element_type=f32)

        z_btkgh = weighted(old_ts, old_v) + weighted(~old_ts, v_bskh)
        return core.Attended(z_btkgh.astype(v_bskh.dtype), scores_bkgts, weights_bkgts)

    def empty(self, b: int, k: int, h: int, capacity: int) -> Cache:
        """A cache without tokens; numbers of 4 bits are two in a byte, of channels c and c + h/2.

        Arrays of numbers are [b, k, j, group, h * bits / 8]; steps and smallest values [b, k, j, h]
        of keys, [b, k, j, group] of values; what stays is a ring of tail + group slots.
        """
        j = self.n_quantised(capacity) // self.group
        width, ring = h * self.bits // 8, min(capacity, self.tail + self.group)
        made: Cache = {}
        dtype = storage(self.dtype)
        for name, n_sets in {"k": h, "v": self.group}.items():
            made[f"{name}_codes"] = jnp.zeros((b, k, j, self.group, width), jnp.uint8)
            made[f"{name}_step"] = jnp.zeros((b, k, j, n_sets), dtype)
            made[f"{name}_low"] = jnp.zeros((b, k, j, n_sets), dtype)
            made[f"{name}_tail"] = jnp.zeros((b, k, ring, h), dtype)
        return made

    def append(self, kept: Cache, new: Cache, step: Step) -> tuple[Cache, tuple[Part, ...]]:
        """As `cache.append`: the tokens join what stays, and groups that are old enough leave it.

        Queries read the numbers, what stayed before, and each other: the first of them see tokens
        as they are that the last of them see quantised.
        """
        b, c = step.position_bc.shape
        ring = kept["k_tail"].shape[2]
        layout = Layout(ring, 0, ring if ring < step.capacity else 0)
        end_b = step.length_b + step.n_valid_b
        after = kept | {
            name: put(kept[name], new[name[0]], step.length_b, step.n_valid_b, layout)
            for name in ("k_tail", "v_tail")
        }
        parts: list[Part] = []
        n_old_bc1 = self.n_quantised(step.position_bc + 1)[:, :, None]
        if kept["k_step"].shape[2]:  # there is room for a group
            # One token leaves a group that is old enough where it stands; many may overwrite it. To
            # read the tail as it was would copy it.
            after |= self._moved(after if c == 1 else kept, new, step, layout)
            slot_11s = jnp.arange(after["k_codes"].shape[2] * self.group)[None, None]
            keys_bksh, values_bksh = (self._read(after, name) for name in "kv")
            parts.append(Part((keys_bksh,), values_bksh, slot_11s < n_old_bc1))

        def as_it_is(k_bksh: jax.Array, v_bksh: jax.Array, position_bs: jax.Array) -> Part:
            at_b1s = position_bs[:, None]
            seen_bcs = (at_b1s >= n_old_bc1) & (at_b1s <= step.position_bc[:, :, None])
            keys_bksh, values_bksh = numbers(k_bksh), numbers(v_bksh)
            return Part((keys_bksh,), values_bksh, seen_bcs & (at_b1s >= 0))

        if c == 1:
            tail = as_it_is(after["k_tail"], after["v_tail"], layout.positions(end_b))
            return after, (*parts, tail)
        tail = as_it_is(kept["k_tail"], kept["v_tail"], layout.positions(step.length_b))
        k_bksh, v_bksh = (new[name].astype(self.dtype).swapaxes(1, 2) for name in "kv")
        return after, (*parts, tail, as_it_is(k_bksh, v_bksh, step.own()))

    def _moved(self, kept: Cache, new: Cache, step: Step, layout: Layout) -> Cache:
        """Numbers, steps and smallest values with the groups that become old enough with the
        tokens: none, one, or, with many tokens, more.
        """
        c = step.position_bc.shape[1]
        end_b, moved = step.length_b + step.n_valid_b, {}
        first_b = self.n_quantised(step.length_b) // self.group
        j_bj = first_b[:, None] + jnp.arange(c // self.group + 1)[None]
        j_bj = jnp.where(j_bj < self.n_quantised(end_b)[:, None] // self.group, j_bj, -1)
        position_bjs = j_bj[:, :, None] * self.group + jnp.arange(self.group)[None, None]
        for name in "kv":
            x_bkjsh = self._full(kept[f"{name}_tail"], new[name], position_bjs, step, layout)
            over = 3 if name == "k" else 4
            number, size, low = self.codes(x_bkjsh, over)
            at_bj = jnp.where(j_bj < 0, kept["k_step"].shape[2], j_bj)  # beyond: dropped
            told = {"codes": self._packed(number), "step": size.squeeze(over)}
            for field, x in {**told, "low": low.squeeze(over)}.items():
                old = kept[f"{name}_{field}"]
                x = x.swapaxes(1, 2)
                moved[f"{name}_{field}"] = write(old, at_bj, x)
        return moved

    def _full(
        self,
        tail_bksh: jax.Array,
        new_bckh: jax.Array,
        position_bjs: jax.Array,
        step: Step,
        layout: Layout,
    ) -> jax.Array:
        """Tokens at these positions, [b, k, j, s, h], of what stayed before and of the new ones."""
        b, k, _, h = tail_bksh.shape
        flat_bs = position_bjs.reshape(b, -1)
        row_b1, c = jnp.arange(b)[:, None], new_bckh.shape[1]
        old_bskh = numbers(tail_bksh[row_b1, :, layout.slot(flat_bs)])
        at_bs = jnp.clip(flat_bs - step.length_b[:, None], 0, c - 1)
        new_bskh = new_bckh.astype(self.dtype)[row_b1, at_bs]
        is_new_bs = flat_bs >= step.length_b[:, None]
        x_bskh = jnp.where(is_new_bs[:, :, None, None], new_bskh, old_bskh).astype(jnp.float32)
        return x_bskh.reshape(b, -1, self.group, k, h).transpose(0, 3, 1, 2, 4)

    def _packed(self, number: jax.Array) -> jax.Array:
        if self.bits == 8:
            return number
        low, high = jnp.split(number, 2, axis=-1)
        return low | (high << 4)

    def _read(self, kept: Cache, name: str) -> jax.Array:
        """Keys or values [b, k, s, h] of their numbers."""
        x = kept[f"{name}_codes"]
        if self.bits == 4:  # without a concatenate, which would be written out
            shift = jnp.array([0, 4], jnp.uint8).reshape(1, 1, 1, 1, 2, 1)
            x = ((x[..., None, :] >> shift) & 15).reshape(*x.shape[:-1], -1)
        step, low = (
            jnp.expand_dims(
                numbers(kept[f"{name}_{field}"]).astype(jnp.float32), 3 if name == "k" else 4
            )
            for field in ("step", "low")
        )
        b, k, _, _, h = x.shape
        return (x.astype(jnp.float32) * step + low).reshape(b, k, -1, h)

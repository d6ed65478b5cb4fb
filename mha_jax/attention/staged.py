"""A cache in a loop that adds single tokens: as it was before them, and they beside it, a slot for
each turn.

It is for arrays of bfloat16. A CPU does not write them in place, so they are kept as bits
(`cache.storage`); and it does not multiply with bits, so each step would turn all of them into
numbers, a fifth of its time with 64 sequences. Here that is done once for all turns. Letters as in
`cache`.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from mha_jax.attention.cache import Cache, Layout, Part, Reader, Step, numbers, part, put
from mha_jax.attention.core import Mask


class Staged(NamedTuple):
    """The cache of a layer, in two."""

    before: Cache  # not changed
    since: Cache  # [b, k, turns, h]
    length_b: jax.Array  # tokens of each sequence in `before`
    position_bs: jax.Array  # of what is in `since`; -1: nothing
    turn: jax.Array  # int32: turns so far

    @classmethod
    def of(cls, kept: Cache, length_b: jax.Array, turns: int) -> Staged:
        """No turns yet."""
        since = {
            n: jnp.zeros((*x.shape[:2], turns, x.shape[3]), jnp.bfloat16) for n, x in kept.items()
        }
        before = {name: numbers(x) for name, x in kept.items()}
        position_bs = jnp.full((len(length_b), turns), -1)
        return cls(before, since, length_b, position_bs, jnp.int32(0))

    def added(self, new: Cache, step: Step) -> Staged:
        """After one turn, whose token is [b, 1, k, h] by the names of the arrays."""

        def put_in(x: jax.Array, new: jax.Array, axis: int) -> jax.Array:
            return jax.lax.dynamic_update_slice_in_dim(x, new.astype(x.dtype), self.turn, axis)

        since = {name: put_in(x, new[name].swapaxes(1, 2), 2) for name, x in self.since.items()}
        position_bs = put_in(self.position_bs, step.own(), 1)
        return self._replace(since=since, position_bs=position_bs, turn=self.turn + 1)

    def merged(self, kept: Cache, layout: Layout) -> Cache:
        """`kept`, of which it was made, with the tokens in their slots."""
        n_valid_b = (self.position_bs >= 0).sum(1)  # a sequence that is over adds no more
        return {
            name: put(x, self.since[name].swapaxes(1, 2), self.length_b, n_valid_b, layout)
            for name, x in kept.items()
        }


def append(
    kept: Staged, new: Cache, step: Step, mask: Mask, read: Reader
) -> tuple[Staged, tuple[Part, ...]]:
    """As `cache.append`, of one token."""
    after = kept.added(new, step)
    old_bs = Layout.of(mask, step.capacity).positions(kept.length_b)
    before = part(kept.before, old_bs, step, mask, read)
    return after, (before, part(after.since, after.position_bs, step, mask, read))

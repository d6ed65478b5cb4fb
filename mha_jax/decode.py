"""Token by token: prompts of any lengths into the cache, and new tokens out of it.

The loop over new tokens is one program on the device, in which the cache is updated in place. What
does not fit is refused before anything is computed: a write past the capacity would be silent.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from mha_jax import decode_cost, given, token_loop
from mha_jax.attention.cache import nbytes
from mha_jax.decode_cost import LanguageModel
from mha_jax.sampling import Sampling
from mha_jax.token_loop import State
from mha_jax.train import Program

_SMALLEST = 64  # a capacity is a power of two, so that a growing one compiles a few times only


@dataclasses.dataclass(frozen=True)
class Decoder:
    """A model and the parameters it decodes with.

    Raises:
      ValueError: a task or model that cannot go token by token; the text says why.
    """

    program: Program
    params: Any

    def __post_init__(self) -> None:
        spec = self.program.spec
        whole = len(spec.outputs) == 1 and spec.output_size <= spec.input_sizes[0]
        if spec.inputs != "tokens" or not spec.autoregressive or not whole:
            raise ValueError(
                f"the task {self.program.static.task.name!r} does not predict its next token, so "
                f"that there is nothing to decode"
            )
        token_loop.cache_shapes(self.program, 1, 1)

    def capacity(self, n: int) -> int:
        """Tokens a sequence has room for where `n` are needed: the next power of two, but no more
        than the model has positions.

        Raises:
          ValueError: the model has fewer positions than that.
        """
        spec, model = self.program.spec, self.program.static.model
        room = max(_SMALLEST, _rounded_up(n))
        if model.positions != "learned":
            return room
        if n > spec.length:
            raise ValueError(
                f"{n} tokens, but the model has learned {spec.length} positions: shorten the "
                f"prompt, or ask for fewer"
            )
        return min(room, spec.length)

    def cache_bytes(self, b: int, capacity: int) -> int:
        """Bytes of the cache arrays of b sequences."""
        return nbytes(token_loop.cache_shapes(self.program, b, capacity))

    def bytes_read_per_step(self, b: int, capacity: int) -> int:
        """Bytes that a step for b sequences must read, by `decode_cost.bytes_read`: every parameter
        but the tables, of which it reads a row, and every slot of the cache, used or not.
        """
        one = LanguageModel(self.program.static.model, self.program.spec)
        return decode_cost.bytes_read(one, b, capacity, "float32")

    def prefill(self, prompts: Sequence[Any], capacity: int) -> State:
        """The state after the prompts, which may differ in length.

        Args:
          prompts: for each sequence int ids [t], t at least 1.
          capacity: as `capacity` gives it.

        Raises:
          ValueError: no prompt, one that is empty, longer than the capacity, or not of ids that
            the task has.
        """
        if not len(prompts):
            raise ValueError("there is no prompt")
        if min(_ids(prompt).size for prompt in prompts) < 1:
            raise ValueError("a prompt must be ids [t] with t at least 1, not empty")
        b, n_outputs = len(prompts), self.program.spec.output_size
        empty = State(
            token_loop.init_cache(self.program, b, capacity),
            jnp.zeros(b, jnp.int32),
            jnp.zeros((b, n_outputs)),
            jnp.zeros(b, bool),
            capacity,
        )
        return self.read(empty, prompts)

    def read(self, state: State, more: Sequence[Any]) -> State:
        """The state after more tokens that are given, as the next turn of a dialogue is; the state
        is used up.

        Args:
          state: after a prompt, or after `generate`.
          more: for each sequence int ids [t]; t may differ, and be 0.

        Raises:
          ValueError: another number of sequences, tokens that do not fit into the capacity, or are
            no ids that the task has.
        """
        _check_fresh(state)
        rows = [_ids(row) for row in more]
        if len(rows) != len(state.length_b):
            raise ValueError(
                f"there are {len(state.length_b)} sequences, and tokens for {len(rows)}"
            )
        n_new = np.array([row.size for row in rows], np.int32)
        longest = int((np.asarray(state.length_b) + n_new).max())
        if longest > state.capacity:
            raise ValueError(f"a prompt of {longest} tokens does not fit into {state.capacity}")
        if not n_new.any():
            return state
        # Lengths are rounded up, so that a few programs serve all of them.
        width = min(_rounded_up(int(n_new.max())), state.capacity)
        padded = np.zeros((len(rows), width), np.int64)
        for i, row in enumerate(rows):
            padded[i, : row.size] = row
        inputs = given.checked(self.program.static, padded)
        return token_loop.read(self.program, self.params, state, inputs, jnp.asarray(n_new))

    def grown(self, state: State, capacity: int) -> State:
        """The same state with room for more tokens.

        Raises:
          ValueError: less room than it has.
        """
        if capacity < state.capacity:
            raise ValueError(f"capacity={capacity} must be at least {state.capacity}, as it is")
        # Slots are added at the end: where a ring has begun to turn, no layout has more of them.
        shapes = token_loop.cache_shapes(self.program, len(state.length_b), capacity)

        def longer(x: jax.Array, like: jax.ShapeDtypeStruct) -> jax.Array:
            return jnp.pad(x, [(0, b - a) for a, b in zip(x.shape, like.shape, strict=True)])

        kept = jax.tree.map(longer, state.kept, shapes)
        return dataclasses.replace(state, kept=kept, capacity=capacity)

    def generate(
        self,
        state: State,
        n_new: int,
        sampling: Sampling = Sampling(),  # noqa: B008 (frozen)
        *,
        seed: int = 0,
        stop: int | None = None,
    ) -> tuple[np.ndarray, State]:
        """New tokens, int32 [b, n]; the state is used up, go on with the one returned.

        Args:
          state: after a prompt, or after this. Its cache is updated in place.
          n_new: at most so many for each sequence.
          sampling: how a token is drawn.
          seed: of the draws; the token at a position does not depend on how many a call makes.
          stop: a token at which a sequence ends; what follows it is -1, and the loop ends early
            where all have.

        Raises:
          ValueError: no room for that many, a number that is none, a stop that is no token, or a
            state that is used up.
        """
        size = self.program.spec.output_size
        if operator.index(n_new) < 1:
            raise ValueError(f"n_new={n_new} must be 1 or more")
        if stop is not None and not 0 <= operator.index(stop) < size:
            raise ValueError(f"stop={stop} is no token; they are 0 to {size - 1}")
        _check_fresh(state)
        longest = int(np.max(state.length_b))
        if longest + n_new > state.capacity:
            used = f"{longest} of {state.capacity} tokens are used"
            raise ValueError(f"n_new={n_new} does not fit: {used}")
        end = np.int32(-1 if stop is None else stop)
        tokens, state = token_loop.generate(
            self.program, n_new, sampling, self.params, state, np.uint32(seed), end
        )
        return np.asarray(tokens), state


def _ids(tokens: Any) -> np.ndarray:
    """The tokens of a sequence, each checked for itself: together they would take a common type."""
    try:
        row = np.asarray(tokens)
    except ValueError:  # numpy's words for lists of unequal lengths
        raise ValueError("the tokens of a sequence must be ids [t], and are nested") from None
    if row.ndim != 1:
        raise ValueError(f"the tokens of a sequence must be ids [t], not {row.shape}")
    if row.size and row.dtype.kind not in "iu":
        raise ValueError(f"the tokens of a sequence must be integer ids, not {row.dtype}")
    return row


def _check_fresh(state: State) -> None:
    if any(x.is_deleted() for x in jax.tree.leaves(state)):
        raise ValueError("this state is used up; go on with the one that was returned")


def _rounded_up(n: int) -> int:
    """The next power of two."""
    return 1 << (n - 1).bit_length()

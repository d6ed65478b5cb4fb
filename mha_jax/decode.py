"""Token by token: prompts of any lengths into the cache, and new tokens out of it.

The loop over new tokens is one program on the device, in which the cache is updated in place. What
does not fit is refused before anything is computed: a write past the capacity would be silent.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mha_jax import given
from mha_jax.attention.cache import nbytes
from mha_jax.sampling import Sampling
from mha_jax.train import Program

_SMALLEST = 64  # a capacity is a power of two, so that a growing one compiles a few times only


class State(NamedTuple):
    """What decoding carries from token to token."""

    kept: Any  # of each layer: its cache
    length_b: jax.Array  # int32: tokens of each sequence so far
    logits_bv: jax.Array  # float32: of the token that comes next
    over_b: jax.Array  # bool: the sequence has drawn the stop token


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
        _cache_shapes(self.program, 1, 1)

    def capacity(self, n: int) -> int:
        """Tokens a sequence has room for where `n` are needed: the next power of two, but no more
        than the model has positions.

        Raises:
          ValueError: the model has fewer positions than that.
        """
        spec, model = self.program.spec, self.program.static.model
        room = max(_SMALLEST, 1 << (n - 1).bit_length())
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
        return nbytes(_cache_shapes(self.program, b, capacity))

    def bytes_read_per_step(self, b: int, capacity: int) -> int:
        """Bytes that a step for b sequences must read: every parameter but the tables, of which it
        reads a row, and every slot of the cache, used or not.
        """
        params = dict(self.params)
        encoder = {k: v for k, v in params.pop("encoder").items() if k != "embed"}
        params.pop("positions", None)
        return nbytes((params, encoder)) + self.cache_bytes(b, capacity)

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
        rows = [np.asarray(prompt) for prompt in prompts]
        for row in rows:
            if row.ndim != 1 or not row.size:
                raise ValueError(f"a prompt must be ids [t] with t at least 1, not {row.shape}")
        lengths = np.array([row.size for row in rows], np.int32)
        if lengths.max() > capacity:
            raise ValueError(f"a prompt of {lengths.max()} tokens does not fit into {capacity}")
        kind = np.result_type(*rows)
        padded = np.zeros((len(rows), lengths.max()), kind)
        for i, row in enumerate(rows):
            padded[i, : row.size] = row
        inputs = given.checked(self.program.static, padded)
        return _prefill(self.program, capacity, self.params, inputs, jnp.asarray(lengths))

    def generate(
        self,
        state: State,
        n_new: int,
        capacity: int,
        sampling: Sampling = Sampling(),  # noqa: B008 (frozen)
        *,
        seed: int = 0,
        stop: int | None = None,
    ) -> tuple[np.ndarray, State]:
        """New tokens, int32 [b, n]; the state is used up, go on with the one returned.

        Args:
          state: after a prompt, or after this. Its cache is updated in place.
          n_new: at most so many for each sequence.
          capacity: that of the state.
          sampling: how a token is drawn.
          seed: of the draws; the token at a position does not depend on how many a call makes.
          stop: a token at which a sequence ends; what follows it is -1, and the loop ends early
            where all have.

        Raises:
          ValueError: no room for that many.
        """
        longest = int(np.max(state.length_b))
        if n_new < 1 or longest + n_new > capacity:
            raise ValueError(
                f"n_new={n_new} must be 1 or more, and fit: {longest} of {capacity} tokens are used"
            )
        tokens, state = _generate(
            self.program, n_new, capacity, sampling, self.params, state, np.uint32(seed),
            np.int32(-1 if stop is None else stop),
        )  # fmt: skip
        return np.asarray(tokens), state


def _cache_shapes(program: Program, b: int, capacity: int) -> Any:
    params = jax.eval_shape(program.model.init, jax.random.key(0))
    return jax.eval_shape(lambda p: program.model.init_cache(p, b, capacity), params)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _prefill(
    program: Program, capacity: int, params: Any, inputs_bt: jax.Array, length_b: jax.Array
) -> State:
    b = len(inputs_bt)
    kept = program.model.init_cache(params, b, capacity)
    nothing_b = jnp.zeros(b, jnp.int32)
    out_btov, kept = program.model.extend(params, inputs_bt, kept, nothing_b, length_b, capacity)
    logits_bv = out_btov[jnp.arange(b), length_b - 1, 0]
    return State(kept, length_b, logits_bv, jnp.zeros(b, bool))


@functools.partial(jax.jit, static_argnums=(0, 1, 2, 3), donate_argnums=(5,))
def _generate(
    program: Program,
    n_new: int,
    capacity: int,
    sampling: Sampling,
    params: Any,
    state: State,
    seed: jax.Array,
    stop: jax.Array,
) -> tuple[jax.Array, State]:
    b = len(state.length_b)
    base = jax.random.key(seed)

    def going_on(carry: tuple[Any, ...]) -> jax.Array:
        i, _, state = carry
        return (i < n_new) & ~state.over_b.all()

    def step(carry: tuple[Any, ...]) -> tuple[Any, ...]:
        i, tokens_bn, (kept, length_b, logits_bv, over_b) = carry
        # One key for each sequence and position: neither the batch nor the call changes a draw.
        keys = jax.vmap(lambda row, at: jax.random.fold_in(jax.random.fold_in(base, row), at))(
            jnp.arange(b), length_b
        )
        drawn_b = jax.vmap(lambda logits_v, key: sampling.draw(logits_v[None], key)[0])(
            logits_bv, keys
        )
        token_b = jnp.where(over_b, -1, drawn_b)
        grows_b = (~over_b).astype(jnp.int32)
        out_b1ov, kept = program.model.extend(
            params, jnp.maximum(token_b, 0)[:, None], kept, length_b, grows_b, capacity
        )
        state = State(kept, length_b + grows_b, out_b1ov[:, 0, 0], over_b | (token_b == stop))
        return i + 1, tokens_bn.at[:, i].set(token_b), state

    start = jnp.int32(0), jnp.full((b, n_new), -1, jnp.int32), state
    _, tokens_bn, state = jax.lax.while_loop(going_on, step, start)
    return tokens_bn, state

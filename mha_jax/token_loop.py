"""The programs of decoding: given tokens into the cache, and new ones out of it, in a loop on the
device. The cache is updated in place.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp

from mha_jax import mixers
from mha_jax.attention.cache import Layout
from mha_jax.attention.core import Mask
from mha_jax.attention.staged import Staged
from mha_jax.sampling import Sampling
from mha_jax.train import Program

_BLOCK = 32  # turns for which a cache is staged: more would be read beside it, fewer pay for less


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=("kept", "length_b", "logits_bv", "over_b"),
    meta_fields=("capacity",),
)
@dataclasses.dataclass(frozen=True)
class State:
    """What decoding carries from token to token."""

    kept: Any  # of each layer: its cache
    length_b: jax.Array  # int32: tokens of each sequence so far
    logits_bv: jax.Array  # float32: of the token that comes next
    over_b: jax.Array  # bool: the sequence has drawn the stop token
    capacity: int  # tokens that a sequence has room for


def cache_shapes(program: Program, b: int, capacity: int) -> Any:
    """Shapes and dtypes of the cache of b sequences.

    Raises:
      ValueError: the model cannot go token by token; the text says why.
    """
    params = jax.eval_shape(program.model.init, jax.random.key(0))
    return jax.eval_shape(lambda p: program.model.init_cache(p, b, capacity), params)


def init_cache(program: Program, b: int, capacity: int) -> Any:
    """The cache of b sequences, without tokens."""
    shapes = cache_shapes(program, b, capacity)
    return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)


@functools.partial(jax.jit, static_argnums=0, donate_argnums=2)
def read(
    program: Program, params: Any, state: State, inputs_bt: jax.Array, n_new_b: jax.Array
) -> State:
    """After the first `n_new_b` of these inputs of each sequence; see `Decoder.read`."""
    out_btov, kept = program.model.extend(
        params, inputs_bt, state.kept, state.length_b, n_new_b, state.capacity
    )
    last_bv = out_btov[jnp.arange(len(inputs_bt)), jnp.maximum(n_new_b - 1, 0), 0]
    reads_b = n_new_b > 0
    logits_bv = jnp.where(reads_b[:, None], last_bv, state.logits_bv)
    over_b = state.over_b & ~reads_b
    return State(kept, state.length_b + n_new_b, logits_bv, over_b, state.capacity)


@functools.partial(jax.jit, static_argnums=(0, 1, 2), donate_argnums=4)
def generate(
    program: Program,
    n_new: int,
    sampling: Sampling,
    params: Any,
    state: State,
    seed: jax.Array,
    stop: jax.Array,
) -> tuple[jax.Array, State]:
    """New tokens [b, n_new] and the state after them; see `Decoder.generate`."""
    b = len(state.length_b)
    base = jax.random.key(seed)

    def going_on(carry: tuple[Any, ...]) -> jax.Array:
        i, _, state = carry
        return (i < n_new) & ~state.over_b.all()

    def step(carry: tuple[Any, ...]) -> tuple[Any, ...]:
        i, tokens_bn, state = carry
        length_b, over_b = state.length_b, state.over_b
        # One key for each sequence and position: neither the batch nor the call changes a draw.
        keys = jax.vmap(lambda row, at: jax.random.fold_in(jax.random.fold_in(base, row), at))(
            jnp.arange(b), length_b
        )
        drawn_b = jax.vmap(lambda logits_v, key: sampling.draw(logits_v[None], key)[0])(
            state.logits_bv, keys
        )
        token_b = jnp.where(over_b, -1, drawn_b)
        grows_b = (~over_b).astype(jnp.int32)
        out_b1ov, kept = program.model.extend(
            params, jnp.maximum(token_b, 0)[:, None], state.kept, length_b, grows_b, state.capacity
        )
        over_b = over_b | (token_b == stop)
        state = State(kept, length_b + grows_b, out_b1ov[:, 0, 0], over_b, state.capacity)
        return i + 1, tokens_bn.at[:, i].set(token_b), state

    def block(carry: tuple[Any, ...]) -> tuple[Any, ...]:
        """Some turns, with the caches staged."""
        first, tokens_bn, state = carry
        kept, turns = state.kept, min(n_new, _BLOCK)
        staged = [Staged.of(of_layer, state.length_b, turns) for of_layer in kept]

        def in_block(carry: tuple[Any, ...]) -> jax.Array:
            return going_on(carry) & (carry[0] < first + turns)

        begun = first, tokens_bn, dataclasses.replace(state, kept=staged)
        i, tokens_bn, state = jax.lax.while_loop(in_block, step, begun)
        merged = [
            of_layer.merged(old, layout)
            for of_layer, old, layout in zip(
                state.kept, kept, _layouts(program, state.capacity), strict=True
            )
        ]
        return i, tokens_bn, dataclasses.replace(state, kept=merged)

    start = jnp.int32(0), jnp.full((b, n_new), -1, jnp.int32), state
    body = block if _stages(program, state.kept) else step
    _, tokens_bn, state = jax.lax.while_loop(going_on, body, start)
    return tokens_bn, state


def _stages(program: Program, kept: Any) -> bool:
    """Whether every layer keeps bfloat16 as its bits, in the way of `cache.append`."""
    model = program.static.model
    own = model.kv_quant == "none" and all(one.mixer in mixers.own() for one in model.layers)
    return own and all(x.dtype == jnp.uint16 for x in jax.tree.leaves(kept))


def _layouts(program: Program, capacity: int) -> list[Layout]:
    mask = Mask(program.spec.mask)
    return [
        Layout.of(mask._replace(window=one.window, n_sinks=one.n_sinks), capacity)
        for one in program.static.model.layers
    ]

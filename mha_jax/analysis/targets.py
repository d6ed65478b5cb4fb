"""Where a head would look if it played a role: for every query, the keys that count.

A target is bool [b, t, s], true where key s counts for query t; b is 1 where every sequence has the
same. Row t is the query and column s the key, so offset -1 is the previous token and +1 the next.
A target may name keys out of sight (later ones under a causal mask, those beyond a window): what
uses it counts the visible ones only. x_t is the token at t. Run inside the compiled program.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp

# Key position minus query position: the offsets that scores are told for, and whose best is the
# baseline of a dependency (as in Clark et al. 2019, arXiv:1906.04341, section 4.2).
OFFSETS = (-3, -2, -1, 0, 1, 2)


def offset(length: int, k: int) -> jax.Array:
    """The key k positions on: s = t + k, [1, t, s]. Previous token: k = -1.

    Clark et al. 2019, arXiv:1906.04341, section 3.1, with k = -1, 0, 1.
    """
    return (_keys(length) == _queries(length) + k)[None]


def position(length: int, s: int) -> jax.Array:
    """The key at position s, [1, t, s]; the first token: s = 0."""
    return jnp.broadcast_to(_keys(length) == s, (1, length, length))


def token_in(tokens_bt: jax.Array, ids: Sequence[int]) -> jax.Array:
    """Keys whose token is one of `ids`, such as the delimiters."""
    marked_bt = jnp.isin(tokens_bt, jnp.asarray(ids, tokens_bt.dtype))
    return jnp.broadcast_to(marked_bt[:, None, :], (*tokens_bt.shape, tokens_bt.shape[1]))


def same_token(tokens_bt: jax.Array) -> jax.Array:
    """Other keys with the query's token: x_s = x_t, s != t; also called duplicate token.

    Under a causal mask the earlier ones, as in TransformerLens `head_detector.py`.
    """
    return _equal(tokens_bt) & _others(tokens_bt.shape[1])


def same_class(class_bt: jax.Array, tokens_bt: jax.Array) -> jax.Array:
    """Keys with another token of the query's class: c_s = c_t, x_s != x_t.

    Ours. The query's own token is left out, so that this does not rise with `same_token`.

    Args:
      class_bt: class of each token, int.
      tokens_bt: the tokens.
    """
    return _equal(class_bt) & ~_equal(tokens_bt)


def induction(tokens_bt: jax.Array) -> jax.Array:
    """Keys behind an earlier copy of the query's token: x_(s-1) = x_t, 1 <= s < t, whatever the
    mask.

    TransformerLens `head_detector.py`, where s = t counts as well when x_(t-1) = x_t. Here it does
    not: that key is the query itself.
    """
    follows = jnp.pad(_equal(tokens_bt)[:, :, :-1], ((0, 0), (0, 0), (1, 0)))
    return follows & _earlier(tokens_bt.shape[1])


def pointer(pointer_bt: jax.Array) -> jax.Array:
    """The key that a role's pointer names; none where it is negative."""
    return pointer_bt[:, :, None] == jnp.arange(pointer_bt.shape[1])[None, None, :]


def pointed(pointers: Mapping[str, jax.Array]) -> jax.Array:
    """Every key that any role's pointer names.

    Raises:
      ValueError: no role.
    """
    if not pointers:
        raise ValueError("pointers is empty; the task names no role")
    union, *others = map(pointer, pointers.values())
    for target in others:
        union = union | target
    return union


def _keys(length: int) -> jax.Array:
    return jnp.arange(length)[None, :]


def _queries(length: int) -> jax.Array:
    return jnp.arange(length)[:, None]


def _earlier(length: int) -> jax.Array:
    return (_keys(length) < _queries(length))[None]


def _others(length: int) -> jax.Array:
    return (_keys(length) != _queries(length))[None]


def _equal(x_bt: jax.Array) -> jax.Array:
    return x_bt[:, :, None] == x_bt[:, None, :]

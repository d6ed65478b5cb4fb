"""Rows times a matrix, arranged for the backward pass on a CPU."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

_F32 = jnp.float32


def product(x: jax.Array, w: jax.Array, dtype: jax.typing.DTypeLike) -> jax.Array:
    """x [rows, d_in] @ w [d_in, d_out], multiplied in `dtype`, which the result has.

    The gradient of w is x^T dy, for which XLA's matrix product on a CPU takes twice as long where
    x is the wider one. There dy^T x is made and turned: the barrier keeps the two apart, which the
    compiler would join again. bfloat16: see `_narrow`.
    """
    if jnp.dtype(dtype) == jnp.bfloat16:
        return _narrow(x.astype(dtype), w)
    x, w = x.astype(dtype), w.astype(dtype)
    few = x.shape[0] < w.shape[0]  # as in decoding: what is done to w would cost more
    if few or w.shape[0] <= w.shape[1]:
        return x @ w
    return jax.lax.dot_general(x, jax.lax.optimization_barrier(w.T), (((1,), (1,)), ((), ())))


@jax.custom_vjp
def _narrow(x: jax.Array, w: jax.Array) -> jax.Array:
    """The product of bfloat16 rows and a float32 matrix, which is rounded.

    A CPU multiplies bfloat16 in hardware only where neither operand is turned and the sums are
    float32. The backward pass turns both: on a CPU as a gather, which the compiler does not fold
    into the product.
    """
    return jax.lax.platform_dependent(x, w, cpu=_sums_in_f32, default=_plain)


def _plain(x: jax.Array, w: jax.Array) -> jax.Array:
    return x @ w.astype(x.dtype)


def _sums_in_f32(x: jax.Array, w: jax.Array) -> jax.Array:
    y = jnp.dot(x, w.astype(x.dtype), preferred_element_type=_F32)
    return y.astype(x.dtype)


def _forward(x: jax.Array, w: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return _narrow(x, w), (x, w)


def _backward(kept: tuple[jax.Array, jax.Array], dy: jax.Array) -> tuple[jax.Array, jax.Array]:
    return jax.lax.platform_dependent(*kept, dy, cpu=_gathered, default=_plain_gradients)


def _plain_gradients(x: jax.Array, w: jax.Array, dy: jax.Array) -> tuple[jax.Array, jax.Array]:
    dw = jnp.dot(x.T, dy, preferred_element_type=_F32)
    return dy @ w.astype(x.dtype).T, dw


def _gathered(x: jax.Array, w: jax.Array, dy: jax.Array) -> tuple[jax.Array, jax.Array]:
    dx = jnp.dot(dy, _turned(w.astype(x.dtype)), preferred_element_type=_F32).astype(x.dtype)
    if w.shape[0] <= w.shape[1]:  # the narrower one is turned
        return dx, jnp.dot(_turned(x), dy, preferred_element_type=_F32)
    dw = jnp.dot(_turned(dy), x, preferred_element_type=_F32)
    return dx, jax.lax.optimization_barrier(dw).T


def _turned(a: jax.Array) -> jax.Array:
    return a.T[np.arange(a.shape[1])]


_narrow.defvjp(_forward, _backward)

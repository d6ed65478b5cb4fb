"""Rows times a matrix, and its gradients, against numpy in float64."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mha_jax.analysis.slots import jacobian_blocks
from mha_jax.attention.product import product

F32, BF16 = jnp.float32, jnp.bfloat16


def arrays(rows: int, d_in: int, d_out: int) -> tuple[np.ndarray, ...]:
    """x, w, and the derivative of the result. bfloat16 holds them all exactly."""
    rng = np.random.default_rng(0)
    shapes = (rows, d_in), (d_in, d_out), (rows, d_out)
    return tuple(rng.integers(-8, 9, shape).astype(np.float32) / 8 for shape in shapes)


def with_gradients(x: Any, w: Any, dy: Any, dtype: Any) -> Any:
    y, pull = jax.vjp(lambda x, w: product(x, w, dtype), x, w)
    return y, *pull(dy.astype(dtype))


@pytest.mark.parametrize("shape", [(64, 8, 16), (64, 16, 8), (64, 8, 8), (1, 8, 16), (3, 16, 8)])
@pytest.mark.parametrize("mapped", [False, True], ids=["alone", "lanes"])
def test_a_product_and_its_gradients(shape: tuple[int, int, int], mapped: bool) -> None:
    """The entries are multiples of 1/8 of at most 1, so that their products and sums are exact in
    float32; bfloat16 rounds the result, and the gradient of x, to 8 bits.
    """
    x, w, dy = arrays(*shape)
    for dtype, rounding in ((F32, 0.0), (BF16, 2.0**-8)):

        def whole(*one: Any, dtype: Any = dtype) -> Any:
            return with_gradients(*one, dtype)

        if mapped:
            stacked = (np.stack([a, -a]) for a in (x, w, dy))
            y, dx, dw = (a[0] for a in jax.jit(jax.vmap(whole))(*stacked))
        else:
            y, dx, dw = jax.jit(whole)(x, w, dy)
        assert y.dtype == dtype and dx.dtype == dw.dtype == F32
        np.testing.assert_allclose(y.astype(F32), x @ w, rtol=rounding)
        np.testing.assert_allclose(dx, dy @ w.T, rtol=rounding)
        exact = 0.0 if shape[0] >= shape[1] else rounding  # few rows take the plain product
        np.testing.assert_allclose(dw, x.T @ dy, rtol=exact)


@pytest.mark.parametrize("dtype", [F32, BF16])
def test_the_jacobian_of_slots_goes_through_it(dtype: Any) -> None:
    """For z @ w it is the Frobenius norm of each block of w."""
    _, w, _ = arrays(1, 8, 6)

    def answer(z_btnh: jax.Array) -> jax.Array:
        rows = z_btnh.reshape(-1, 8)
        return product(rows, jnp.asarray(w), dtype).astype(F32).reshape(2, 8, 6)

    blocks_sn = jacobian_blocks(answer, jnp.ones((2, 8, 2, 4)))
    told = np.linalg.norm(w.reshape(2, 4, 2, 3), axis=(1, 3)).T
    np.testing.assert_allclose(blocks_sn, told, rtol=1e-6)

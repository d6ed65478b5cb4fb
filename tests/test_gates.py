"""Hard Concrete gates against the formulas in float64, and against their own distribution."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mha_jax.analysis import gates

LOG_ALPHA = np.array([-4.0, -1.5, 0.0, 0.7, 2.0, 5.0])
N_DRAWS = 40_000


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def gate(log_alpha, u):
    """The definition, written out in numpy."""
    s = sigmoid((np.log(u) - np.log(1 - u) + log_alpha) / 0.33)
    return np.minimum(1, np.maximum(0, s * 1.2 - 0.1))


@functools.cache
def draws():
    log_alpha = jnp.broadcast_to(jnp.float32(LOG_ALPHA)[None], (N_DRAWS, LOG_ALPHA.size))
    return np.asarray(jax.jit(gates.sample)(log_alpha, jax.random.key(0)))


def test_a_gate_is_the_formula_of_its_noise(assert_close) -> None:
    key = jax.random.key(3)
    u = jax.random.uniform(key, LOG_ALPHA.shape, minval=gates.EPS, maxval=1 - gates.EPS)
    found = gates.sample(jnp.float32(LOG_ALPHA), key)
    assert_close(found, gate(LOG_ALPHA, np.asarray(u, np.float64)))
    inside = draws()[(draws() > 0) & (draws() < 1)]
    assert np.unique(inside).size > 0.9 * inside.size  # each has noise of its own


def test_it_is_open_as_often_as_stated() -> None:
    stated = np.asarray(gates.open_probability(jnp.float32(LOG_ALPHA)))
    np.testing.assert_allclose(stated, sigmoid(LOG_ALPHA - 0.33 * np.log(0.1 / 1.1)), rtol=1e-5)
    spread = np.sqrt(stated * (1 - stated) / N_DRAWS)
    assert (np.abs((draws() > 0).mean(0) - stated) < 5 * spread).all()


def test_its_mean_is_the_integral_over_the_noise() -> None:
    u = (np.arange(200_000) + 0.5) / 200_000
    mean = np.array([gate(x, u).mean() for x in LOG_ALPHA])
    spread = draws().std(0) / np.sqrt(N_DRAWS)
    assert (np.abs(draws().mean(0) - mean) < 5 * spread).all()


def test_exact_zeros_and_ones_occur_and_nothing_beyond() -> None:
    assert draws().min() == 0 and draws().max() == 1
    exact = (draws() == 0) | (draws() == 1)
    assert exact.any(0).all() and not exact.all(0).any()
    assert not np.isnan(draws()).any()


def test_the_gates_in_use_have_no_noise_and_no_temperature(assert_close) -> None:
    found = gates.evaluate(jnp.float32(LOG_ALPHA))
    assert_close(found, np.clip(1.2 * sigmoid(LOG_ALPHA) - 0.1, 0, 1))
    assert found[0] == 0 and found[-1] == 1
    edge = np.log(11)
    close = gates.evaluate(jnp.array([-edge - 1e-3, -edge + 1e-3, edge - 1e-3, edge + 1e-3]))
    np.testing.assert_array_equal(close > 0, [False, True, True, True])
    np.testing.assert_array_equal(close < 1, [True, True, True, False])


@pytest.mark.parametrize("far", [50.0, np.inf])
def test_far_out_a_gate_is_a_constant(far: float) -> None:
    log_alpha = jnp.array([-far, far])
    for found in (
        gates.sample(log_alpha, jax.random.key(0)),
        gates.evaluate(log_alpha),
        gates.open_probability(log_alpha),
    ):
        np.testing.assert_allclose(found, [0, 1], atol=1e-6)

    def total(log_alpha):
        return gates.sample(log_alpha, jax.random.key(0)).sum() + gates.penalty([log_alpha])

    np.testing.assert_allclose(jax.grad(total)(log_alpha), [0, 0], atol=1e-6)


def test_the_gradient_is_that_of_the_formula_and_finite() -> None:
    key = jax.random.key(5)
    log_alpha = jnp.linspace(-3, 3, 64)
    u = jax.random.uniform(key, log_alpha.shape, minval=gates.EPS, maxval=1 - gates.EPS)
    found = jax.grad(lambda x: gates.sample(x, key).sum())(log_alpha)
    x, u = np.asarray(log_alpha, np.float64), np.asarray(u, np.float64)
    slope = (gate(x + 1e-6, u) - gate(x - 1e-6, u)) / 2e-6
    np.testing.assert_allclose(found, slope, rtol=1e-3, atol=1e-5)
    assert (slope > 0).any() and (slope == 0).any()


def test_the_penalty_counts_open_gates_over_layers() -> None:
    layers = [jnp.float32(LOG_ALPHA), jnp.zeros(0), jnp.array([0.3, -0.2])]
    want = sum(sigmoid(np.asarray(x, np.float64) - 0.33 * np.log(0.1 / 1.1)).sum() for x in layers)
    np.testing.assert_allclose(gates.penalty(layers), want, rtol=1e-6)
    slopes = jax.grad(gates.penalty)(layers)
    assert (slopes[0] > 0).all() and (slopes[2] > 0).all()
    assert gates.penalty([]) == 0

"""The random numbers that the tasks share."""

import jax
import jax.numpy as jnp
import numpy as np

from mha_jax.tasks import draw

ENDS = jnp.asarray([0, 255, 256, 2**31, 2**32 - 1], jnp.uint32)


def test_a_uniform_number_is_never_one():
    """A threshold of 1 must always be above it, one of 0 never."""
    got = np.asarray(draw.uniform(ENDS), np.float64)
    np.testing.assert_array_equal(got, [0, 0, 2.0**-24, 0.5, 1 - 2.0**-24])


def test_an_exponential_number_is_finite_and_has_its_mean_and_tail():
    assert np.isfinite(draw.exponential(ENDS)).all() and np.min(draw.exponential(ENDS)) == 0
    bits = jax.random.bits(jax.random.key(0), (100_000,))
    got = np.asarray(draw.exponential(bits))
    # Five standard errors of 1/sqrt(100,000), and of sqrt(p (1 - p) / 100,000).
    assert abs(got.mean() - 1) < 0.016
    assert abs((got > 3).mean() - np.exp(-3)) < 0.0035

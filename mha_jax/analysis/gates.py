"""Hard Concrete gates: how many heads a model needs, learned under an L0 penalty.

Each head's z is multiplied by a random gate g in [0, 1] that is exactly 0 or 1 with positive
probability (Louizos et al. 2018, arXiv 1712.01312; on attention heads Voita et al. 2019, arXiv
1905.09418). With log_alpha of a head, u ~ U(EPS, 1 - EPS) and s stretched and clipped:

    s = sigmoid((log u - log(1 - u) + log_alpha) / BETA)
    g = min(1, max(0, s (ZETA - GAMMA) + GAMMA))

A converged model and its gates are trained further on loss + lambda * `penalty`, and lambda is
swept: gates end near 0 or 1. `open_probability` is then an importance of heads.

A gate belongs to a query head, log_alpha [n], and goes in as `head_mask`; or to a kv head, [k], and
goes in as `kv_mask`: by the values it multiplies z of its whole group. One draw serves a batch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp

BETA = 0.33  # temperature
GAMMA, ZETA = -0.1, 1.1  # ends of the stretched interval
EPS = 1e-6  # keeps log u and log(1 - u) finite


def sample(log_alpha: jax.Array, key: jax.Array) -> jax.Array:
    """Random gates in [0, 1], of the shape of log_alpha, each with noise of its own.

    Differentiable in log_alpha; the gradient is 0 where a gate is 0 or 1.
    """
    u = jax.random.uniform(key, log_alpha.shape, minval=EPS, maxval=1 - EPS)
    noise = jnp.log(u) - jnp.log1p(-u)
    return _stretch(jax.nn.sigmoid((noise + log_alpha) / BETA))


def evaluate(log_alpha: jax.Array) -> jax.Array:
    """The gates that stand for the random ones when the model is used, in [0, 1].

    s = sigmoid(log_alpha), without noise and without temperature, stretched and clipped: exactly 0
    for log_alpha <= -log 11 = -2.4, exactly 1 from +2.4 on. Neither the mean nor the median of the
    random gate.
    """
    return _stretch(jax.nn.sigmoid(log_alpha))


def open_probability(log_alpha: jax.Array) -> jax.Array:
    """P(g != 0) = sigmoid(log_alpha - BETA log(-GAMMA / ZETA)), of each gate."""
    return jax.nn.sigmoid(log_alpha - BETA * math.log(-GAMMA / ZETA))


def penalty(log_alphas: Sequence[jax.Array]) -> jax.Array:
    """The expected number of open gates: the sum of P(g != 0) over the heads of all layers.

    As Voita et al. write it. Their code averages it over collections of gates, so that a lambda of
    theirs is another one here.

    Args:
      log_alphas: for each layer [n] or [k]; an empty one for a layer without gates.
    """
    return sum((open_probability(x).sum() for x in log_alphas), jnp.zeros(()))


def _stretch(s: jax.Array) -> jax.Array:
    return jnp.clip(s * (ZETA - GAMMA) + GAMMA, 0.0, 1.0)

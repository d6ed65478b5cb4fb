"""The next token from its logits: greedy, temperature, top-k and top-p (nucleus) sampling."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from mha_jax.attention.core import LOWEST


@dataclasses.dataclass(frozen=True)
class Sampling:
    """How a token is drawn. Filters apply in this order: temperature, top-k, top-p; of equal logits
    the first is the likelier.

    Raises:
      ValueError: a number out of its range.
    """

    temperature: float = 0.0  # of the softmax; 0: the likeliest token, whatever else is set
    top_k: int = 0  # only the likeliest k tokens; 0: all
    top_p: float = 1.0  # only the fewest tokens with this probability (Holtzman et al. 2020)

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < float("inf"):
            raise ValueError(f"temperature={self.temperature} must be 0 or more; 0 is greedy")
        if self.top_k < 0:
            raise ValueError(f"top_k={self.top_k} must be 0, all tokens, or more")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p={self.top_p} must be above 0 and at most 1")

    def filtered(self, logits_bv: jax.Array) -> jax.Array:
        """Logits at this temperature, float32 [b, v], of the tokens that may be drawn; those of the
        others are the lowest there is. Not for temperature 0.
        """
        logits_bv = logits_bv.astype(jnp.float32)
        # The largest becomes 0, which no temperature, however low, makes infinite.
        temperature = max(self.temperature, float(np.finfo(np.float32).tiny))
        logits_bv = (logits_bv - logits_bv.max(-1, keepdims=True)) / temperature
        logits_bv = jnp.maximum(logits_bv, LOWEST)
        if not self.top_k and self.top_p == 1:
            return logits_bv
        order_bv = jnp.argsort(logits_bv, axis=-1, descending=True, stable=True)
        rank_bv = jnp.argsort(order_bv, axis=-1)
        if self.top_k:
            logits_bv = jnp.where(rank_bv < self.top_k, logits_bv, LOWEST)
        if self.top_p < 1:
            share_bv = jax.nn.softmax(jnp.take_along_axis(logits_bv, order_bv, axis=-1))
            # A token stays if those before it have not reached top_p: the likeliest always does.
            stays_bv = jnp.cumsum(share_bv, axis=-1) - share_bv < self.top_p
            stays_bv = jnp.take_along_axis(stays_bv, rank_bv, axis=-1)
            logits_bv = jnp.where(stays_bv, logits_bv, LOWEST)
        return logits_bv

    def draw(self, logits_bv: jax.Array, key: jax.Array) -> jax.Array:
        """A token of each sequence, int32 [b]. Of equal logits the first is the likeliest."""
        if self.temperature == 0:
            return _likeliest(logits_bv)
        return jax.random.categorical(key, self.filtered(logits_bv)).astype(jnp.int32)


def _likeliest(logits_bv: jax.Array) -> jax.Array:
    """`argmax`, by two reductions that a CPU makes in vectors; argmax itself is a loop there, ten
    times as long."""
    below_bv = logits_bv < logits_bv.max(-1, keepdims=True)  # of NaN nothing is below
    at_bv = jax.lax.broadcasted_iota(jnp.int32, logits_bv.shape, logits_bv.ndim - 1)
    return jnp.where(below_bv, logits_bv.shape[-1], at_bv).min(-1)

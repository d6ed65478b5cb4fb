"""AdamW whose learning rate and weight decay are arguments of the compiled program.

The update is three factors that are kept apart: a direction (clipped Adam plus decoupled weight
decay, Loshchilov and Hutter 2019), a schedule of height one, and the learning rate.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax

from mha_jax.config import OptimSpec


def schedule(step: jax.typing.ArrayLike, optim: OptimSpec, n_steps: int) -> jax.Array:
    """Share of the peak rate at a step: linear warm-up, constant, linear decay to zero over the
    last steps.

    The constant trunk is what a doubled budget can branch from (Hägele et al. 2024, arXiv
    2405.18392).
    """
    step = jnp.asarray(step, jnp.float32)
    rise = jnp.minimum(1.0, (step + 1) / max(1, optim.warmup_steps))
    n_decay = optim.decay_steps(n_steps)
    fall = jnp.clip((n_steps - step) / n_decay, 0.0, 1.0) if n_decay else 1.0
    return rise * fall


def _decayed(params: Any) -> Any:
    """Matrices are decayed; biases, norm scales and single vectors are not."""
    return jax.tree.map(lambda p: p.ndim >= 2, params)


def _direction(
    optim: OptimSpec, weight_decay: jax.typing.ArrayLike
) -> optax.GradientTransformation:
    return optax.chain(
        optax.clip_by_global_norm(optim.clip) if optim.clip > 0 else optax.identity(),
        optax.scale_by_adam(optim.b1, optim.b2, optim.eps),
        optax.add_decayed_weights(weight_decay, mask=_decayed),
    )


def init(params: Any, optim: OptimSpec) -> Any:
    """Optimizer state of fresh parameters."""
    return _direction(optim, 0.0).init(params)


def update(
    grads: Any,
    state: Any,
    params: Any,
    step: jax.Array,
    *,
    lr: jax.typing.ArrayLike,
    weight_decay: jax.typing.ArrayLike,
    optim: OptimSpec,
    n_steps: int,
) -> tuple[Any, Any]:
    """One update: new parameters and optimizer state.

    Args:
      grads: gradient, like `params`.
      state: optimizer state.
      params: parameters.
      step: updates made so far.
      lr: peak learning rate; may be traced.
      weight_decay: decoupled weight decay; may be traced.
      optim: the static part of the optimizer.
      n_steps: budget, in which the schedule ends.
    """
    direction, state = _direction(optim, weight_decay).update(grads, state, params)
    rate = lr * schedule(step, optim, n_steps)
    return jax.tree.map(lambda p, u: p - rate * u, params, direction), state

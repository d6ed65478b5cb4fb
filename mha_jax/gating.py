"""Hard Concrete gates trained on a converged model: which heads it spares at each price of a head.

Voita et al. 2019 (arXiv 1905.09418, section 6): every head has a gate (`analysis.gates`), a
converged model and its gates are trained further on

    loss + lambda * expected number of open gates

and lambda, the price of an open head, is swept. Each lambda starts from the same parameters, with
gates that are all open, and sees the same batches and the same noise. Lambda and the learning rates
are arguments of the compiled program, so that a sweep compiles once.

Ours: the gates have a learning rate of their own (Adam) on the schedule of the run, which begins
again; with lr = 0 the parameters stay as they are and the gates alone are trained.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from mha_jax import loss, mixers, optim, rng
from mha_jax.analysis import gates, pruning
from mha_jax.config import LayerSpec
from mha_jax.held_out import Measure
from mha_jax.train import Program

# Just above the log_alpha from which the evaluation gate is exactly 1, log 11.
OPEN = 2.5
# Lambdas of a sweep that names none: see `lambdas`.
MULTIPLES = (0.03, 0.1, 0.3, 1.0)
_CHUNK = 50  # steps of a dispatch; between two of them the progress is told
_ADAM = optax.scale_by_adam()


@dataclasses.dataclass(frozen=True)
class Recipe:
    """How gates are trained."""

    of: str  # what has a gate: "n", a query head, or "k", a kv head with its whole group
    n_steps: int  # updates for each lambda
    lr: float  # peak rate of the parameters; 0: they stay as they are
    gate_lr: float  # peak rate of log_alpha
    weight_decay: float = 0.0
    seed: int = 0  # of batches and noise


class Gated(NamedTuple):
    """What is left at one lambda."""

    of: str  # "n", query heads, or "k", kv heads
    lam: float
    open_probability: list[np.ndarray]  # of each gate, by layer: [n] or [k]; [0] without heads
    gates: list[np.ndarray]  # the gates of evaluation, in [0, 1], likewise
    head_mask: list[np.ndarray]  # the same for query heads, by layer [n]
    params: Any
    metrics: dict[str, float]  # held out, of these parameters under these gates

    @property
    def n_open(self) -> int:
        """Query or kv heads whose evaluation gate is above 0."""
        return sum(int((gate > 0).sum()) for gate in self.gates)

    @property
    def closed(self) -> list[pruning.Head]:
        """The others."""
        return [
            pruning.Head(layer, self.of, int(head))
            for layer, gate in enumerate(self.gates)
            for head in np.flatnonzero(gate == 0)
        ]


class State(NamedTuple):
    """Carried from step to step."""

    step: jax.Array
    params: Any
    opt: Any
    log_alphas: list[jax.Array]
    gate_opt: Any


class Hypers(NamedTuple):
    """Arguments of the compiled program: scalars."""

    lam: jax.typing.ArrayLike
    lr: jax.typing.ArrayLike
    gate_lr: jax.typing.ArrayLike
    weight_decay: jax.typing.ArrayLike
    seed: jax.typing.ArrayLike


def sweep(
    program: Program,
    params: Any,
    constants: dict[str, Any],
    lams: Sequence[float],
    recipe: Recipe,
    measure: Measure,
    tell: Callable[[str], None] = lambda line: None,
) -> list[Gated]:
    """Trains gates once for each lambda; the same arguments give the same result.

    Args:
      program: the model and its task.
      params: of the converged model.
      constants: of the task's training split.
      lams: the lambdas, in the unit of the loss for each open head.
      recipe: see there.
      measure: on held-out data.
      tell: takes a line that says how far it is, again and again.

    Raises:
      ValueError: a negative lambda or rate, a model without heads, or gates that diverge.
    """
    layers = program.static.model.layers
    if not (recipe.n_steps > 0 and min(*lams, recipe.lr, recipe.gate_lr) >= 0):
        raise ValueError("lambdas and learning rates must not be negative, n_steps must be above 0")
    counts = n_gates(layers, recipe.of)
    if not sum(counts):
        raise ValueError("no layer of the model has attention heads")
    found = []
    for i, lam in enumerate(lams):
        log_alphas = [jnp.full(n, OPEN) for n in counts]
        opt, gate_opt = optim.init(params, program.static.optim), _ADAM.init(log_alphas)
        state = State(jnp.int32(0), params, opt, log_alphas, gate_opt)
        hypers = Hypers(
            float(lam), recipe.lr, recipe.gate_lr, recipe.weight_decay, np.uint32(recipe.seed)
        )
        while (step := int(state.step)) < recipe.n_steps:
            n_open, which = float(gates.penalty(state.log_alphas)), f"{i + 1}/{len(lams)}"
            done = f"step {step}/{recipe.n_steps}, {n_open:.1f} open"
            tell(f"gates, lambda {lam:.3g} ({which}): {done}")
            n = np.int32(min(_CHUNK, recipe.n_steps - step))
            state = _chunk(program, recipe.of, recipe.n_steps, state, hypers, constants, n)
        found.append(_gated(lam, state, layers, recipe.of, measure))
    return found


def n_gates(layers: Sequence[LayerSpec], of: str) -> list[int]:
    """Gates of each layer; 0 for a mixer without attention heads."""
    counts = [layer.n_heads if of == "n" else layer.n_kv_heads for layer in layers]
    own = mixers.own()
    return [n if layer.mixer in own else 0 for n, layer in zip(counts, layers, strict=True)]


def lambdas(
    measure: Measure, params: Any, layers: Sequence[LayerSpec], of: str
) -> tuple[float, ...]:
    """`MULTIPLES` of (loss without any head - loss) / heads, the mean price of a head: ours.

    The price is a millionth at least, so that a model that needs no head has lambdas too.

    Args:
      measure: on data of which nothing is reported.
      params, layers: of the model.
      of: "n", query heads, or "k", kv heads.
    """
    whole = [np.ones(layer.n_heads, np.float32) for layer in layers]
    none = [np.zeros_like(mask) for mask in whole]
    rise = measure(params, none)["loss"] - measure(params, whole)["loss"]
    price = max(rise, 1e-6) / sum(n_gates(layers, of))
    return tuple(multiple * price for multiple in MULTIPLES)


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _chunk(
    program: Program,
    of: str,
    n_steps: int,
    state: State,
    hypers: Hypers,
    constants: dict[str, jax.Array],
    n: jax.Array,
) -> State:
    """`n` of the `n_steps` updates."""
    step = functools.partial(_step, program, of, n_steps, hypers, constants)
    return jax.lax.fori_loop(0, n, lambda _, state: step(state), state)


def _step(
    program: Program,
    of: str,
    n_steps: int,
    hypers: Hypers,
    constants: dict[str, jax.Array],
    state: State,
) -> State:
    """One update of parameters and gates on a fresh batch, under one draw of the gates."""
    key = rng.stream(hypers.seed, "gates/batch", state.step)
    batch = program.sample(key, constants, program.static.train.batch_size)
    noise = rng.stream(hypers.seed, "gates/noise", state.step)

    def objective(params: Any, log_alphas: list[jax.Array]) -> jax.Array:
        drawn = [
            gates.sample(log_alpha, jax.random.fold_in(noise, i))
            for i, log_alpha in enumerate(log_alphas)
        ]
        head_mask, kv_mask = (drawn, None) if of == "n" else (None, drawn)
        outputs, _ = program.model.apply(params, batch.inputs, head_mask=head_mask, kv_mask=kv_mask)
        task = loss.mean_loss(loss.sums(outputs, batch, program.spec))
        return task + hypers.lam * gates.penalty(log_alphas)

    grads, gate_grads = jax.grad(objective, argnums=(0, 1))(state.params, state.log_alphas)
    # A small budget has no room for the warm-up of the run.
    spec = program.static.optim
    spec = dataclasses.replace(spec, warmup_steps=min(spec.warmup_steps, n_steps // 5))
    params, opt = optim.update(
        grads,
        state.opt,
        state.params,
        state.step,
        lr=hypers.lr,
        weight_decay=hypers.weight_decay,
        optim=spec,
        n_steps=n_steps,
    )
    direction, gate_opt = _ADAM.update(gate_grads, state.gate_opt)
    rate = hypers.gate_lr * optim.schedule(state.step, spec, n_steps)
    log_alphas = jax.tree.map(lambda x, u: x - rate * u, state.log_alphas, direction)
    return State(state.step + 1, params, opt, log_alphas, gate_opt)


def _gated(
    lam: float, state: State, layers: Sequence[LayerSpec], of: str, measure: Measure
) -> Gated:
    if not all(np.isfinite(x).all() for x in jax.tree.leaves((state.log_alphas, state.params))):
        raise ValueError(f"the gates of lambda {lam:.3g} diverged; lower the learning rates")
    values = [np.asarray(gates.evaluate(x)) for x in state.log_alphas]
    masks = [
        np.repeat(gate, layer.n_heads // gate.size) if gate.size else np.ones(layer.n_heads)
        for gate, layer in zip(values, layers, strict=True)
    ]
    return Gated(
        of,
        float(lam),
        [np.asarray(gates.open_probability(x)) for x in state.log_alphas],
        values,
        masks,
        state.params,
        measure(state.params, masks),
    )

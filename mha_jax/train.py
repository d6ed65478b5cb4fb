"""The training step: a pure function of (state, hypers, constants), and many of them in one
dispatch."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from mha_jax import cost, loss, optim, rng
from mha_jax.config import StaticConfig
from mha_jax.kernel_rules import FUSED
from mha_jax.model import Model, build
from mha_jax.tasks import TaskSpec


class Tally(NamedTuple):
    """Sums over the steps since the last row of the record. They are part of the state, so that a
    row is the same wherever a run was broken off between two rows."""

    loss: jax.Array  # float32
    grad_norm: jax.Array  # float32
    n: jax.Array  # int32: steps that count


class Watch(NamedTuple):
    """What is known of bad steps: loss or gradient not finite, or a loss that has exploded."""

    first_loss: jax.Array  # float32: of the first step
    n_bad: jax.Array  # int32: bad steps
    first_bad: jax.Array  # int32: the first of them; -1: none


class State(NamedTuple):
    """All that a run carries from step to step."""

    step: jax.Array  # int32: updates made
    params: Any
    opt: Any
    watch: Watch
    tally: Tally


class HyperArrays(NamedTuple):
    """`config.Hypers` as arguments of the compiled program: scalars, or [r] in a group of lanes."""

    seed: jax.typing.ArrayLike
    data_seed: jax.typing.ArrayLike
    lr: jax.typing.ArrayLike
    weight_decay: jax.typing.ArrayLike


@dataclasses.dataclass(frozen=True)
class Program:
    """What the pure functions below close over: fixed by the static config."""

    static: StaticConfig
    spec: TaskSpec
    model: Model

    @classmethod
    def of(cls, static: StaticConfig, kernel: str | None = None) -> Program:
        """The program of a static config.

        Args:
          static: of a run.
          kernel: what attention is computed by. None: the config's if it runs on any device, else
            "fast", which gives equal numbers: so a run is looked at on another device than it was
            trained on.
        """
        if kernel is None:
            kernel = "fast" if static.model.kernel in FUSED else static.model.kernel
        spec, model = static.task.spec, dataclasses.replace(static.model, kernel=kernel)
        return cls(static, spec, build(model, spec))

    def sample(self, key: jax.Array, constants: dict[str, jax.Array], n: int) -> Any:
        """A batch of n sequences of the task."""
        return self.static.task.module.sample(key, constants, self.static.task.config, n)


def init(program: Program, hypers: HyperArrays) -> State:
    """The state at step 0; a function of `hypers.seed` alone.

    Raises:
      ValueError: the model has other parameters than its mixers' `cost` told, by which models are
        matched.
    """
    params = program.model.init(rng.stream(hypers.seed, "init"))
    n_params, told = sum(x.size for x in jax.tree.leaves(params)), cost.n_params(program.static)
    if n_params != told:
        raise ValueError(
            f"the model has {n_params} parameters, and the cost of its mixers says {told}"
        )
    opt = optim.init(params, program.static.optim)
    watch = Watch(jnp.float32(0), jnp.int32(0), jnp.int32(-1))
    return State(jnp.int32(0), params, opt, watch, empty_tally())


def empty_tally() -> Tally:
    """That of no steps."""
    return Tally(jnp.float32(0), jnp.float32(0), jnp.int32(0))


def train_step(
    program: Program, state: State, hypers: HyperArrays, constants: dict[str, jax.Array]
) -> tuple[State, dict[str, jax.Array]]:
    """One update on a fresh batch. A bad step is counted, and with `train.on_bad_step` = "ignore"
    its update and its part of the tally are left out.

    Returns:
      The next state, and scalars of the step: `loss` (nats or squared error) and `grad_norm`
        (before clipping).
    """
    # A run that starts from another one goes on in the same stream of batches.
    key = rng.stream(hypers.data_seed, "train", program.static.steps_before + state.step)
    batch = program.sample(key, constants, program.static.train.batch_size)

    def objective(params: Any) -> jax.Array:
        outputs, _ = program.model.apply(params, batch.inputs)
        return loss.mean_loss(loss.sums(outputs, batch, program.spec))

    value, grads = jax.value_and_grad(objective)(state.params)
    norm = optax.tree.norm(grads)
    params, opt = optim.update(
        grads,
        state.opt,
        state.params,
        state.step,
        lr=hypers.lr,
        weight_decay=hypers.weight_decay,
        optim=program.static.optim,
        n_steps=program.static.train.n_steps,
    )
    settings, watch = program.static.train, state.watch
    first_loss = jnp.where(state.step == 0, value, watch.first_loss)
    bad = ~(jnp.isfinite(value) & jnp.isfinite(norm))
    if settings.explode:
        bad |= value > settings.explode * jnp.maximum(first_loss, 1.0)
    first_bad = jnp.where(bad & (watch.first_bad < 0), state.step, watch.first_bad)
    watch = Watch(first_loss, watch.n_bad + bad, first_bad)
    tally = Tally(state.tally.loss + value, state.tally.grad_norm + norm, state.tally.n + 1)
    if settings.on_bad_step == "ignore":
        before = (state.params, state.opt, state.tally)
        params, opt, tally = jax.tree.map(
            lambda old, new: jnp.where(bad, old, new), before, (params, opt, tally)
        )
    return State(state.step + 1, params, opt, watch, tally), {"loss": value, "grad_norm": norm}


def train_chunk(
    program: Program,
    state: State,
    hypers: HyperArrays,
    constants: dict[str, jax.Array],
    n: jax.typing.ArrayLike,
) -> State:
    """`n` updates in one dispatch. `n` is traced, so every chunk length is the same program.

    Returns:
      The state after them.
    """

    def body(_: jax.Array, state: State) -> State:
        return train_step(program, state, hypers, constants)[0]

    return jax.lax.fori_loop(0, n, body, state)

"""`model.compute_dtype=bfloat16` rounds the factors of products. Parameters, the optimizer's state
and every softmax are float32, in every kind of attention."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from synthetic import static

from mha_jax import loss, rng, train

KINDS: dict[str, dict[str, Any]] = {
    "grouped": {"n_kv_heads": 2, "positions": "rope", "norm": "rms", "residual": True, "d_ff": 16},
    "switches": {"qk_norm": True, "gate": True, "sink_logit": True, "bias": True, "window": 9},
    "shared": {"share": "kv", "positions": "rope"},
    "int8": {"kv_quant": "int8", "n_kv_heads": 2},
    "gta": {"mixer": "gta", "n_kv_heads": 2, "positions": "rope"},
    "mla": {"mixer": "mla", "n_kv_heads": 1, "d_latent": 16, "d_rope": 4, "positions": "rope"},
    "gla": {"mixer": "mla", "n_kv_heads": 2, "d_latent": 16, "sink_logit": True},
}
KERNELS = [
    (name, k) for name in KINDS for k in ("fast", "reference") if (name, k) != ("int8", "fast")
]
HYPERS = train.HyperArrays(0, 0, 1e-3, 0.0)


def program_of(
    name: str, kernel: str = "auto", dtype: str = "bfloat16", task: str = "induction", **params: Any
) -> train.Program:
    model = {"d_model": 32, "compute_dtype": dtype, "kernel": kernel, **KINDS[name]}
    return train.Program.of(static(task, 4, d_head=8, n_layers=2, model=model, **params))


def step_of(program: train.Program) -> tuple[Any, Any]:
    """A training step and its arguments, by their shapes."""
    constants = program.static.task.constants("train")
    state = jax.eval_shape(lambda: train.init(program, HYPERS))
    return lambda state: train.train_step(program, state, HYPERS, constants), state


def equations(jaxpr: Any) -> Iterator[Any]:
    """Every equation, those of inner jaxprs too."""
    for eqn in jaxpr.eqns:
        yield eqn
        for value in eqn.params.values():
            for inner in value if isinstance(value, (tuple, list)) else (value,):
                inner = getattr(inner, "jaxpr", inner)
                if hasattr(inner, "eqns"):
                    yield from equations(inner)


def dtypes_of(jaxpr: Any, primitive: str) -> set[str]:
    """Dtypes that a primitive's inputs have."""
    return {
        var.aval.dtype.name
        for eqn in equations(jaxpr)
        if eqn.primitive.name == primitive
        for var in eqn.invars
    }


@pytest.mark.parametrize("name, kernel", KERNELS)
def test_softmax_and_master_weights_stay_float32(name: str, kernel: str) -> None:
    step, state = step_of(program_of(name, kernel))
    after, scalars = jax.eval_shape(step, state)
    for tree in (state, after, scalars):
        floats = [x for x in jax.tree.leaves(tree) if jnp.issubdtype(x.dtype, jnp.floating)]
        assert floats and {x.dtype.name for x in floats} == {"float32"}
    jaxpr = jax.make_jaxpr(step)(state).jaxpr
    assert "bfloat16" in dtypes_of(jaxpr, "dot_general")
    assert dtypes_of(jaxpr, "exp") == dtypes_of(jaxpr, "reduce_max") == {"float32"}


@pytest.mark.parametrize("length", [12, 600])  # the forms of `fast` for short and long sequences
def test_so_it_is_in_short_and_long_sequences(length: int) -> None:
    step, state = step_of(program_of("grouped", "fast", task="needle", length=length))
    jaxpr = jax.make_jaxpr(step)(state).jaxpr
    assert "bfloat16" in dtypes_of(jaxpr, "dot_general")
    assert dtypes_of(jaxpr, "exp") == {"float32"}


@pytest.mark.parametrize("name", KINDS)
def test_gradients_are_close_to_those_of_float32(name: str) -> None:
    grads = []
    for dtype in ("float32", "bfloat16"):
        program = program_of(name, dtype=dtype)
        constants = program.static.task.constants("train")
        batch = program.sample(rng.stream(0, "train", 0), constants, 16)

        def objective(params: Any, program: Any = program, batch: Any = batch) -> jax.Array:
            outputs, _ = program.model.apply(params, batch.inputs)
            return loss.mean_loss(loss.sums(outputs, batch, program.spec))

        grad = jax.jit(jax.grad(objective))(train.init(program, HYPERS).params)
        grads.append(np.concatenate([np.ravel(x) for x in jax.tree.leaves(grad)]))
    error = np.linalg.norm(grads[1] - grads[0]) / np.linalg.norm(grads[0])
    # A product rounds its factors to 2^-9, 0.2 %, and about twenty stand behind one another from
    # the inputs to a gradient. Their errors are independent: sqrt(20) * 0.2 % is 1 %, and 0.5 to
    # 1 % was seen.
    assert 0 < error < 0.03

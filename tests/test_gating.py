"""L0 gates trained on a model whose heads are known to be needed, or not, by construction."""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mha_jax import gating, held_out, loss, rng
from mha_jax.analysis import gates
from mha_jax.gating import Recipe
from tests.solved import program_of

# A gate needs 49 steps from where it starts to where it is shut, if all of them agree.
RECIPE = Recipe("n", n_steps=100, lr=0.0, gate_lr=0.1)
KV = Recipe("k", n_steps=100, lr=0.0, gate_lr=0.1)


@functools.cache
def swept(
    recipe: Recipe, lams: tuple[float, ...], n_kv_heads: int | None = None, useless: Any = ()
) -> list[gating.Gated]:
    program, params = program_of(n_kv_heads, useless)
    measure = held_out.measure(program, {})
    return gating.sweep(program, params, {}, lams, recipe, measure)


def test_gates_of_a_good_model_stay_open_where_heads_are_free() -> None:
    (one,) = swept(RECIPE, (0.0,))
    np.testing.assert_array_equal(one.gates[0], np.ones(4))
    assert one.n_open == 4 and not one.closed
    assert (one.open_probability[0] > 0.9).all()


def test_every_gate_closes_where_heads_are_dear() -> None:
    (one,) = swept(RECIPE, (100.0,))
    assert one.n_open == 0 and [str(head) for head in one.closed] == [
        *("l0.n0", "l0.n1", "l0.n2", "l0.n3")
    ]
    assert (one.open_probability[0] < 0.2).all()
    assert one.metrics["loss"] == pytest.approx(math.log(16), abs=1e-5)  # nothing is known


@pytest.mark.parametrize("useless", [0, 2])
def test_the_head_that_nothing_reads_closes_first(useless: int) -> None:
    """Its price is all that its gate feels; the others feel what they are worth, above .1 nats."""
    free, cheap = swept(RECIPE, (0.0, 0.01), useless=(useless,))
    assert free.n_open == 4
    assert [str(head) for head in cheap.closed] == [f"l0.n{useless}"]
    assert cheap.open_probability[0].argmin() == useless


def test_a_group_closes_as_one() -> None:
    """Heads 2 and 3 share kv head 1. One of them alone keeps the group open."""
    (one,) = swept(KV, (0.01,), 2, (2, 3))
    assert [str(head) for head in one.closed] == ["l0.k1"] and one.gates[0].shape == (2,)
    np.testing.assert_array_equal(one.head_mask[0], [1, 1, 0, 0])
    (half,) = swept(KV, (0.01,), 2, (3,))
    assert half.n_open == 2


@pytest.mark.parametrize("recipe", [RECIPE, KV])
def test_what_is_held_out_is_the_model_under_its_gates(recipe: Recipe) -> None:
    """On the test draw, batch by batch, with the mask as an argument of the model."""
    (one,) = swept(recipe, (0.01,), 2, (2, 3))
    program, params = program_of(2, (2, 3))
    draw = rng.stream(program.static.task.seed, "test")
    batch = program.sample(jax.random.fold_in(draw, 0), {}, 64)
    rest = program.sample(jax.random.fold_in(draw, 1), {}, 64)
    total: dict[str, Any] = {}
    for each in (batch, rest):
        name = "head_mask" if recipe.of == "n" else "kv_mask"
        outputs, _ = program.model.apply(params, each.inputs, **{name: one.gates})
        sums = loss.sums(outputs, each, program.spec)
        total = {key: total.get(key, 0) + value for key, value in sums.items()}
    want = loss.metrics(total, program.spec)
    assert one.metrics["loss"] == pytest.approx(want["loss"], rel=1e-5)
    assert one.metrics["accuracy"] == pytest.approx(want["accuracy"], abs=1e-6)
    assert want["accuracy"] < 0.9


def test_a_sweep_compiles_once(monkeypatch: pytest.MonkeyPatch) -> None:
    traces = []
    real = gates.sample
    monkeypatch.setattr(gates, "sample", lambda *args: traces.append(args) or real(*args))
    program, params = program_of()
    recipe = Recipe("n", n_steps=2, lr=1e-3, gate_lr=0.1)

    def n_traces(*lams: float) -> int:
        traces.clear()
        gating.sweep(program, params, {}, lams, recipe, lambda params, masks: {})
        return len(traces)

    once = n_traces(0.1)
    assert once > 0 and n_traces(0.0, 0.1, 7.0) == once


def test_the_first_step_is_one_of_adam_down_the_price() -> None:
    (one,) = swept(Recipe("n", n_steps=1, lr=0.0, gate_lr=0.5), (1e4,))
    log_alpha = gating.OPEN - 0.5
    want = 1 / (1 + math.exp(-log_alpha + 0.33 * math.log(0.1 / 1.1)))
    np.testing.assert_allclose(one.open_probability[0], want, rtol=1e-4)


def test_parameters_stay_or_are_trained() -> None:
    _, params = program_of()
    (frozen,) = swept(RECIPE, (0.0,))
    jax.tree.map(np.testing.assert_array_equal, frozen.params, params)
    (trained,) = swept(Recipe("n", n_steps=5, lr=1e-3, gate_lr=0.1), (0.0,))
    moved = jax.tree.map(lambda a, b: float(jnp.abs(a - b).max()), trained.params, params)
    assert max(jax.tree.leaves(moved)) > 1e-4


def test_it_is_a_function_of_its_seed() -> None:
    first, second, other = (of_seed(seed).open_probability[0] for seed in (3, 3, 4))
    np.testing.assert_array_equal(first, second)
    assert (first != other).any()


def of_seed(seed: int) -> gating.Gated:
    program, params = program_of()
    recipe = Recipe("n", n_steps=30, lr=1e-3, gate_lr=0.1, seed=seed)
    (one,) = gating.sweep(program, params, {}, [0.3], recipe, lambda params, masks: {})
    return one


def test_lambdas_are_multiples_of_what_a_head_is_worth() -> None:
    program, params = program_of(2)
    measure = held_out.measure(program, {}, "validation")
    layers = program.static.model.layers
    rise = measure(params, [np.zeros(4)])["loss"] - measure(params, [np.ones(4)])["loss"]
    assert rise > 1
    for of, count in (("n", 4), ("k", 2)):
        found = gating.lambdas(measure, params, layers, of)
        np.testing.assert_allclose(found, [m * rise / count for m in gating.MULTIPLES])
    needless = gating.lambdas(lambda params, masks: {"loss": 1.0}, params, layers, "n")
    np.testing.assert_allclose(needless, [m * 1e-6 / 4 for m in gating.MULTIPLES])


def test_progress_is_told() -> None:
    lines: list[str] = []
    program, params = program_of()
    recipe = Recipe("n", n_steps=60, lr=0.0, gate_lr=0.1)
    gating.sweep(program, params, {}, [1.0, 2.0], recipe, lambda params, masks: {}, lines.append)
    assert lines[0] == "gates, lambda 1 (1/2): step 0/60, 3.9 open"
    assert [line.split(",")[1] for line in lines[1:]] == [
        *(" lambda 1 (1/2): step 50/60", " lambda 2 (2/2): step 0/60"),
        " lambda 2 (2/2): step 50/60",
    ]


def test_bad_arguments_have_one_clear_line() -> None:
    program, params = program_of()
    broken = jax.tree.map(lambda x: x * jnp.nan, params)
    for tree, lams, lr, text in (
        (params, [-1.0], 0.0, "lambdas and learning rates must not be negative"),
        (params, [1.0], -1.0, "lambdas and learning rates must not be negative"),
        (broken, [1.0], 0.0, "the gates of lambda 1 diverged; lower the learning rates"),
    ):
        recipe = Recipe("n", n_steps=2, lr=lr, gate_lr=0.1)
        with pytest.raises(ValueError) as error:
            gating.sweep(program, tree, {}, lams, recipe, lambda params, masks: {})
        assert text in str(error.value) and "\n" not in str(error.value)

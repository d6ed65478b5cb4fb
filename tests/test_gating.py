"""L0 gates trained on a model whose heads are known to be needed, or not, by construction."""

import dataclasses
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


@pytest.mark.parametrize("of", ["n", "k"])
def test_what_is_held_out_is_the_model_under_its_gates(of: str) -> None:
    """On the test draw, one batch here, with the gates as an argument of the model."""
    useless = (2, 3)
    n_kv_heads = 2 if of == "k" else None
    (one,) = swept(KV if of == "k" else RECIPE, (0.01,), n_kv_heads, useless)
    program, params = program_of(n_kv_heads, useless)
    draw = rng.stream(program.static.task.seed, "test")
    batch = program.sample(jax.random.fold_in(draw, 0), {}, 128)
    masks: Any = {"kv_mask" if of == "k" else "head_mask": one.gates}
    outputs, _ = program.model.apply(params, batch.inputs, **masks)
    total = loss.metrics(loss.sums(outputs, batch, program.spec), program.spec)
    assert one.metrics["loss"] == pytest.approx(total["loss"], rel=1e-5)
    assert one.metrics["accuracy"] == pytest.approx(total["accuracy"], abs=1e-6)
    assert total["accuracy"] < 0.9


def test_a_sweep_compiles_once(monkeypatch: pytest.MonkeyPatch) -> None:
    traces = []
    real = gates.sample
    monkeypatch.setattr(gates, "sample", lambda *args: traces.append(args) or real(*args))
    program, params = program_of()

    def n_traces(lams: tuple[float, ...], seed: int, lr: float, rate: float) -> int:
        traces.clear()
        recipe = Recipe("n", n_steps=3, lr=lr, gate_lr=rate, seed=seed)
        gating.sweep(program, params, {}, lams, recipe, no_metrics)
        return len(traces)

    assert n_traces((0.1,), 0, 0.0, 0.1) > 0
    assert n_traces((0.0, 0.3, 7.0), 5, 1e-3, 0.2) == 0


def test_the_first_steps_are_those_of_adam_down_the_price() -> None:
    """The gradient of a high price is nearly the same twice: two steps of the whole rate."""
    program, params = program_of()
    recipe = Recipe("n", n_steps=3, lr=0.0, gate_lr=0.01)
    (one,) = gating.sweep(program, params, {}, [1e4], recipe, no_metrics)
    p = np.float64(one.open_probability[0])
    log_alpha = np.log(p / (1 - p)) + 0.33 * math.log(0.1 / 1.1)
    np.testing.assert_allclose(log_alpha - gating.OPEN, -0.03, rtol=0.05)


def test_parameters_stay_or_are_trained() -> None:
    _, params = program_of()
    (frozen,) = swept(RECIPE, (0.0,))
    jax.tree.map(np.testing.assert_array_equal, frozen.params, params)
    (trained,) = swept(dataclasses.replace(RECIPE, lr=1e-3), (0.0,))
    moved = jax.tree.map(lambda a, b: float(jnp.abs(a - b).max()), trained.params, params)
    assert max(jax.tree.leaves(moved)) > 1e-4


def test_it_is_a_function_of_its_seed() -> None:
    first, second, other = (of_seed(seed).open_probability[0] for seed in (3, 3, 4))
    np.testing.assert_array_equal(first, second)
    assert (first != other).any()


def of_seed(seed: int) -> gating.Gated:
    program, params = program_of()
    recipe = dataclasses.replace(RECIPE, lr=1e-3, seed=seed)
    (one,) = gating.sweep(program, params, {}, [0.3], recipe, no_metrics)
    return one


def no_metrics(params: Any, head_mask: Any) -> dict[str, float]:
    return {}


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
    gating.sweep(program, params, {}, [1.0, 2.0], RECIPE, no_metrics, lines.append)
    assert lines[0] == "gates, lambda 1 (1/2): step 0/100, 3.9 open"
    assert [line.split(",")[1] for line in lines[1:]] == [
        *(" lambda 1 (1/2): step 50/100", " lambda 2 (2/2): step 0/100"),
        " lambda 2 (2/2): step 50/100",
    ]


def test_bad_arguments_have_one_clear_line() -> None:
    program, params = program_of()
    broken = jax.tree.map(lambda x: x * jnp.nan, params)
    for tree, lams, lr, text in (
        (params, [-1.0], 0.0, "lambdas and learning rates must not be negative"),
        (params, [1.0], -1.0, "lambdas and learning rates must not be negative"),
        (broken, [1.0], 0.0, "the gates of lambda 1 diverged; lower the learning rates"),
    ):
        recipe = Recipe("n", n_steps=3, lr=lr, gate_lr=0.1)
        with pytest.raises(ValueError) as error:
            gating.sweep(program, tree, {}, lams, recipe, no_metrics)
        assert text in str(error.value) and "\n" not in str(error.value)

"""The smaller model against the whole one with masked heads, on random parameters."""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mha_jax import cost
from mha_jax.analysis import pruning, removal
from mha_jax.model import build
from tests.shapes import LAYER, model_of, spec_of

TOKENS = jax.random.randint(jax.random.key(1), (2, 6), 0, 11)


def model_with(*sizes: tuple[int, int, int], **changes):
    """A model of layers of (n, k, h)."""
    like = {name: changes.pop(name) for name in ("d_ff",) if name in changes}
    layers = tuple(
        dataclasses.replace(LAYER, n_heads=n, n_kv_heads=k, d_head=h, **like) for n, k, h in sizes
    )
    return dataclasses.replace(model_of(**changes), layers=layers)


@functools.cache
def drawn(model):
    """Random parameters, biases and scales too, which start as constants."""
    shapes = jax.eval_shape(build(model, spec_of()).init, jax.random.key(0))
    rng = np.random.default_rng(0)
    return jax.tree.map(lambda x: np.float32(0.5 * rng.normal(size=x.shape)), shapes)


def keep_masks(keep, model) -> list[jax.Array]:
    return [
        jnp.array([1.0 if head in kept else 0.0 for head in range(layer.n_heads)])
        for kept, layer in zip(keep, model.layers, strict=True)
    ]


CASES = {
    "MHA": (
        model_with((4, 4, 4), (4, 4, 4), residual=True, d_ff=8, norm="layer", bias=True),
        [[3, 0, 2], [1]],
    ),
    "whole groups, and one of each": (
        model_with((6, 3, 4), (6, 3, 4), bias=True, gate=True, qk_norm=True, positions="rope"),
        [[0, 1, 4, 5], [1, 2, 5]],
    ),
    "two of one group, beside another shape": (
        model_with((6, 2, 4), (5, 5, 2), (2, 1, 4), residual=True, bias=True, scale=False),
        [[3, 5], [0, 1, 4], [0, 1]],
    ),
    "MQA": (
        model_with((4, 1, 3), bias=True, gate=True, qk_from="positions", kernel="reference"),
        [[1, 3]],
    ),
    "share kv": (model_with((6, 3, 4), share="kv", bias=True), [[0, 4]]),
    "share qk": (model_with((4, 4, 4), share="qk", bias=True, qk_norm=True), [[0, 2]]),
    "share qkv": (model_with((4, 4, 4), share="qkv", bias=True), [[1, 3]]),
}


@pytest.mark.parametrize("name", CASES)
def test_it_is_the_masked_model(name: str, assert_close) -> None:
    model, keep = CASES[name]
    params = drawn(model)
    smaller_params, smaller = removal.remove(params, model, keep)

    @jax.jit
    def outputs(params, smaller_params):
        whole = build(model, spec_of())
        return (
            whole.apply(params, TOKENS)[0],
            whole.apply(params, TOKENS, head_mask=keep_masks(keep, model))[0],
            build(smaller, spec_of()).apply(smaller_params, TOKENS)[0],
        )

    complete, masked, removed = outputs(params, smaller_params)
    scale = float(jnp.abs(masked).max())
    assert_close(removed / scale, masked / scale)
    assert float(jnp.abs(complete - masked).max()) > 0.01 * scale  # the heads did something

    # A model of that description has such parameters, and the cache that the mask promised.
    fresh = jax.eval_shape(build(smaller, spec_of()).init, jax.random.key(0))
    assert jax.tree.map(jnp.shape, smaller_params) == jax.tree.map(jnp.shape, fresh)
    of_head = cost.kv_head_bytes_per_token(model, 6)
    promised = pruning.kv_bytes_per_token(keep_masks(keep, model), model.layers, of_head)
    assert cost.kv_bytes_per_token(smaller, 6) == promised
    assert [layer.n_heads for layer in smaller.layers] == [len(kept) for kept in keep]


def test_gates_between_0_and_1_go_into_wo(assert_close) -> None:
    model, _ = CASES["MHA"]
    gates = [jnp.array([0.0, 0.4, 1.0, 0.7]), jnp.array([0.2, 0.0, 0.0, 0.9])]
    keep = [np.flatnonzero(gate) for gate in gates]
    params = drawn(model)
    smaller_params, smaller = removal.remove(removal.absorb(params, gates), model, keep)

    @jax.jit
    def outputs(params, smaller_params):
        return (
            build(model, spec_of()).apply(params, TOKENS, head_mask=gates)[0],
            build(smaller, spec_of()).apply(smaller_params, TOKENS)[0],
        )

    gated, removed = outputs(params, smaller_params)
    scale = float(jnp.abs(gated).max())
    assert_close(removed / scale, gated / scale)


def test_nothing_else_changes() -> None:
    model, keep = CASES["whole groups, and one of each"]
    params = drawn(model)
    before = jax.tree.map(np.copy, params)
    same_params, same = removal.remove(params, model, [range(6), range(6)])
    assert same == model
    smaller_params, smaller = removal.remove(params, model, [range(6), keep[1]])
    for got in (params, same_params):
        jax.tree.map(np.testing.assert_array_equal, got, before)
    assert smaller.layers[0] == model.layers[0]
    for name in ("bo", "q_norm", "k_norm"):
        got = smaller_params["layers"]["1"]["mixer"][name]
        np.testing.assert_array_equal(got, params["layers"]["1"]["mixer"][name])
    # In two steps as in one.
    step = removal.remove(params, model, [[0, 1, 4, 5], range(6)])
    twice = removal.remove(*step, [[1, 3], [1, 2, 5]])
    once = removal.remove(params, model, [[1, 5], [1, 2, 5]])
    assert twice[1] == once[1]
    jax.tree.map(np.testing.assert_array_equal, twice[0], once[0])


def test_a_layer_of_another_mixer_stays_as_it_is() -> None:
    other = dataclasses.replace(LAYER, mixer="mine.py@0123456789")
    model = dataclasses.replace(model_of(), layers=(other, LAYER))
    params = drawn(model_of(2))
    smaller_params, smaller = removal.remove(params, model, [range(4), [2]])
    assert smaller.layers[0] == other and smaller.layers[1].n_heads == 1
    assert smaller_params["layers"]["0"] is params["layers"]["0"]


GQA = model_with((4, 2, 4), (4, 2, 4))
IMPORTANCE = [np.array([0.3, 0.1, 0.2, 0.9]), np.array([5.0, 8, 7, 6])]


def test_positions_follow_an_order_and_leave_each_layer_one() -> None:
    order = pruning.order(IMPORTANCE)
    assert removal.positions(order, 8, GQA.layers) == [[0, 1, 2, 3], [0, 1, 2, 3]]
    assert removal.positions(order, 5, GQA.layers) == [[3], [0, 1, 2, 3]]
    # l0.n3 would be next.
    assert removal.positions(order, 4, GQA.layers) == [[3], [1, 2, 3]]
    assert removal.positions(order, 2, GQA.layers) == [[3], [1]]
    groups = pruning.order(pruning.of_groups(IMPORTANCE, GQA.layers), "k")
    found = [removal.positions(groups, keep, GQA.layers) for keep in (4, 3, 2)]
    assert found == [
        [[0, 1, 2, 3], [0, 1, 2, 3]],
        [[2, 3], [0, 1, 2, 3]],
        [[2, 3], [2, 3]],  # 5 + 8 = 7 + 6: the first goes
    ]
    for keep in found:
        removal.remove(drawn(GQA), GQA, keep)
    for keep in (1, 9):
        with pytest.raises(
            ValueError, match=rf"^keep={keep} must be 2 \(one for each layer\) to 8$"
        ):
            removal.positions(order, keep, GQA.layers)


@pytest.mark.parametrize("n_kv_heads, per_group", [(1, 1), (2, 1), (1, 2), (2, 2), (3, 1), (2, 3)])
def test_even_sets_are_the_best_of_their_shape(n_kv_heads: int, per_group: int) -> None:
    model = model_with((9, 3, 2), (9, 3, 2))
    importance = list(np.random.default_rng(per_group).normal(size=(2, 9)))
    keep = removal.even(importance, model.layers, n_kv_heads, per_group)
    _, smaller = removal.remove(drawn(model), model, keep)
    for layer in range(2):
        made = smaller.layers[layer]
        assert (made.n_kv_heads, made.queries_per_kv) == (n_kv_heads, per_group)
        sums = {}
        for heads in itertools.combinations(range(9), n_kv_heads * per_group):
            counts = [sum(head // 3 == j for head in heads) for j in range(3)]
            if set(counts) <= {0, per_group}:
                sums[heads] = importance[layer][list(heads)].sum()
        assert tuple(keep[layer]) == max(sums, key=sums.get)


def test_what_cannot_go_is_refused_in_one_line() -> None:
    every = range(4)
    bare = model_with((4, 4, 4), use_wo=False)
    mine = model_of(mixer="mine.py@0123456789")
    even = removal.even
    for call, text in (
        (lambda: removal.remove(drawn(GQA), GQA, [[0, 1, 2], every]), "keep [2, 1] of 2 query"),
        (lambda: removal.remove(drawn(GQA), GQA, [[0, 1, 2], every]), "keep equally many in each"),
        (lambda: removal.remove(drawn(GQA), GQA, [every, []]), "layer 1 would lose all its heads"),
        (lambda: removal.remove(drawn(GQA), GQA, [every, [0, 4]]), "must name heads of 0..3"),
        (lambda: removal.remove(drawn(GQA), GQA, [every, [1, 1]]), "keep=[1, 1] must name heads"),
        (lambda: removal.remove(drawn(GQA), GQA, [every, [-1]]), "must name heads of 0..3"),
        (lambda: removal.remove(drawn(GQA), GQA, [every]), "keep has 1 entries, the model has 2"),
        (lambda: removal.remove(drawn(bare), bare, [[0]]), "layer 0: without a wo what follows"),
        (lambda: removal.remove(drawn(GQA), mine, [[0]]), "layer 0: heads of the mixer 'mine.py@"),
        (lambda: removal.absorb(drawn(bare), [np.ones(4)]), "layer 0 has no wo that could take"),
        (lambda: even(IMPORTANCE, GQA.layers, 3, 1), "n_kv_heads=3 must be 1 to 2 and per_group=1"),
        (lambda: even(IMPORTANCE, GQA.layers, 1, 0), "layer 0 has 2 kv heads of 2 query heads"),
    ):
        with pytest.raises(ValueError) as error:
            call()
        assert text in str(error.value) and "\n" not in str(error.value)

"""Orders, masks and curves of pruning against loops, brute force and the model itself."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mha_jax.analysis import ablation, pruning
from mha_jax.analysis.pruning import Head
from mha_jax.model import build
from tests.shapes import LAYER, model_of, spec_of

GQA = model_of(2, n_kv_heads=2, residual=True)  # 4 query heads of width 4, 2 to a kv head
IMPORTANCE = [np.array([0.3, 0.1, 0.2, 0.9]), np.array([0.2, 0.8, 0.1, 0.5])]


def test_the_least_important_head_goes_first() -> None:
    left = {(layer, head): IMPORTANCE[layer][head] for layer in range(2) for head in range(4)}
    want = []
    while left:  # the smallest one again and again; the first position of equal ones
        least = min(left.values())
        want.append(next(place for place in sorted(left) if left[place] == least))
        del left[want[-1]]
    found = pruning.order(IMPORTANCE)
    assert [(head.layer, head.head) for head in found] == want
    assert [str(head) for head in found[:3]] == ["l0.n1", "l1.n2", "l0.n2"]
    assert pruning.order([np.zeros(0), np.array([1.0, -1.0])], "k") == [
        Head(1, "k", 1),
        Head(1, "k", 0),
    ]


def test_ties_go_by_position() -> None:
    assert [str(head) for head in pruning.order([np.zeros(2), np.zeros(1)])] == [
        "l0.n0",
        "l0.n1",
        "l1.n0",
    ]


def test_the_random_order_is_one() -> None:
    orders = [pruning.random_order([1, 0, 2], seed) for seed in range(600)]
    assert orders[3] == pruning.random_order([1, 0, 2], 3)
    everyone = pruning.order([np.zeros(1), np.zeros(0), np.zeros(2)])
    assert all(sorted(each) == everyone for each in orders)
    for place in range(3):
        first = sum(each[place] == Head(2, "n", 0) for each in orders)
        assert abs(first / 600 - 1 / 3) < 0.1  # five standard deviations
    assert {head.of for head in pruning.random_order([2], 0, "k")} == {"k"}


def test_a_group_is_worth_its_heads() -> None:
    found = pruning.of_groups([*IMPORTANCE, np.zeros(0)], (*GQA.layers, LAYER))
    np.testing.assert_allclose(found[0], [0.3 + 0.1, 0.2 + 0.9])
    np.testing.assert_allclose(found[1], [0.2 + 0.8, 0.1 + 0.5])
    assert found[2].size == 0
    assert [str(h) for h in pruning.order(found, "k")] == ["l0.k0", "l1.k1", "l1.k0", "l0.k1"]


def test_masks_lack_what_is_gone() -> None:
    gone = [Head(1, "n", 3), Head(0, "k", 1)]
    first, second = pruning.masks(gone, GQA.layers)
    assert first.dtype == np.float32
    np.testing.assert_array_equal(first, [1, 1, 0, 0])
    np.testing.assert_array_equal(second, [1, 1, 1, 0])
    order = pruning.order(IMPORTANCE)
    steps = pruning.curve_masks(order, GQA.layers)
    for m in range(len(order) + 1):
        for layer in range(2):
            want = [Head(layer, "n", n) not in order[:m] for n in range(4)]
            np.testing.assert_array_equal(steps[layer][m], want)
            np.testing.assert_array_equal(pruning.masks(order[:m], GQA.layers)[layer], want)


@pytest.mark.parametrize(
    "head", [Head(2, "n", 0), Head(0, "n", 4), Head(0, "k", 2), Head(-1, "n", 0)]
)
def test_a_head_that_is_not_there_is_refused(head: Head) -> None:
    with pytest.raises(ValueError, match=f"^{head} is not in the model") as error:
        pruning.masks([head], GQA.layers)
    assert "\n" not in str(error.value)


def test_a_query_head_frees_no_cache_unless_its_group_goes() -> None:
    def after(*heads: Head, model=GQA) -> int:
        of_head = [2 * layer.d_head * 4 for layer in model.layers]
        masks = pruning.masks(heads, model.layers)
        return int(pruning.kv_bytes_per_token(masks, model.layers, of_head))

    one = 2 * 4 * 4  # a key and a value of 4 numbers of 4 bytes
    assert after() == 4 * one
    assert after(Head(0, "n", 0)) == after(Head(0, "n", 0), Head(1, "n", 1)) == 4 * one
    assert after(Head(0, "n", 0), Head(0, "n", 1)) == after(Head(0, "k", 0)) == 3 * one
    assert after(Head(0, "n", 1), Head(0, "n", 2)) == 4 * one  # of two groups
    assert after(Head(0, "n", 1), model=model_of(2)) == 7 * one
    wide = dataclasses.replace(GQA, layers=(GQA.layers[0], dataclasses.replace(LAYER, d_head=8)))
    assert after(Head(1, "n", 1), model=wide) == 2 * one + 3 * 2 * one

    steps = pruning.curve_masks(pruning.order(IMPORTANCE), GQA.layers)
    bytes_m = pruning.kv_bytes_per_token(steps, GQA.layers, [one, one])
    # Gone: n1 n2(l1) n2 n0(l1) n0: group 0 of layer 0; n3(l1): group 1 of layer 1; ...
    np.testing.assert_array_equal(bytes_m, one * np.array([4, 4, 4, 4, 4, 3, 2, 1, 0]))
    kept = pruning.kept_kv_heads([np.array([0.0, 0.2, 0, 0])], GQA.layers[:1])
    np.testing.assert_array_equal(kept[0], [True, False])


MODEL = build(GQA, spec_of())
PARAMS = MODEL.init(jax.random.key(0))
TOKENS = jax.random.randint(jax.random.key(1), (3, 6), 0, 11)


def losses(**changes):
    return jnp.square(MODEL.apply(PARAMS, TOKENS, **changes)[0]).mean((1, 2, 3))


@functools.cache
def program():
    return jax.jit(lambda masks: pruning.curve(losses, masks))


@functools.cache
def one():
    return jax.jit(lambda head_mask, kv_mask: losses(head_mask=head_mask, kv_mask=kv_mask))


def ones(n: int) -> list[np.ndarray]:
    return [np.ones(n, np.float32)] * 2


def test_a_curve_is_one_pruned_model_after_the_other(assert_close) -> None:
    order = pruning.order(IMPORTANCE)
    found = program()(pruning.curve_masks(order, GQA.layers))
    assert found.shape == (9, 3)
    for m in (0, 1, 2, 5, 8):
        masks = ones(4)
        for head in order[:m]:
            masks[head.layer] = np.where(np.arange(4) == head.head, 0, masks[head.layer])
        assert_close(found[m], one()([np.float32(mask) for mask in masks], ones(2)))
    assert np.ptp(found, axis=0).min() > 1e-3


def test_the_curve_of_groups_is_that_of_their_kv_heads(assert_close) -> None:
    order = pruning.order(pruning.of_groups(IMPORTANCE, GQA.layers), "k")
    found = program()(pruning.curve_masks([*order, *order], GQA.layers))  # of nine masks again
    for m in range(5):
        masks = ones(2)
        for head in order[:m]:
            masks[head.layer] = np.where(np.arange(2) == head.head, 0, masks[head.layer])
        assert_close(found[m], one()(ones(4), [np.float32(mask) for mask in masks]))


def test_a_gate_of_a_kv_head_is_one_of_each_of_its_query_heads(assert_close) -> None:
    kv = [np.array([0.3, 1], np.float32), np.array([0, 0.6], np.float32)]
    heads = [np.float32([0.3, 0.3, 1, 1]), np.float32([0, 0, 0.6, 0.6])]
    assert_close(one()(ones(4), kv), one()(heads, ones(2)))
    assert np.abs(one()(heads, ones(2)) - one()(ones(4), ones(2))).max() > 1e-3


def test_a_pruned_model_is_judged_without_what_is_gone(assert_close) -> None:
    """On a loss in closed form, (c . mask)^2 of each sequence: its gradient is 2 c (c . mask)."""
    c = np.random.default_rng(0).normal(size=(3, 4))

    def square(*, head_mask=None, kv_mask=None, replace=None):
        assert (kv_mask, replace) == (None, None)
        (mask,) = [jnp.ones(4)] if head_mask is None else head_mask
        return jnp.square((jnp.float32(c) * jnp.broadcast_to(mask, (3, 4))).sum(1))

    gone = np.array([1, 0, 1, 0.5], np.float32)
    pruned = pruning.masked(square, [gone])
    assert_close(pruned(), (c @ gone) ** 2)
    assert_close(pruned(head_mask=[jnp.array([0.0, 1, 1, 1])]), (c[:, 1:] @ gone[1:]) ** 2)
    (found,) = ablation.gradient_importance(pruned, 3, [4])
    assert_close(found, np.abs(2 * c * gone * (c @ gone)[:, None]))
    assert (found[:, 1] == 0).all()

    told = pruning.masked(lambda **changes: changes, [gone])(kv_mask="kv", replace="stops")
    assert told["kv_mask"] == "kv" and told["replace"] == "stops"


def test_the_heads_of_a_pruned_model_are_left_out_one_by_one(assert_close) -> None:
    masks = pruning.masks([Head(0, "n", 1), Head(1, "k", 1)], GQA.layers)

    @jax.jit
    def rises():
        _, stops = MODEL.apply(PARAMS, TOKENS, probe=lambda stops: stops, head_mask=masks)
        return ablation.leave_one_out(pruning.masked(losses, masks), stops, "zero")

    found = rises()
    for layer in range(2):
        for head in range(4):
            fewer = list(masks)
            fewer[layer] = masks[layer] * (np.arange(4) != head)
            want = one()([np.float32(x) for x in fewer], ones(2)) - one()(masks, ones(2))
            assert_close(found[layer][:, head], want)
    gone = np.concatenate([found[0][:, 1:2], found[1][:, 2:]], axis=1)
    assert_close(gone, np.zeros((3, 3)))
    assert np.abs(found[1][:, :2]).min() > 1e-3


def test_twins_go_one_after_the_other_only_where_they_are_judged_again() -> None:
    """Two heads that do the same thing are worth nothing each, until the other one is gone."""

    def importance(masks):
        twin = 0.0 if masks[0][0] and masks[0][1] else 9.0
        return [np.array([twin, twin + 0.1, 1, 2]), np.array([3.0, 4, 5, 6])]

    one_shot = pruning.order(importance(ones(4)))
    again = pruning.iterative(importance, GQA.layers, share=0.1)
    assert [str(head) for head in one_shot[:3]] == ["l0.n0", "l0.n1", "l0.n2"]
    assert [str(head) for head in again[:3]] == ["l0.n0", "l0.n2", "l0.n3"]
    assert str(again[-1]) == "l0.n1" and sorted(again) == sorted(one_shot)
    assert pruning.iterative(importance, GQA.layers, share=1) == one_shot


@pytest.mark.parametrize("share, steps", [(0.1, 8), (0.25, 4), (0.4, 3), (0.5, 2), (1.0, 1)])
def test_a_step_takes_its_share_of_all_heads(share: float, steps: int) -> None:
    seen = []

    def importance(masks):
        seen.append(int(sum(mask.sum() for mask in masks)))
        return IMPORTANCE

    assert pruning.iterative(importance, GQA.layers, share=share) == pruning.order(IMPORTANCE)
    step = max(1, round(8 * share))
    assert seen == [8 - step * i for i in range(steps)]


def test_groups_go_step_by_step_too() -> None:
    def importance(masks):
        left = [mask * x for mask, x in zip(masks, IMPORTANCE, strict=True)]
        return pruning.of_groups(left, GQA.layers)

    found = pruning.iterative(importance, GQA.layers, of="k")
    assert [str(head) for head in found] == ["l0.k0", "l1.k1", "l1.k0", "l0.k1"]


def test_bad_arguments_have_one_clear_line() -> None:
    for call, text in (
        (lambda: pruning.order([np.array([1, np.nan])]), "importance of layer 0 must be one num"),
        (lambda: pruning.order([np.ones((2, 2))]), "importance of layer 0 must be one number"),
        (lambda: pruning.order([np.ones(2)], "q"), "of='q' is not 'n', query heads, or 'k', kv"),
        (lambda: pruning.masks([Head(0, "z", 0)], GQA.layers), "of='z' is not 'n', query heads"),
        (lambda: pruning.iterative(lambda m: m, GQA.layers, share=0), "share=0 must be above 0"),
        (lambda: pruning.iterative(lambda m: m, GQA.layers, share=1.5), "share=1.5 must be above"),
    ):
        with pytest.raises(ValueError) as error:
            call()
        assert text in str(error.value) and "\n" not in str(error.value)

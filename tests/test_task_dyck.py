"""`dyck` against a stack, and its draw and baseline against all balanced strings."""

import collections

import jax
import numpy as np
import pytest

from mha_jax.tasks import dyck

sample = jax.jit(dyck.sample, static_argnums=(2, 3))

CONFIGS = [
    dyck.Config(12, 4, 4),
    dyck.Config(1, 1, 2),
    dyck.Config(6, 1, 3),
    dyck.Config(9, 100, 2),
    dyck.Config(40, 3, 5),
]


@pytest.mark.parametrize("cfg", CONFIGS)
def test_labels_agree_with_a_stack(cfg):
    batch = jax.tree.map(np.asarray, sample(jax.random.key(7), {}, cfg, 24))
    for b in range(24):
        tokens = batch.inputs[b].tolist()
        stack, deepest = [], 0
        for t, token in enumerate(tokens):
            if token < cfg.n_types:
                stack.append(t)
            else:
                assert tokens[stack.pop()] == token - cfg.n_types
            deepest = max(deepest, len(stack))
            # Of the last bracket, which is not in the inputs, only one closing is possible.
            closes = t + 1 == len(tokens) or tokens[t + 1] >= cfg.n_types
            assert batch.loss_mask[b, t, 0] == closes
            assert batch.pointers["opener"][b, t] == (stack[-1] if closes else -1)
            if closes:
                assert batch.targets[b, t, 0] == tokens[stack[-1]]
        assert len(stack) == 1
        assert deepest <= cfg.max_depth


def balanced(n_pairs, max_depth):
    """All balanced strings as tuples of +1 and -1."""

    def grow(string, depth):
        if len(string) == 2 * n_pairs:
            if depth == 0:
                yield string
            return
        if depth < max_depth:
            yield from grow((*string, 1), depth + 1)
        if depth > 0:
            yield from grow((*string, -1), depth - 1)

    return list(grow((), 0))


@pytest.mark.parametrize("n_pairs, max_depth", [(4, 4), (5, 2), (5, 3), (3, 9)])
def test_every_balanced_string_is_equally_likely(n_pairs, max_depth):
    n = 20000
    inputs = np.asarray(sample(jax.random.key(8), {}, dyck.Config(n_pairs, max_depth, 3), n).inputs)
    seen = collections.Counter(tuple(row) for row in np.where(inputs < 3, 1, -1).tolist())
    strings = balanced(n_pairs, max_depth)
    assert set(seen) == {string[:-1] for string in strings}
    p = 1 / len(strings)
    # Five standard deviations of a rate.
    np.testing.assert_allclose(
        np.array(list(seen.values())) / n, p, atol=5 * (p * (1 - p) / n) ** 0.5
    )


@pytest.mark.parametrize("n_pairs, max_depth", [(1, 1), (4, 4), (5, 2), (6, 3), (3, 9), (4, 1)])
def test_fixed_offset_baseline_over_all_strings_and_offsets(n_pairs, max_depth):
    offsets = collections.Counter()
    strings = balanced(n_pairs, max_depth)
    for string in strings:
        stack = []
        for t, step in enumerate(string):
            if step == 1:
                stack.append(t)
            else:
                offsets[t - 1 - stack.pop()] += 1
    right = max(offsets.values()) / (n_pairs * len(strings))
    found = dyck.baselines(dyck.Config(n_pairs, max_depth, 3), 0, None)["fixed_offset"]
    assert abs(found - (right + (1 - right) / 3)) < 1e-12


def test_the_largest_sizes_keep_finite_probabilities():
    share = dyck.p_open(1024, 1024)
    assert share.shape == (2048, 1025)
    assert share.min() >= 0 and share.max() <= 1
    assert share[0, 0] == 1 and share[-1, 1] == 0


def test_types_are_uniform():
    tokens = np.asarray(sample(jax.random.key(9), {}, CONFIGS[0], 4000).inputs)
    rates = np.bincount(tokens[tokens < 4], minlength=4) / np.sum(tokens < 4)
    # 48,000 openings: 5 % is more than five standard deviations.
    np.testing.assert_allclose(rates, 1 / 4, rtol=0.05)


def test_spec():
    spec = dyck.spec(CONFIGS[0])
    assert (spec.length, spec.input_sizes, spec.output_size) == (23, (8,), 4)
    assert spec.mask == "causal"
    assert spec.vocab == ("(0", "(1", "(2", "(3", ")0", ")1", ")2", ")3")

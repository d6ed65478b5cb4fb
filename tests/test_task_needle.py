"""`needle` against a search for the mark; what position and uniform attention tell."""

import jax
import numpy as np
import pytest

from mha_jax.tasks import needle

sample = jax.jit(needle.sample, static_argnums=(2, 3))

CONFIGS = [
    needle.Config(64, 16, 0),
    needle.Config(2, 2, 0),
    needle.Config(9, 5, 1),
    needle.Config(9, 5, 8),
]


@pytest.mark.parametrize("cfg", CONFIGS)
def test_labels_agree_with_the_solver(cfg):
    batch = jax.tree.map(np.asarray, sample(jax.random.key(7), {}, cfg, 48))
    for b in range(48):
        symbols, marks = batch.inputs[b].T.tolist()
        assert symbols[-1] == cfg.vocab
        assert max(symbols[:-1]) < cfg.vocab
        assert sorted(marks) == [0] * (cfg.length - 1) + [1]
        s = marks.index(1)
        assert s < cfg.length - 1
        if cfg.distance:
            assert cfg.length - 1 - s == cfg.distance
        assert batch.loss_mask[b, :, 0].tolist() == [0] * (cfg.length - 1) + [1]
        assert batch.pointers["needle"][b].tolist() == [-1] * (cfg.length - 1) + [s]
        assert batch.targets[b, -1, 0] == symbols[s]


def test_a_drawn_distance_and_the_symbols_are_uniform():
    cfg, n = CONFIGS[0], 12600
    batch = jax.tree.map(np.asarray, sample(jax.random.key(8), {}, cfg, n))
    # 200 of each distance: five standard deviations are 35 %.
    found = np.bincount(63 - batch.pointers["needle"][:, -1], minlength=64)
    assert found[0] == 0
    np.testing.assert_allclose(found[1:] / n, 1 / 63, rtol=0.35)
    found = np.bincount(batch.inputs[:, :-1, 0].ravel())
    np.testing.assert_allclose(found / found.sum(), 1 / 16, rtol=0.03)


def test_position_solves_a_fixed_distance_only():
    def best(cfg):
        batch = jax.tree.map(np.asarray, sample(jax.random.key(9), {}, cfg, 4000))
        return (batch.inputs[:, :-1, 0] == batch.targets[:, -1]).mean(0).max()

    assert best(needle.Config(64, 16, 20)) == 1
    assert best(CONFIGS[0]) < 1 / 16 + 0.03  # 1/63 found, the rest at chance, 5 standard errors


def test_the_mean_of_the_inputs_does_not_tell_the_needle():
    """What uniform attention sees is how often each symbol occurs: the answer one more."""
    batch = jax.tree.map(np.asarray, sample(jax.random.key(10), {}, CONFIGS[0], 4000))
    counts = np.eye(17)[batch.inputs[..., 0]].sum(1)[:, :16]
    right = (counts.argmax(1) == batch.targets[:, -1, 0]).mean()
    assert right < 3 / 16


def test_spec():
    spec = needle.spec(CONFIGS[0])
    assert (spec.inputs, spec.input_sizes, spec.output_size) == ("fields", (17, 2), 16)
    assert (spec.length, spec.chance, spec.vocab[16]) == (64, 1 / 16, "?")

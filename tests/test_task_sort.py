"""`sort` against Python's sort."""

import itertools
import math

import jax
import numpy as np
import pytest

from mha_jax.tasks import sort

sample = jax.jit(sort.sample, static_argnums=(2, 3))

CONFIGS = [sort.Config(10, 32), sort.Config(2, 3), sort.Config(7, 8), sort.Config(30, 300)]


@pytest.mark.parametrize("cfg", CONFIGS)
def test_labels_agree_with_the_solver(cfg):
    batch = jax.tree.map(np.asarray, sample(jax.random.key(7), {}, cfg, 24))
    assert (batch.loss_mask == 1).all()
    for b in range(24):
        tokens = batch.inputs[b].tolist()
        assert len(set(tokens)) == cfg.length
        assert batch.targets[b, :, 0].tolist() == sorted(tokens)
        assert batch.pointers["source"][b].tolist() == [tokens.index(x) for x in sorted(tokens)]


def test_symbols_are_uniform_at_every_position():
    tokens = np.asarray(sample(jax.random.key(8), {}, CONFIGS[0], 40000).inputs)
    for t in range(10):
        rates = np.bincount(tokens[:, t], minlength=32) / len(tokens)
        # Counts are about 1,250: 15 % is five standard deviations.
        np.testing.assert_allclose(rates, 1 / 32, rtol=0.15)


@pytest.mark.parametrize("length, vocab", [(2, 2), (2, 9), (3, 7), (4, 4), (5, 8), (6, 7)])
def test_position_baseline_by_enumerating_all_sets(length, vocab):
    sets = np.array(list(itertools.combinations(range(vocab), length)))
    best = [np.bincount(sets[:, t]).max() / len(sets) for t in range(length)]
    found = sort.baselines(sort.Config(length, vocab), 0, None)["position"]
    assert abs(found - sum(best) / length) < 1e-12


def test_position_baseline_of_the_largest_sizes_is_a_probability():
    assert math.isclose(sort.baselines(sort.Config(4096, 4096), 0, None)["position"], 1)
    assert 0 < sort.baselines(sort.Config(2, 4096), 0, None)["position"] < 0.01


def test_spec():
    spec = sort.spec(CONFIGS[0])
    assert (spec.length, spec.input_sizes, spec.output_size) == (10, (32,), 32)
    assert spec.mask == "full"
    assert spec.roles == ("source",)

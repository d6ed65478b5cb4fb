"""`modular_addition` against the table of sums, and its splits against all pairs."""

import itertools

import jax
import numpy as np
import pytest

from mha_jax import tasks
from mha_jax.tasks import modular_addition

sample = jax.jit(modular_addition.sample, static_argnums=(2, 3))

CONFIGS = [
    modular_addition.Config(23, 0.6),
    modular_addition.Config(2, 0.5),
    modular_addition.Config(12, 0.1),
    modular_addition.Config(7, 0.95),
]


def pairs_of(cfg, seed, split):
    """The pairs of a split as a list of tuples."""
    pairs = modular_addition.constants(cfg, seed, split)["pairs"]
    return [(int(a), int(b)) for a, b in pairs]


@pytest.mark.parametrize("split", tasks.SPLITS)
@pytest.mark.parametrize("cfg", CONFIGS)
def test_labels_agree_with_the_solver(cfg, split):
    constants = modular_addition.constants(cfg, 3, split)
    batch = jax.tree.map(np.asarray, sample(jax.random.key(7), constants, cfg, 64))
    for (a, b, equals), targets in zip(
        batch.inputs.tolist(), batch.targets[..., 0].tolist(), strict=True
    ):
        assert (a, b) in pairs_of(cfg, 3, split)
        assert equals == cfg.modulus
        total = a
        for _ in range(b):
            total = 0 if total + 1 == cfg.modulus else total + 1
        assert targets[2] == total
    assert (batch.loss_mask[..., 0] == [0, 0, 1]).all()
    assert (batch.pointers["a"] == [-1, -1, 0]).all()
    assert (batch.pointers["b"] == [-1, -1, 1]).all()


@pytest.mark.parametrize("seed", [0, 5])
@pytest.mark.parametrize("cfg", CONFIGS)
def test_splits_divide_all_pairs(cfg, seed):
    splits = [pairs_of(cfg, seed, split) for split in tasks.SPLITS]
    everything = list(itertools.product(range(cfg.modulus), repeat=2))
    assert sorted(sum(splits, [])) == everything
    assert len(splits[0]) == round(cfg.train_fraction * len(everything))
    assert 0 <= len(splits[2]) - len(splits[1]) <= 1


def test_every_pair_of_a_split_is_drawn_alike():
    cfg = CONFIGS[0]
    constants = modular_addition.constants(cfg, 0, "train")
    inputs = np.asarray(sample(jax.random.key(8), constants, cfg, 317000).inputs)
    counts = np.bincount(inputs[:, 0] * cfg.modulus + inputs[:, 1])
    # Counts are about 1,000: 16 % is five standard deviations.
    np.testing.assert_allclose(counts[counts > 0], 1000, rtol=0.16)
    assert np.count_nonzero(counts) == 317


@pytest.mark.parametrize("cfg", CONFIGS)
def test_mirror_baseline_is_what_the_rule_reaches(cfg):
    known = {pair: sum(pair) % cfg.modulus for pair in pairs_of(cfg, 4, "train")}
    test = pairs_of(cfg, 4, "test")
    credit = 0.0
    for a, b in test:
        if (b, a) in known:
            assert known[b, a] == (a + b) % cfg.modulus
            credit += 1
        else:
            credit += 1 / cfg.modulus
    found = modular_addition.baselines(cfg, 4, None)["mirror"]
    assert abs(found - credit / len(test)) < 1e-12


def test_spec():
    spec = modular_addition.spec(CONFIGS[0])
    assert (spec.length, spec.input_sizes, spec.output_size) == (3, (24,), 23)
    assert spec.mask == "causal"
    assert spec.vocab[-2:] == ("22", "=")

"""`memorise` against its own table: which query is this, and what is its label?"""

import jax
import numpy as np
import pytest

from mha_jax import tasks
from mha_jax.tasks import memorise

sample = jax.jit(memorise.sample, static_argnums=(2, 3))

CONFIGS = [
    memorise.Config(512, 16, 64, 16),
    memorise.Config(2, 2, 1, 2),
    memorise.Config(31, 3, 5, 7),
]


@pytest.mark.parametrize("cfg", CONFIGS)
def test_labels_agree_with_the_table(cfg):
    table = memorise.constants(cfg, 3, "train")
    batch = jax.tree.map(np.asarray, sample(jax.random.key(7), table, cfg, 40))
    queries = table["queries"].tolist()
    for b in range(40):
        rows = batch.inputs[b].tolist()
        assert rows[:-1] == table["context"].tolist()
        assert queries.count(rows[-1]) == 1
        assert batch.targets[b, -1, 0] == table["labels"][queries.index(rows[-1])]
        assert batch.loss_mask[b, :, 0].tolist() == [0] * cfg.n_context + [1]
    assert batch.pointers == {}


@pytest.mark.parametrize("cfg", CONFIGS)
def test_every_split_is_the_same_set(cfg):
    splits = [memorise.constants(cfg, 3, split) for split in tasks.SPLITS]
    for other in splits[1:]:
        jax.tree.map(np.testing.assert_array_equal, other, splits[0])


@pytest.mark.parametrize("cfg", CONFIGS)
def test_chance_is_the_share_of_the_commonest_label(cfg):
    for seed in range(3):
        counts = np.bincount(memorise.constants(cfg, seed, "train")["labels"])
        assert len(counts) == cfg.n_classes
        assert np.ptp(counts) <= 1
        assert memorise.spec(cfg).chance == counts.max() / cfg.n_examples


def test_examples_are_drawn_uniformly():
    cfg = CONFIGS[2]
    table = memorise.constants(cfg, 0, "train")
    drawn = np.asarray(sample(jax.random.key(8), table, cfg, 31000).inputs)[:, -1, 0]
    _, counts = np.unique(drawn, return_counts=True)
    assert len(counts) == 31
    # Counts are about 1,000: 16 % is five standard deviations.
    np.testing.assert_allclose(counts, 1000, rtol=0.16)


def test_spec():
    spec = memorise.spec(CONFIGS[0])
    assert (spec.length, spec.input_sizes, spec.output_size) == (17, (64,), 16)
    assert (spec.mask, spec.n_context) == ("context_query", 16)

"""`histogram` against counting in plain Python."""

import itertools

import jax
import numpy as np
import pytest

from mha_jax.tasks import histogram

sample = jax.jit(histogram.sample, static_argnums=(2, 3))

CONFIGS = [histogram.Config(16, 16), histogram.Config(2, 2), histogram.Config(30, 3)]


@pytest.mark.parametrize("cfg", CONFIGS)
def test_labels_agree_with_the_solver(cfg):
    batch = jax.tree.map(np.asarray, sample(jax.random.key(7), {}, cfg, 24))
    assert batch.pointers == {}
    assert (batch.loss_mask == 1).all()
    for tokens, targets in zip(batch.inputs.tolist(), batch.targets[..., 0].tolist(), strict=True):
        assert targets == [tokens.count(token) - 1 for token in tokens]


@pytest.mark.parametrize("length, vocab", [(2, 2), (5, 2), (4, 3), (6, 4), (3, 7)])
def test_chance_by_enumerating_all_sequences(length, vocab):
    counts = [0] * length
    for tokens in itertools.product(range(vocab), repeat=length):
        for token in tokens:
            counts[tokens.count(token) - 1] += 1
    chance = histogram.spec(histogram.Config(length, vocab)).chance
    assert abs(chance - max(counts) / sum(counts)) < 1e-12


def test_chance_of_the_largest_sizes_is_a_probability():
    assert 0 < histogram.spec(histogram.Config(8192, 2)).chance < 0.01
    assert 0.8 < histogram.spec(histogram.Config(8192, 65536)).chance < 1


def test_spec():
    spec = histogram.spec(CONFIGS[0])
    assert (spec.length, spec.input_sizes, spec.output_size) == (16, (16,), 16)
    assert spec.mask == "full"
    assert spec.roles == ()

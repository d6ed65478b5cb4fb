"""`copy` against a solver that continues the string symbol by symbol."""

import jax
import numpy as np
import pytest

from mha_jax.tasks import copy

sample = jax.jit(copy.sample, static_argnums=(2, 3))

CONFIGS = [copy.Config(12, 16), copy.Config(1, 2), copy.Config(5, 300)]


@pytest.mark.parametrize("cfg", CONFIGS)
def test_labels_agree_with_the_solver(cfg):
    batch = jax.tree.map(np.asarray, sample(jax.random.key(7), {}, cfg, 24))
    for b in range(24):
        tokens = batch.inputs[b].tolist()
        bar = tokens.index(cfg.vocab)
        assert bar == cfg.length
        for t in range(2 * cfg.length):
            asked = t >= bar
            assert batch.loss_mask[b, t, 0] == asked
            assert batch.pointers["source"][b, t] == (t - bar if asked else -1)
            following = tokens[t - bar] if asked else tokens[t + 1]
            assert batch.targets[b, t, 0] == following
            if t + 1 < len(tokens):
                assert tokens[t + 1] == following


def test_symbols_are_uniform():
    symbols = np.asarray(sample(jax.random.key(8), {}, CONFIGS[0], 4000).inputs)[:, :12]
    # Counts are about 3,000: 10 % is more than five standard deviations.
    np.testing.assert_allclose(
        np.bincount(symbols.ravel(), minlength=16) / symbols.size, 1 / 16, rtol=0.1
    )


def test_spec():
    spec = copy.spec(CONFIGS[0])
    assert (spec.length, spec.input_sizes, spec.output_size) == (24, (17,), 17)
    assert spec.autoregressive
    assert spec.mask == "causal"
    assert spec.vocab[16] == "|"

"""`mixture`: the labels and pointers by plain loops over the inputs."""

import jax
import numpy as np
import pytest

from mha_jax.tasks import mixture

CONFIGS = [mixture.Config(16, 16, 3), mixture.Config(5, 3, 5), mixture.Config(2, 4, 1)]
sample = jax.jit(mixture.sample, static_argnums=(2, 3))


def draw(cfg, seed=0, n=8):
    constants = mixture.constants(cfg, 3, "train")
    batch = sample(jax.random.key(seed), constants, cfg, n)
    return batch, constants["maps"].astype(np.float64)


@pytest.mark.parametrize("cfg", CONFIGS)
def test_labels(cfg):
    batch, maps = draw(cfg)
    size = cfg.n_context
    x = np.asarray(batch.inputs, np.float64)
    for b in range(len(x)):
        context, queries = x[b, :size], x[b, size:]
        for i, query in enumerate(queries):
            row = size + i
            distances = [np.linalg.norm(query - c) for c in context]
            nearest = int(np.argmin(distances))
            assert batch.pointers["nearest"][b, row] == nearest
            np.testing.assert_allclose(batch.targets[b, row, 0], context[nearest], atol=1e-6)
            total = np.zeros(cfg.n_channels)
            for j in range(1, cfg.n_taps + 1):
                place = (i + j) % size
                assert batch.pointers[f"tap{j}"][b, row] == place
                total += maps[j - 1] @ context[place]
            # float32 sums of a few dozen products of numbers below 1
            np.testing.assert_allclose(
                batch.targets[b, row, 1], total / np.sqrt(cfg.n_taps), atol=1e-5
            )


@pytest.mark.parametrize("cfg", CONFIGS)
def test_only_queries_are_asked(cfg):
    batch, _ = draw(cfg)
    mask = np.asarray(batch.loss_mask)
    assert (mask[:, : cfg.n_context] == 0).all() and (mask[:, cfg.n_context :] == 1).all()
    for pointer in batch.pointers.values():
        assert (np.asarray(pointer)[:, : cfg.n_context] == -1).all()


def test_both_answers_have_the_same_spread():
    """So that neither rules the loss: vectors of squared length 1, in the mean for the taps."""
    batch, _ = draw(CONFIGS[0], n=500)
    lengths = np.square(np.asarray(batch.targets)[:, 16:]).sum(-1).mean((0, 1))
    np.testing.assert_allclose(lengths, [1, 1], atol=0.02)  # 8,000 rows


def test_maps_are_orthogonal_and_of_the_seed():
    one, other = (mixture.constants(CONFIGS[0], seed, "test")["maps"] for seed in (0, 1))
    for w in one:
        np.testing.assert_allclose(w @ w.T, np.eye(16), atol=1e-5)
    assert not np.allclose(one, other)

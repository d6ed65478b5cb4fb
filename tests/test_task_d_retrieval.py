"""`d_retrieval` against a solver in plain Python."""

import jax
import numpy as np
import pytest

from mha_jax.tasks import d_retrieval

sample = jax.jit(d_retrieval.sample, static_argnums=(2, 3))

CONFIGS = [
    d_retrieval.Config(16, 4, 4, 32),
    d_retrieval.Config(3, 1, 1, 8),
    d_retrieval.Config(9, 6, 2, 8),
]


@pytest.mark.parametrize("cfg", CONFIGS)
def test_labels_agree_with_the_solver(cfg):
    constants = d_retrieval.constants(cfg, 5, "train")
    batch = jax.tree.map(np.asarray, sample(jax.random.key(7), constants, cfg, 24))
    for b in range(24):
        assert not batch.loss_mask[b, : cfg.length].any()
        assert batch.loss_mask[b, cfg.length] == 1
        y = 0.0
        for d, direction in enumerate(constants["directions"].tolist()):
            products = [
                sum(float(a) * x for a, x in zip(direction, vector, strict=True))
                for vector in batch.inputs[b].tolist()
            ]
            y += max(products)
            pointer = batch.pointers[f"max{d}"][b].tolist()
            assert pointer == [-1] * cfg.length + [products.index(max(products))]
        # Float32 products and sums of a few dozen terms.
        assert abs(batch.targets[b, cfg.length, 0, 0] - y) < 1e-5 * max(1, abs(y))


def test_constants_are_standard_normal_directions():
    cfg = d_retrieval.Config(16, 64, 64, 32)
    directions = d_retrieval.constants(cfg, 0, "train")["directions"]
    assert directions.shape == (64, 64)
    assert directions.dtype == np.float32
    # Mean and variance of 4,096 numbers, five standard deviations.
    assert abs(directions.mean()) < 5 / 64
    assert abs(directions.var() - 1) < 5 * 2**0.5 / 64


@pytest.mark.parametrize("cfg", [*CONFIGS, d_retrieval.Config(2, 1, 1, 8)])
@pytest.mark.parametrize("seed", [0, 3])
def test_least_squares_is_that_of_a_fit(cfg, seed):
    constants = d_retrieval.constants(cfg, seed, "train")
    batch = jax.tree.map(np.asarray, sample(jax.random.key(8), constants, cfg, 40000))
    x = batch.inputs.reshape(len(batch.inputs), -1).astype(np.float64)
    y = batch.targets[:, -1, 0, 0].astype(np.float64)
    x, y = x - x.mean(axis=0), y - y.mean()
    error = y - x @ np.linalg.lstsq(x, y, rcond=None)[0]
    found = d_retrieval.baselines(cfg, seed, None)["least_squares"]
    # Variances of 40,000 and of 30,000 or more numbers, each off by 1 % or less, and a fit of up to
    # 64 coefficients.
    assert found == pytest.approx(error.var() / y.var(), abs=0.015)
    assert 0 < found < 1


def test_two_vectors_of_one_channel_have_a_known_least_squares():
    """max(x1, x2) = (x1 + x2) / 2 + |x1 - x2| / 2: variances 1/2 and (1 - 2 / pi) / 2."""
    found = d_retrieval.baselines(d_retrieval.Config(2, 1, 1, 8), 0, None)["least_squares"]
    spread = (1 - 2 / np.pi) / 2
    assert found == pytest.approx(spread / (spread + 1 / 2), abs=2e-3)


def test_spec():
    spec = d_retrieval.spec(CONFIGS[0])
    assert spec.query_token
    assert spec.length == 17
    assert (spec.mask, spec.n_context) == ("context_query", 16)
    assert (spec.encoder, spec.d_encoder, spec.readout, spec.d_readout) == ("mlp", 32, "mlp", 32)
    assert (spec.metric, spec.direction, spec.chance) == ("nmse", "min", 1.0)
    assert spec.roles == ("max0", "max1", "max2", "max3")

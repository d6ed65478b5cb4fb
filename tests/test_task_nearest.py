"""`nearest` against distances one by one, its baseline against a head built by hand."""

import dataclasses
import math

import jax
import numpy as np
import pytest

from mha_jax.config import LayerSpec, ModelSpec
from mha_jax.tasks import nearest

sample = jax.jit(nearest.sample, static_argnums=(2, 3))

CONFIGS = [nearest.Config(16, 16, 16), nearest.Config(3, 5, 2), nearest.Config(2, 1, 40)]

MODEL = ModelSpec(
    *(64, (LayerSpec("grouped", 8, 8, 8, 0, 0, 0, None),), "none", "content", "none", False, False),
    *("gelu", True, True, "none", False, False, False, 0, 0, 0, "none", 1, 0),
    *("mean", "auto", "float32", "float32"),
)


def with_width(d_head):
    layer = dataclasses.replace(MODEL.layers[0], d_head=d_head)
    return dataclasses.replace(MODEL, layers=(layer,))


@pytest.mark.parametrize("cfg", CONFIGS)
def test_labels_agree_with_the_solver(cfg):
    batch = jax.tree.map(np.asarray, sample(jax.random.key(7), {}, cfg, 24))
    for b in range(24):
        vectors = batch.inputs[b].tolist()
        context, queries = vectors[: cfg.n_context], vectors[cfg.n_context :]
        assert len(queries) == cfg.n_queries
        assert not batch.loss_mask[b, : cfg.n_context].any()
        assert (batch.pointers["nearest"][b, : cfg.n_context] == -1).all()
        for t, query in enumerate(queries, start=cfg.n_context):
            distances = [math.dist(query, vector) for vector in context]
            s = distances.index(min(distances))
            assert batch.pointers["nearest"][b, t] == s
            assert batch.loss_mask[b, t, 0] == 1
            assert batch.targets[b, t, 0].tolist() == context[s]


def test_vectors_are_uniform_on_the_sphere():
    x = np.asarray(sample(jax.random.key(8), {}, CONFIGS[0], 500).inputs).reshape(-1, 16)
    np.testing.assert_allclose(np.linalg.norm(x, axis=1), 1, rtol=1e-5)  # float32
    # 16,000 rows, entries of variance 1/16: five standard deviations, products being smaller.
    assert np.abs(x.mean(0)).max() < 5 / 4 / 16000**0.5
    assert np.abs(x.T @ x / len(x) - np.eye(16) / 16).max() < 5 * 2**0.5 / 16 / 16000**0.5


def test_a_sharp_softmax_of_full_width_is_right():
    batch = jax.tree.map(np.asarray, sample(jax.random.key(9), {}, CONFIGS[0], 256))
    context, query = batch.inputs[:, :16], batch.inputs[:, 16:]
    weights = np.asarray(jax.nn.softmax(1000 * np.einsum("bti,bsi->bts", query, context), axis=-1))
    error = np.einsum("bts,bsi->bti", weights, context) - batch.targets[:, 16:, 0]
    assert np.square(error).sum(-1).mean() < 0.01  # of 1, the variance of the targets
    assert nearest.baselines(CONFIGS[0], 0, with_width(16)) == {"softmax": 1.0}
    assert nearest.baselines(CONFIGS[0], 0, with_width(64)) == {"softmax": 1.0}


@pytest.mark.parametrize("d_head", [2, 8])
def test_the_baseline_is_the_best_least_squares_fit_of_one_pattern(d_head):
    """On other draws, with a free linear map in place of two scales."""
    batch = jax.tree.map(np.asarray, sample(jax.random.key(10), {}, CONFIGS[0], 1000))
    context, query = batch.inputs[:, :16], batch.inputs[:, 16:]
    y = batch.targets[:, 16:, 0].reshape(-1, 16)
    scores = np.einsum("bti,bsi->bts", query[..., :d_head], context[..., :d_head])
    best = 0.0
    for inverse_temperature in np.linspace(1, 60, 40):
        weights = np.asarray(jax.nn.softmax(inverse_temperature * scores, axis=-1))
        z = np.einsum("bts,bsi->bti", weights, context).reshape(-1, 16)
        error = y - z @ np.linalg.lstsq(z, y, rcond=None)[0]
        best = max(best, 1 - np.square(error).sum() / np.square(y - y.mean(0)).sum())
    # Two Monte Carlo draws of about 10,000 targets each, standard errors .003 or so.
    assert abs(nearest.baselines(CONFIGS[0], 0, with_width(d_head))["softmax"] - best) < 0.02


def test_the_baseline_rises_with_the_width_of_a_head():
    found = [nearest.baselines(CONFIGS[0], 3, with_width(d))["softmax"] for d in (2, 4, 8, 12, 16)]
    assert found == sorted(found)
    assert 0 < found[0] < found[1] - 0.05


def test_spec():
    spec = nearest.spec(CONFIGS[0])
    assert (spec.inputs, spec.input_sizes, spec.output_size) == ("vectors", (16,), 16)
    assert (spec.mask, spec.n_context, spec.length) == ("context_query", 16, 32)
    assert (spec.kind, spec.metric, spec.chance) == ("regression", "r2", 0.0)

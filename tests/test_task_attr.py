"""`attr` against a solver that looks the named items up one by one."""

import jax
import numpy as np
import pytest

from mha_jax.tasks import attr

sample = jax.jit(attr.sample, static_argnums=(2, 3))

CONFIGS = [
    attr.Config(16, 4, 32, 16, 8),
    attr.Config(3, 1, 3, 2, 5),
    attr.Config(10, 6, 11, 9, 1),
    attr.Config(1, 2, 4, 3, 2),
]


@pytest.mark.parametrize("cfg", CONFIGS)
def test_labels_agree_with_the_solver(cfg):
    batch = jax.tree.map(np.asarray, sample(jax.random.key(7), {}, cfg, 24))
    for b in range(24):
        tokens = batch.inputs[b].tolist()
        items, queries = tokens[: cfg.n_items], tokens[cfg.n_items :]
        assert len(queries) == cfg.n_queries
        for t in range(cfg.n_items):
            assert not batch.loss_mask[b, t].any()
            assert all(batch.pointers[f"attr{a}"][b, t] == -1 for a in range(cfg.n_attributes))
        for q, query in enumerate(queries):
            assert query[-1] == cfg.n_values  # "none"
            for a in range(cfg.n_attributes):
                named = query[a] - cfg.attribute_vocab
                (s,) = [i for i, item in enumerate(items) if item[a] == named]
                t = cfg.n_items + q
                assert batch.pointers[f"attr{a}"][b, t] == s
                assert batch.loss_mask[b, t, a] == 1
                assert batch.targets[b, t, a] == items[s][-1]


@pytest.mark.parametrize("cfg", CONFIGS)
def test_attributes_differ_from_item_to_item(cfg):
    items = np.asarray(sample(jax.random.key(8), {}, cfg, 50).inputs)[:, : cfg.n_items]
    for a in range(cfg.n_attributes):
        assert items[..., a].max() < cfg.attribute_vocab
        for row in items[..., a].tolist():
            assert len(set(row)) == cfg.n_items


def test_attributes_values_and_picks_are_uniform_and_independent():
    cfg = CONFIGS[0]
    batch = jax.tree.map(np.asarray, sample(jax.random.key(9), {}, cfg, 2000))
    items = batch.inputs[:, : cfg.n_items]
    # Counts are 1,000 or more: 15 % is five standard deviations.
    for a in range(cfg.n_attributes):
        rates = np.bincount(items[..., a].ravel(), minlength=32) / items[..., a].size
        np.testing.assert_allclose(rates, 1 / 32, rtol=0.15)
    rates = np.bincount(items[..., -1].ravel(), minlength=16) / items[..., -1].size
    np.testing.assert_allclose(rates, 1 / 16, rtol=0.15)
    picks = [batch.pointers[f"attr{a}"][:, cfg.n_items :].ravel() for a in range(4)]
    for a in range(4):
        np.testing.assert_allclose(
            np.bincount(picks[a], minlength=16) / picks[a].size, 1 / 16, rtol=0.15
        )
        for other in range(a):
            same = np.mean(picks[a] == picks[other])
            # Five standard deviations of a rate of 1/16 over 16,000 queries.
            assert abs(same - 1 / 16) < 5 * (15 / 256 / 16000) ** 0.5


def test_spec():
    spec = attr.spec(CONFIGS[0])
    assert spec.input_sizes == (64, 64, 64, 64, 17)
    assert spec.length == 24
    assert (spec.mask, spec.n_context) == ("context_query", 16)
    assert spec.outputs == spec.roles == ("attr0", "attr1", "attr2", "attr3")

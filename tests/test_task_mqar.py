"""`mqar` against a reader of the sequence, its slots against numpy's draws without replacement."""

import jax
import numpy as np
import pytest

from mha_jax.tasks import mqar

sample = jax.jit(mqar.sample, static_argnums=(2, 3))

CONFIGS = [
    mqar.Config(32, 8, 64, False),
    mqar.Config(32, 8, 64, True),
    mqar.Config(4, 1, 4, False),
    mqar.Config(20, 5, 13, True),
]


@pytest.mark.parametrize("cfg", CONFIGS)
def test_labels_agree_with_the_solver(cfg):
    batch = jax.tree.map(np.asarray, sample(jax.random.key(7), {}, cfg, 48))
    for b in range(48):
        tokens = batch.inputs[b].tolist()
        context = tokens[: 2 * cfg.n_pairs]
        keys, values = context[::2], context[1::2]
        assert len(set(keys)) == len(set(values)) == cfg.n_pairs
        assert all(0 < key < cfg.vocab // 2 for key in keys)
        assert all(cfg.vocab // 2 <= value < cfg.vocab for value in values)
        asked = np.flatnonzero(batch.loss_mask[b, :, 0])
        assert (asked >= len(context)).all()
        assert (asked % 2 == 0).all()
        assert sorted(tokens[t] for t in asked) == sorted(keys)
        for t, token in enumerate(tokens):
            pointer = batch.pointers["source"][b, t]
            if t in asked:
                assert pointer == tokens.index(token) + 1
                assert batch.targets[b, t, 0] == tokens[pointer]
            else:
                assert pointer == -1
                assert t < len(context) or cfg.random_fillers or token == 0


def test_fillers_are_any_token():
    cfg = CONFIGS[1]
    batch = jax.tree.map(np.asarray, sample(jax.random.key(8), {}, cfg, 2000))
    fillers = batch.inputs[:, 16:][batch.loss_mask[:, 16:, 0] == 0]
    rates = np.bincount(fillers, minlength=64) / len(fillers)
    np.testing.assert_allclose(rates, 1 / 64, rtol=0.25)  # 250 of each: 4 standard deviations


def test_keys_and_values_are_uniform_and_independent():
    cfg = CONFIGS[0]
    tokens = np.asarray(sample(jax.random.key(9), {}, cfg, 4000).inputs)
    for pair in range(cfg.n_pairs):
        keys, values = tokens[:, 2 * pair], tokens[:, 2 * pair + 1]
        # Counts are 125 or more: five standard deviations are 45 %.
        np.testing.assert_allclose(np.bincount(keys, minlength=64)[1:32] / 4000, 1 / 31, rtol=0.45)
        np.testing.assert_allclose(np.bincount(values, minlength=64)[32:] / 4000, 1 / 32, rtol=0.45)
    assert abs(np.corrcoef(tokens[:, 0], tokens[:, 1])[0, 1]) < 5 / 4000**0.5


def test_slots_are_drawn_as_numpy_draws_them():
    """Which pair returns in which slot: [pair, slot] rates against Generator.choice."""
    cfg, n = CONFIGS[0], 20000
    batch = jax.tree.map(np.asarray, sample(jax.random.key(10), {}, cfg, n))
    found, wanted = np.zeros((8, 8)), np.zeros((8, 8))
    _, t = np.nonzero(batch.loss_mask[..., 0])
    pair = batch.pointers["source"][batch.loss_mask[..., 0] == 1] // 2
    np.add.at(found, (pair, (t - 16) // 2), 1 / n)
    p = 0.01 * np.arange(1, 9) ** (0.01 - 1)
    rng = np.random.default_rng(0)
    for _ in range(n):
        slots = rng.choice(8, 8, replace=False, p=p / p.sum())
        wanted[np.arange(8), slots] += 1 / n
    # Differences of two rates of at most .5: five standard deviations.
    assert np.abs(found - wanted).max() < 5 * (0.5 / n) ** 0.5
    assert found[0, 0] > 0.3 > 0.1 > found[0, 7]


def test_slots_stay_a_power_law_where_many_are_left_empty():
    cfg, n = mqar.Config(64, 4, 64, False), 20000
    batch = jax.tree.map(np.asarray, sample(jax.random.key(11), {}, cfg, n))
    found = batch.loss_mask[:, 8::2, 0].mean(0)
    p = np.arange(1, 29) ** (0.01 - 1)
    rng = np.random.default_rng(1)
    wanted = np.zeros(28)
    for _ in range(n):
        wanted[rng.choice(28, 4, replace=False, p=p / p.sum())] += 1 / n
    assert np.abs(found - wanted).max() < 5 * (0.5 / n) ** 0.5


def test_the_best_fixed_offset_is_what_the_docstring_says():
    cfg = CONFIGS[0]
    batch = jax.tree.map(np.asarray, sample(jax.random.key(12), {}, cfg, 4000))
    asked = batch.loss_mask[..., 0] == 1
    hits = np.zeros(cfg.length)
    _, t = np.nonzero(asked)
    np.add.at(hits, t - batch.pointers["source"][asked], 1)
    assert hits.max() / asked.sum() == pytest.approx(0.20, abs=0.02)


def test_spec():
    spec = mqar.spec(CONFIGS[0])
    assert (spec.input_sizes, spec.output_size, spec.chance) == ((64,), 64, 1 / 32)
    assert len(spec.vocab) == 64
    assert (spec.vocab[0], spec.vocab[31], spec.vocab[32]) == ("-", "k31", "v0")
    assert not spec.autoregressive

"""`selective_copy` against a reader that keeps a list."""

import itertools

import jax
import numpy as np
import pytest

from mha_jax.tasks import selective_copy

sample = jax.jit(selective_copy.sample, static_argnums=(2, 3))

CONFIGS = [
    selective_copy.Config(32, 16, 8),
    selective_copy.Config(2, 2, 1),
    selective_copy.Config(6, 9, 6),
]


@pytest.mark.parametrize("cfg", CONFIGS)
def test_labels_agree_with_the_solver(cfg):
    batch = jax.tree.map(np.asarray, sample(jax.random.key(7), {}, cfg, 48))
    for b in range(48):
        kept, said = [], None
        for t, (symbol, mark) in enumerate(batch.inputs[b].tolist()):
            if symbol == cfg.vocab:
                assert t == cfg.length
                said = 0
            if said is None:
                assert batch.loss_mask[b, t, 0] == 0
                assert batch.pointers["source"][b, t] == -1
                if mark:
                    kept.append((t, symbol))
                continue
            assert mark == 0
            assert said == 0 or symbol == kept[said - 1][1]
            assert batch.loss_mask[b, t, 0] == 1
            assert (batch.pointers["source"][b, t], batch.targets[b, t, 0]) == kept[said]
            said += 1
        assert said == len(kept) == cfg.n_marked
        assert len({symbol for _, symbol in kept}) == cfg.n_marked


def test_every_choice_of_places_is_equally_likely():
    cfg, n = selective_copy.Config(6, 5, 3), 8000
    inputs = np.asarray(sample(jax.random.key(8), {}, cfg, n).inputs)
    found = np.zeros((6, 6, 6))
    places = np.nonzero(inputs[:, :6, 1])[1].reshape(n, 3)
    np.add.at(found, tuple(places.T), 1)
    for choice in itertools.combinations(range(6), 3):
        assert abs(found[choice] - n / 20) < 5 * (n / 20) ** 0.5
    for t in range(6):
        for mark in (0, 1):
            symbols = inputs[inputs[:, t, 1] == mark][:, t, 0]
            np.testing.assert_allclose(np.bincount(symbols) / len(symbols), 1 / 5, rtol=0.2)


def test_looking_by_position_alone_does_not_solve_it():
    cfg = CONFIGS[0]
    batch = jax.tree.map(np.asarray, sample(jax.random.key(9), {}, cfg, 4000))
    right = [(batch.inputs[:, :32, 0] == batch.targets[:, 32 + m]).mean(0).max() for m in range(8)]
    # The first and the last marked token are at their likeliest place a quarter of the time.
    assert max(right) < 0.35
    assert np.mean(right) < 0.25


def test_spec():
    spec = selective_copy.spec(CONFIGS[0])
    assert (spec.inputs, spec.input_sizes, spec.output_size) == ("fields", (17, 2), 16)
    assert (spec.length, spec.chance, spec.vocab[16]) == (40, 1 / 16, "|")
    assert spec.autoregressive

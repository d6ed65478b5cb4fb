"""`k_hop` against a walk through each sequence."""

import jax
import numpy as np
import pytest

from mha_jax.tasks import k_hop

sample = jax.jit(k_hop.sample, static_argnums=(2, 3))

CONFIGS = [
    k_hop.Config(32, 8, 2),
    k_hop.Config(24, 3, 1),
    k_hop.Config(40, 5, 4),
    k_hop.Config(5, 2, 2),
]


def walk(tokens, start, n_hops):
    """Positions after 1, 2, ... hops, None from the first that is undefined."""
    at, path = start, []
    for _ in range(n_hops):
        if at is not None:
            before = [s for s in range(at) if tokens[s] == tokens[at]]
            at = before[-1] + 1 if before else None
        path.append(at)
    return path


@pytest.mark.parametrize("cfg", CONFIGS)
def test_labels_agree_with_the_solver(cfg):
    batch = jax.tree.map(np.asarray, sample(jax.random.key(7), {}, cfg, 24))
    for b in range(24):
        tokens = batch.inputs[b].tolist()
        for t in range(cfg.length):
            path = walk(tokens, t, cfg.n_hops)
            for j, s in enumerate(path, start=1):
                assert batch.pointers[f"hop{j}"][b, t] == (-1 if s is None else s)
                assert batch.loss_mask[b, t, j - 1] == (s is not None)
                if s is not None:
                    assert batch.targets[b, t, j - 1] == tokens[s]


def test_the_drawing_of_the_docstring():
    rows = {}
    for line in k_hop.__doc__.splitlines():
        name, *cells = line.replace("|", "").split() or [""]
        rows.setdefault(name, cells)
    paths = [walk(rows["input"], t, 2) for t in range(12)]
    for j in range(2):
        assert rows[f"hop{j + 1}"] == ["." if p[j] is None else str(p[j]) for p in paths]
        answers = ["." if p[j] is None else rows["input"][p[j]] for p in paths]
        assert rows[f"symbol{j + 1}"] == answers


def test_a_sequence_is_a_row_of_shuffles():
    cfg = k_hop.Config(21, 5, 3)
    tokens = np.asarray(sample(jax.random.key(8), {}, cfg, 2000).inputs)
    for start in range(0, 20, 5):
        assert (np.sort(tokens[:, start : start + 5], axis=1) == np.arange(5)).all()
    for t in range(21):
        # 400 of each symbol: five standard deviations are 23 %.
        np.testing.assert_allclose(np.bincount(tokens[:, t]) / 2000, 1 / 5, rtol=0.23)
    assert abs(np.mean(tokens[:, 4] == tokens[:, 9]) - 1 / 5) < 5 * (0.16 / 2000) ** 0.5


@pytest.mark.parametrize("hop, by_offset, by_position", [(1, 0.16, 0.25), (2, 0.16, 0.23)])
def test_looking_by_position_alone_stays_near_chance(hop, by_offset, by_position):
    """The numbers of the docstring."""
    cfg = CONFIGS[0]
    batch = jax.tree.map(np.asarray, sample(jax.random.key(9), {}, cfg, 4000))
    answers, asked = batch.targets[..., hop - 1], batch.loss_mask[..., hop - 1] == 1
    right = np.zeros((32, 32))  # [query, key]
    for offset in range(32):
        t = np.arange(offset, 32)
        hit = (batch.inputs[:, t - offset] == answers[:, t]) & asked[:, t]
        right[t, t - offset] = hit.sum(0)
    # Rates over 68,000 answers or more, neighbours not independent; numbers of two digits.
    best = max(np.trace(right, -offset) for offset in range(32))
    assert abs(best / asked.sum() - by_offset) < 0.01
    assert abs(right.max(1).sum() / asked.sum() - by_position) < 0.01


def test_spec():
    spec = k_hop.spec(CONFIGS[2])
    assert (spec.input_sizes, spec.output_size, spec.chance) == ((5,), 5, 0.2)
    assert spec.outputs == spec.roles == ("hop1", "hop2", "hop3", "hop4")

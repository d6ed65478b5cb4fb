"""`wide_taps` against a convolution in loops, its bounds against fits."""

import jax
import numpy as np
import pytest
from scipy.optimize import nnls

from mha_jax import config
from mha_jax.tasks import wide_taps
from tests.shapes import model_of

sample = jax.jit(wide_taps.sample, static_argnums=(2, 3))

CONFIGS = [
    wide_taps.Config(16, 4, 16, "none"),
    wide_taps.Config(6, 3, 1, "linear"),
    wide_taps.Config(9, 1, 3, "none"),
]


def model(cfg: wide_taps.Config, n_heads: int, **changes) -> config.ModelSpec:
    """A layer whose concatenated heads are as wide as the answer."""
    width = cfg.n_taps * cfg.n_channels
    shape = {"n_heads": n_heads, "n_kv_heads": n_heads, "d_head": width // n_heads}
    return model_of(**{"d_model": width, "qk_from": "positions", **shape, **changes})


@pytest.mark.parametrize("cfg", CONFIGS)
def test_labels_agree_with_the_solver(cfg):
    constants = wide_taps.constants(cfg, 3, "train")
    batch = jax.tree.map(np.asarray, sample(jax.random.key(7), constants, cfg, 12))
    maps, n = constants["maps"].astype(np.float64), cfg.n_channels
    for b in range(12):
        for t in range(cfg.length):
            scored = t >= cfg.n_taps
            assert (batch.loss_mask[b, t] == scored).all()
            y = np.zeros(cfg.n_taps * n)
            for j in range(1, cfg.n_taps + 1):
                assert batch.pointers[f"tap{j}"][b, t] == (t - j if scored else -1)
                if scored:
                    y += maps[j - 1] @ batch.inputs[b, t - j].astype(np.float64)
            for i in range(cfg.n_taps):
                # Float32 sums of up to 64 terms of order 1.
                np.testing.assert_allclose(
                    batch.targets[b, t, i], y[i * n : (i + 1) * n], atol=1e-5
                )


@pytest.mark.parametrize("cfg", CONFIGS)
def test_maps_have_orthonormal_columns_and_answers_unit_variance(cfg):
    for w in wide_taps.maps(cfg, 1):
        assert w.shape == (cfg.n_taps * cfg.n_channels, cfg.n_channels)
        np.testing.assert_allclose(w.T @ w, np.eye(cfg.n_channels), atol=1e-12)
    # Mean over columns: that of a column is the length of its row of maps.
    power = np.sum(wide_taps.maps(cfg, 1) ** 2) / (cfg.n_taps * cfg.n_channels)
    assert power == pytest.approx(1)


def best_of_one(maps_joi: np.ndarray) -> float:
    """R^2 of the best weight_j x map with weights >= 0, by alternating least squares."""
    flat, generator, found = maps_joi.reshape(len(maps_joi), -1), np.random.default_rng(1), []
    for _ in range(8):
        mix = generator.uniform(size=(len(maps_joi), 1))
        for _ in range(200):
            head = np.linalg.pinv(mix) @ flat
            mix = np.stack([nnls(head.T, row)[0] for row in flat])
        found.append(1 - np.sum((flat - mix @ (np.linalg.pinv(mix) @ flat)) ** 2) / np.sum(flat**2))
    return max(found)


@pytest.mark.parametrize("n_slots", [1, 4, 12])
def test_one_pattern_is_the_best_pattern(n_slots):
    maps = wide_taps.maps(wide_taps.Config(16, 4, 3, "none"), 5)
    for slot in np.split(maps, n_slots, axis=1)[:4]:
        assert wide_taps.one_pattern(slot) == pytest.approx(best_of_one(slot), abs=1e-4)


def test_one_pattern_has_no_negative_weights():
    opposite = np.array([1.0, -1.0])[:, None, None] * np.ones((2, 3, 4))
    assert wide_taps.one_pattern(opposite) == pytest.approx(0.5)  # one tap, not their difference
    assert wide_taps.one_pattern(np.abs(opposite)) == pytest.approx(1)


@pytest.mark.parametrize("n_heads", [1, 2, 4, 8])
def test_heads_beyond_one_pattern_a_slot_need_wo(n_heads):
    """Any attention weights without W_O, then the best map of each slot, on samples."""
    cfg = wide_taps.Config(6, 4, 2, "none")
    batch = sample(jax.random.key(9), wide_taps.constants(cfg, 2, "train"), cfg, 4000)
    x_bti, y = np.asarray(batch.inputs, np.float64), np.asarray(batch.targets)[:, 5].reshape(-1, 8)
    bound = wide_taps.ceiling(cfg, 2, model(cfg, n_heads, use_wo=False))
    generator = np.random.default_rng(n_heads)
    for _ in range(8):
        error = 0.0
        for columns in np.split(y, n_heads, axis=1):
            weights = generator.dirichlet(np.full(6, 0.3))
            z = np.einsum("t,bti->bi", weights, x_bti)
            error += np.sum((columns - z @ np.linalg.lstsq(z, columns, rcond=None)[0]) ** 2)
        # A fit of 2 numbers a column to 4,000 samples gains next to nothing.
        assert 1 - error / np.sum(y**2) < bound + 0.005
    slots = wide_taps.baselines(cfg, 2, model(cfg, n_heads))
    assert list(slots) == [f"one_pattern/slot{i}" for i in range(n_heads)]
    assert min(slots.values()) <= bound <= max(slots.values()) + 1e-12
    hidden = wide_taps.Config(6, 4, 2, "linear")
    for with_map in (
        wide_taps.ceiling(cfg, 2, model(cfg, n_heads)),
        wide_taps.ceiling(hidden, 2, model(cfg, n_heads, use_wo=False)),
    ):
        assert with_map > 0.97 * n_heads / 4 if n_heads < 4 else with_map == pytest.approx(1)
        assert with_map >= bound - 1e-9


@pytest.mark.parametrize(
    "changes", [dict(d_ff=8), dict(norm="rms"), dict(residual=True), dict(qk_from="content")]
)
def test_no_ceiling_where_the_argument_does_not_hold(changes):
    assert wide_taps.ceiling(CONFIGS[0], 0, model(CONFIGS[0], 2, **changes)) is None


def test_shared_values_have_less_room():
    cfg = CONFIGS[0]
    shared = model(cfg, 8, n_kv_heads=1)
    assert wide_taps.ceiling(cfg, 0, shared) == pytest.approx(0.5)  # 8 of 16 channels


def test_heads_that_do_not_divide_the_columns_have_no_slots():
    assert wide_taps.baselines(CONFIGS[0], 0, model(CONFIGS[0], 3)) == {}

"""`taps` against a convolution in loops, its ceiling against fits without singular values."""

import dataclasses

import jax
import numpy as np
import pytest
from scipy.optimize import nnls

from mha_jax.config import LayerSpec, ModelSpec
from mha_jax.tasks import block_terms, taps

sample = jax.jit(taps.sample, static_argnums=(2, 3))

CONFIGS = [taps.Config(16, 4, 16), taps.Config(5, 4, 1), taps.Config(9, 1, 3), taps.Config(8, 3, 5)]


def model(n_heads, n_kv_heads, d_head, d_model=64, n_layers=1, **changes):
    layer = LayerSpec("grouped", n_heads, n_kv_heads, d_head, 0, 0, 0, None)
    layer = dataclasses.replace(
        layer, **{field: changes.pop(field) for field in ("d_ff", "mixer") if field in changes}
    )
    base = ModelSpec(
        d_model=d_model,
        layers=(layer,) * n_layers,
        positions="learned",
        norm="none",
        residual=False,
        bias=False,
        activation="gelu",
        scale=True,
        use_wo=True,
        share="none",
        qk_from="positions",
        qk_norm=False,
        gate=False,
        sink_logit=False,
        d_latent=0,
        d_latent_q=0,
        d_rope=0,
        kv_quant="none",
        kv_group=1,
        kv_tail=0,
        kv_init="mean",
        kernel="auto",
        compute_dtype="float32",
        cache_dtype="float32",
    )
    return dataclasses.replace(base, **changes)


@pytest.mark.parametrize("cfg", CONFIGS)
def test_labels_agree_with_the_solver(cfg):
    constants = taps.constants(cfg, 3, "train")
    batch = jax.tree.map(np.asarray, sample(jax.random.key(7), constants, cfg, 24))
    maps = constants["maps"].astype(np.float64)
    for b in range(24):
        for t in range(cfg.length):
            scored = t >= cfg.n_taps
            assert batch.loss_mask[b, t, 0] == scored
            y = np.zeros(cfg.n_channels)
            for j in range(1, cfg.n_taps + 1):
                assert batch.pointers[f"tap{j}"][b, t] == (t - j if scored else -1)
                if scored:
                    y += maps[j - 1] @ batch.inputs[b, t - j].astype(np.float64)
            # Float32 sums of up to 64 terms of order 1.
            np.testing.assert_allclose(batch.targets[b, t, 0], y / cfg.n_taps**0.5, atol=1e-5)


@pytest.mark.parametrize("cfg", CONFIGS)
def test_maps_are_orthogonal(cfg):
    for w in taps.maps(cfg, 1):
        np.testing.assert_allclose(w @ w.T, np.eye(cfg.n_channels), atol=1e-12)


def test_maps_are_uniform_over_the_orthogonal_group():
    # Traces of uniform orthogonal matrices have mean 0 and variance 1; QR without its sign rule
    # gives a mean of about -1.6 at this size. 2,560 matrices: five standard deviations are 0.1.
    cfg = taps.Config(200, 128, 6)
    traces = np.trace(np.concatenate([taps.maps(cfg, s) for s in range(20)]), axis1=1, axis2=2)
    assert abs(traces.mean()) < 0.1
    assert abs(traces.var() - 1) < 0.15


def test_inputs_and_targets_have_unit_variance():
    cfg = CONFIGS[0]
    batch = sample(jax.random.key(8), taps.constants(cfg, 0, "train"), cfg, 2000)
    x, y = np.asarray(batch.inputs), np.asarray(batch.targets)[:, cfg.n_taps :]
    for values in (x, y):
        assert abs(values.mean()) < 0.01
        assert abs(values.var() - 1) < 0.01


def best_mixture(w_joi, n_heads, starts=5, sweeps=80):
    """R^2 of the best sum of `n_heads` terms weight_j x map with weights >= 0, by alternating
    (non-negative) least squares from several starts.
    """
    flat = w_joi.reshape(len(w_joi), -1)
    generator, found = np.random.default_rng(0), []
    for _ in range(starts):
        mix = generator.uniform(size=(len(w_joi), n_heads))
        for _ in range(sweeps):
            head_maps = np.linalg.pinv(mix) @ flat
            mix = np.stack([nnls(head_maps.T, row)[0] for row in flat])
        error = flat - mix @ (np.linalg.pinv(mix) @ flat)
        found.append(1 - np.sum(error**2) / np.sum(flat**2))
    return max(found)


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("cfg", [taps.Config(16, 4, 16), taps.Config(16, 6, 3)])
def test_ceiling_is_the_best_mixture_of_heads(cfg, seed):
    for n_heads in range(1, cfg.n_taps):
        bound = taps.ceiling(cfg, seed, model(n_heads, n_heads, 64))
        # Alternating steps are slow where two maxima are close: a short search may lag.
        assert bound - 2e-2 < best_mixture(taps.maps(cfg, seed), n_heads) < bound + 1e-3


@pytest.mark.parametrize("n_heads", [1, 2, 3, 4])
def test_no_position_only_attention_beats_the_ceiling(n_heads):
    """Any attention weights, then the best linear read-out of the mixed inputs, on samples."""
    cfg = taps.Config(6, 4, 8)
    batch = sample(jax.random.key(9), taps.constants(cfg, 2, "train"), cfg, 4000)
    x_bti, y = np.asarray(batch.inputs, np.float64), np.asarray(batch.targets)[:, 5, 0]
    bound = taps.ceiling(cfg, 2, model(n_heads, n_heads, 8))
    generator = np.random.default_rng(n_heads)
    for _ in range(8):
        weights = generator.dirichlet(np.full(6, 0.3), n_heads)
        z = np.einsum("ht,bti->bhi", weights, x_bti).reshape(len(y), -1)
        error = y - z @ np.linalg.lstsq(z, y, rcond=None)[0]
        # A fit of 32 numbers to 4,000 samples gains at most 1 %.
        assert 1 - np.sum(error**2) / np.sum(y**2) < bound + 0.01
    if n_heads == cfg.n_taps:
        z = x_bti[:, 1:5].reshape(len(y), -1)  # one head an offset
        error = y - z @ np.linalg.lstsq(z, y, rcond=None)[0]
        assert np.sum(error**2) < 1e-9 * np.sum(y**2)
        assert bound == pytest.approx(1.0, abs=1e-12)


def test_ceiling_counts_value_and_output_dimensions():
    cfg = taps.Config(16, 2, 32)
    # For orthogonal maps every dimension carries an equal share.
    for n_kv_heads, d_head in [(8, 8), (4, 8), (2, 8), (1, 8), (1, 3)]:
        expected = min(n_kv_heads * d_head, 32) / 32
        assert taps.ceiling(cfg, 0, model(8, n_kv_heads, d_head)) == pytest.approx(expected)
    assert taps.ceiling(cfg, 0, model(8, 8, 8, d_model=16)) == pytest.approx(0.5)
    assert taps.ceiling(cfg, 0, model(2, 2, 4)) == pytest.approx(0.25)


def test_ceiling_rises_with_heads_to_one():
    cfg = taps.Config(16, 4, 16)
    found = [taps.ceiling(cfg, 5, model(n, n, 16)) for n in range(1, 9)]
    assert all(low < high for low, high in zip(found[:3], found[1:4], strict=True))
    assert found[3:] == pytest.approx([1.0] * 5)
    assert max(found) <= 1.0
    assert found[0] >= 1 / 4


def test_ceiling_is_at_most_the_share_of_the_largest_singular_values():
    cfg = taps.Config(16, 4, 16)
    for seed in range(5):
        shares = np.linalg.svd(taps.maps(cfg, seed).reshape(4, -1), compute_uv=False) ** 2
        bounds = np.cumsum(shares) / shares.sum()
        for n_heads in range(1, 5):
            found = taps.ceiling(cfg, seed, model(n_heads, n_heads, 64))
            assert n_heads / 4 - 1e-9 <= found <= bounds[n_heads - 1] + 1e-9


@pytest.mark.parametrize(
    "changes",
    [
        dict(n_layers=2),
        dict(d_ff=8),
        dict(norm="rms"),
        dict(gate=True),
        dict(mixer="mine"),
        dict(qk_from="content"),
    ],
)
def test_no_ceiling_where_the_argument_does_not_hold(changes):
    assert taps.ceiling(CONFIGS[0], 0, model(2, 2, 8, **changes)) is None
    assert taps.baselines(CONFIGS[0], 0, model(2, 2, 8, **changes)) == {}


def fit(cfg, seed, n_heads, n_kv_heads, d_head, **changes):
    return taps.baselines(cfg, seed, model(n_heads, n_kv_heads, d_head, **changes))["ceiling_fit"]


# n_heads, n_kv_heads, d_head, d_model for 4 taps of 16 channels
ONE_BINDS = [(1, 1, 16, 64), (3, 3, 20, 64), (2, 1, 16, 64), (4, 1, 8, 64), (8, 2, 4, 64)]
NONE_BINDS = [(4, 4, 16, 64), (8, 8, 8, 64), (8, 4, 8, 64), (8, 2, 8, 64), (16, 8, 4, 64)]
MANY_BIND = [(4, 4, 8, 64), (4, 2, 8, 64), (2, 1, 8, 64), (2, 2, 4, 64), (8, 4, 4, 64)]
MANY_BIND += [(4, 4, 8, 8), (3, 3, 16, 12), (1, 1, 3, 64)]


@pytest.mark.parametrize("shape", ONE_BINDS + NONE_BINDS)
def test_the_fit_is_the_ceiling_where_heads_that_reach_it_can_be_written_down(shape):
    cfg = taps.Config(16, 4, 16)
    found = fit(cfg, 0, *shape[:3], d_model=shape[3])
    assert found == taps.ceiling(cfg, 0, model(*shape))
    assert (found == 1.0) == (shape in NONE_BINDS)
    # The search itself gets there too; slowly where maps are free, so that it may lag a little.
    searched = block_terms.best_share(taps.maps(cfg, 0), *shape[:3], shape[3], shape[3])
    assert found - 3e-3 < searched < found + 1e-6


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("shape", MANY_BIND)
def test_the_fit_stays_below_the_ceiling_where_several_limits_bind(shape, seed):
    cfg = taps.Config(16, 4, 16)
    found = fit(cfg, seed, *shape[:3], d_model=shape[3])
    bound = taps.ceiling(cfg, seed, model(*shape))
    assert 0.4 * bound < found < bound - 0.03


def layer(mix_nj, out_noh, value_khi):
    """What a layer with these heads applies to each offset, [j, o, i], in loops."""
    g = len(mix_nj) // len(value_khi)
    return np.stack(
        [
            sum(mix_nj[n, j] * out_noh[n] @ value_khi[n // g] for n in range(len(mix_nj)))
            for j in range(mix_nj.shape[1])
        ]
    )


@pytest.mark.parametrize("heads", [(4, 4, 2), (4, 2, 3), (6, 2, 2), (2, 1, 4)])
def test_the_search_finds_heads_that_were_hidden(heads):
    n, k, h = heads
    draw = np.random.default_rng(n + h)
    mix_nj = draw.dirichlet(np.full(5, 0.5), n)
    target = layer(mix_nj, draw.standard_normal((n, 7, h)), draw.standard_normal((k, h, 6)))
    assert block_terms.best_share(target, n, k, h, 99, 99) > 0.999


@pytest.mark.parametrize("limits", [(99, 99), (3, 99), (99, 3)])
@pytest.mark.parametrize("heads", [(4, 4, 2), (4, 2, 3)])
def test_the_share_is_that_of_the_heads_it_found(heads, limits):
    n, k, h = heads
    target = np.random.default_rng(3).standard_normal((3, 6, 5))
    target /= np.linalg.norm(target)
    search, before = block_terms.Search(target, n, k, h, *limits), 0.0
    for _ in range(5):
        shares = search.run(4)
        assert (shares > before - 1e-6).all()  # no step makes a fit worse
        before = shares
    assert (search.mix_rnj >= 0).all()
    for r, share in enumerate(shares):
        mix_nj, out_noh, value_khi = search.mix_rnj[r], search.out_rnoh[r], search.value_rkhi[r]
        error = target - layer(mix_nj, out_noh, value_khi)
        assert 1 - np.sum(error**2) == pytest.approx(share, abs=1e-9)
        ranks = value_khi.reshape(k * h, -1), np.concatenate(list(out_noh), axis=1)
        for matrix, limit in zip(ranks, limits, strict=True):
            assert np.linalg.matrix_rank(matrix, tol=1e-6) <= limit


def test_spec():
    spec = taps.spec(CONFIGS[0])
    assert spec.roles == ("tap1", "tap2", "tap3", "tap4")
    assert (spec.input_sizes, spec.output_size, spec.length) == ((16,), 16, 16)
    assert spec.mask == "full"
    assert (spec.metric, spec.direction, spec.chance) == ("r2", "max", 0.0)

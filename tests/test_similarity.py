"""Similarity of heads against slow loops in float64, and on heads whose likeness is known."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mha_jax.analysis import cka, similarity
from mha_jax.analysis.cka import linear_cka
from mha_jax.attention.core import visible_keys

B, T, N, K, H = 4, 5, 4, 2, 3
CAUSAL = visible_keys(T)
VALID = np.arange(T) != np.array(
    [[1], [3], [0], [-1]]
)  # other rows in each sequence, all in the last
js_sums, disagreement_sums, cross_sums = map(
    jax.jit, (similarity.js_sums, similarity.disagreement_sums, cka.cross_sums)
)


def random_weights(visible_ts: np.ndarray = CAUSAL, n: int = N, seed: int = 0) -> np.ndarray:
    logits = np.random.default_rng(seed).normal(size=(B, n, *visible_ts.shape))
    weights = np.where(visible_ts, np.exp(2 * logits), 0)
    weights[:, 0] = np.where(visible_ts[:, :1], np.eye(*visible_ts.shape), 0)  # exact zeros
    weights[:, 0, 0] = np.eye(visible_ts.shape[1])[0]
    return weights / np.maximum(weights.sum(-1, keepdims=True), 1e-30)


def random_vectors(n: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(B, T, n, H)) + 0.5


def f32(x: np.ndarray) -> jax.Array:
    return jnp.asarray(x, jnp.float32)


def js_of(weights: np.ndarray, visible_ts: np.ndarray = CAUSAL, valid=None) -> np.ndarray:
    return similarity.js_matrix(js_sums(f32(weights), visible_ts, valid))


def slow_js(weights: np.ndarray, visible_ts: np.ndarray, valid: np.ndarray) -> np.ndarray:
    n = weights.shape[1]
    result = np.zeros((n, n))
    for i, j in itertools.product(range(n), range(n)):
        terms = []
        for b, t in itertools.product(range(B), range(len(visible_ts))):
            if not valid[b, t] or visible_ts[t].sum() < 2:
                continue
            js = 0.0
            for p, q in zip(weights[b, i, t], weights[b, j, t], strict=True):
                m = (p + q) / 2
                js += (p * math.log(p / m) if p else 0) / 2 + (q * math.log(q / m) if q else 0) / 2
            terms.append(js)
        result[i, j] = sum(terms) / len(terms)
    return result


@pytest.mark.parametrize("mask", ["causal", "full"])
def test_js_against_a_slow_loop(mask: str, assert_close) -> None:
    visible_ts = visible_keys(T, mask)
    weights = random_weights(visible_ts)
    for valid in (VALID, np.ones((B, T), bool)):
        assert_close(js_of(weights, visible_ts, valid), slow_js(weights, visible_ts, valid))


def test_js_of_equal_and_of_disjoint_heads() -> None:
    """Exactly 0, and ln 2; rows that see one key would pull both towards 0."""
    visible_ts = visible_keys(T, "full")
    one_hot = np.stack([np.eye(T), np.roll(np.eye(T), 1, axis=0)])
    uniform = np.full((T, T), 1 / T)
    js = js_of(np.broadcast_to([*one_hot, uniform, uniform], (B, 4, T, T)), visible_ts)
    assert (np.diag(js) == 0).all() and js[2, 3] == 0
    assert js[0, 1] == js[1, 0] == pytest.approx(math.log(2), abs=1e-7)
    # Causal: the first row sees itself only, and does not count.
    previous, itself = np.eye(T, k=-1), np.eye(T)
    previous[0, 0] = 1
    js = js_of(np.broadcast_to([previous, itself], (B, 2, T, T)))
    assert js[0, 1] == pytest.approx(math.log(2), abs=1e-7)


def test_js_does_not_read_rows_that_do_not_count() -> None:
    weights = random_weights()
    expected = js_of(weights, valid=VALID)
    spoilt = np.where(VALID[:, None, :, None], weights, np.nan)
    spoilt[:, :, 0] = np.nan
    assert np.array_equal(js_of(spoilt, valid=VALID), expected)
    assert np.isnan(js_of(weights, valid=np.zeros((B, T), bool))).all()


def test_permuted_heads_permute_everything(assert_close) -> None:
    order = np.array([2, 0, 3, 1])
    weights, z, v = random_weights(), random_vectors(N), random_vectors(N, seed=2)
    assert_close(js_of(weights[:, order]), js_of(weights)[np.ix_(order, order)])
    matrix = linear_cka(cross_sums(f32(z)))
    assert_close(linear_cka(cross_sums(f32(z[:, :, order]))), matrix[np.ix_(order, order)])
    per_head = similarity.mean_to_others(js_of(weights))
    assert_close(similarity.mean_to_others(js_of(weights[:, order])), per_head[order])
    terms = [
        similarity.disagreement(disagreement_sums(*map(f32, arrays)))
        for arrays in ((weights, v, z), (weights[:, order], v[:, :, order], z[:, :, order]))
    ]
    assert_close(*terms)


def test_means_over_other_heads(assert_close) -> None:
    matrix = np.array([[0.0, 1.0, 2.0], [1.0, 0.0, 6.0], [2.0, 6.0, 0.0]])
    assert_close(similarity.mean_to_others(matrix), [1.5, 3.5, 4.0])
    assert similarity.layer_mean(matrix) == 3.0
    matrix[1] = matrix[:, 1] = np.nan  # a head that is compared with nothing
    assert np.array_equal(similarity.mean_to_others(matrix), [2, np.nan, 2], equal_nan=True)
    assert similarity.layer_mean(matrix) == 2.0
    assert np.isnan(similarity.mean_to_others(np.zeros((1, 1)))).all()
    assert np.isnan(similarity.layer_mean(np.zeros((1, 1))))


def test_agreement_within_and_across_groups(assert_close) -> None:
    js = js_of(random_weights(n=6))
    got = similarity.agreement(js, 2)
    pairs = [(i, j) for i, j in itertools.product(range(6), range(6)) if i != j]
    within = [[js[i, j] for i, j in pairs if i // 3 == j // 3 == k] for k in range(2)]
    across = np.mean([js[i, j] for i, j in pairs if i // 3 != j // 3])
    assert_close(got.within_k, [np.mean(values) for values in within])
    assert_close(got.within, np.mean(within))
    assert_close(got.across, across)
    assert_close(got.ratio, 1 - np.mean(within) / across)


def test_agreement_of_known_groups() -> None:
    one_hot = np.stack([np.eye(T), np.roll(np.eye(T), 1, axis=0)])
    visible_ts = visible_keys(T, "full")
    grouped, mixed = (
        similarity.agreement(
            js_of(np.broadcast_to(one_hot[order], (B, 4, T, T)), visible_ts), n_kv_heads=2
        )
        for order in ([0, 0, 1, 1], [0, 1, 0, 1])
    )
    assert (grouped.within, grouped.ratio) == (0, 1)
    assert mixed.ratio == pytest.approx(-1)  # ln 2 inside, half of it across
    js = js_of(random_weights())
    alone, mqa = similarity.agreement(js, N), similarity.agreement(js, 1)
    assert np.isnan([*alone.within_k, alone.within, alone.ratio]).all() and alone.across > 0
    assert np.isnan([mqa.across, mqa.ratio]).all() and mqa.within == similarity.layer_mean(js)
    assert np.isnan(similarity.agreement(np.zeros((4, 4)), 2).ratio)  # all heads are equal
    with pytest.raises(ValueError, match="n_kv_heads=3 must divide n_heads=4"):
        similarity.agreement(js, 3)


def slow_cka(x: np.ndarray, y: np.ndarray) -> float:
    x, y = x - x.mean(0), y - y.mean(0)
    norm = np.linalg.norm
    return norm(y.T @ x) ** 2 / (norm(x.T @ x) * norm(y.T @ y))


def test_cka_against_its_definition(assert_close) -> None:
    x = random_vectors(N)
    x[:, :, 1] = x[:, :, 0] @ np.diag([1, 2, 0]) + 0.3 * x[:, :, 1]
    for valid in (None, VALID):
        rows = x[VALID] if valid is not None else x.reshape(-1, N, H)
        expected = [[slow_cka(rows[:, i], rows[:, j]) for j in range(N)] for i in range(N)]
        spoilt = x if valid is None else np.where(valid[:, :, None, None], x, np.nan)
        assert_close(linear_cka(cross_sums(f32(spoilt), valid)), expected)
    assert expected[0][1] > 0.5 > expected[0][2]


def test_cka_of_what_the_heads_write_needs_z_and_wo_only(assert_close) -> None:
    z, wo_nhd = random_vectors(N), np.random.default_rng(5).normal(size=(N, H, 7))
    head_out = np.einsum("btnh,nhd->btnd", z, wo_nhd)
    expected = linear_cka(cross_sums(f32(head_out)))
    assert_close(linear_cka(cross_sums(f32(z)), wo_nhd), expected)
    assert np.abs(expected - linear_cka(cross_sums(f32(z)))).max() > 0.01


def test_cka_knows_no_rotation_scale_or_shift() -> None:
    x = random_vectors(2)
    turn, _ = np.linalg.qr(np.random.default_rng(3).normal(size=(H, H)))
    x[:, :, 1] = 7 * x[:, :, 0] @ turn + 2
    assert linear_cka(cross_sums(f32(x))) == pytest.approx(np.ones((2, 2)), abs=1e-5)


def test_cka_of_uncorrelated_features_is_0() -> None:
    signs = np.array([[1, 1], [1, -1], [-1, 1], [-1, -1]])
    x = 3.0 + signs[None, :, :, None]
    assert linear_cka(cross_sums(f32(x))) == pytest.approx(np.eye(2), abs=1e-9)


def test_cka_of_constant_features_is_undefined_and_spoils_no_other() -> None:
    x = random_vectors(3)
    x[:, :, 1] = 1 / 3
    matrix = linear_cka(cross_sums(f32(x)))
    assert np.isnan(matrix[1]).all() and np.isnan(matrix[:, 1]).all()
    assert np.isfinite(matrix[np.ix_([0, 2], [0, 2])]).all()
    assert np.isnan(linear_cka(cross_sums(f32(x), np.zeros((B, T), bool)))).all()


def test_cka_keeps_a_small_variation_of_a_large_mean() -> None:
    """As of a head on a sink: 1e-3 of variation is lost in float32 second moments about 0."""
    x = random_vectors(2)
    about = np.full((2, H), 1000.0)
    # float32 numbers at 1000 are 6e-5 apart, so the shifted features differ from x by that.
    got = linear_cka(cross_sums(f32(x + about), None, f32(about)))
    assert got == pytest.approx(linear_cka(cross_sums(f32(x))), abs=1e-3)


def test_cka_of_independent_features_is_near_its_stated_baseline() -> None:
    n_rows, c = 40, 8
    x = np.random.default_rng(0).normal(size=(1, n_rows, 30, c))
    mean = similarity.layer_mean(linear_cka(cross_sums(f32(x))))
    # 435 pairs of spread .02: the mean is within .005 of its expectation.
    assert mean == pytest.approx(c / (n_rows + c), abs=0.005)


def slow_disagreement(weights, v, z, valid) -> dict[str, float]:
    """With the values repeated for each query head, as the paper has them."""
    v = v[:, :, np.arange(N) // (N // v.shape[2])]
    total = dict.fromkeys(("sub", "pos", "out"), 0.0)
    for i, j in itertools.product(range(N), range(N)):
        cosines: dict[str, list[float]] = {"sub": [], "out": []}
        for b, t in itertools.product(range(B), range(T)):
            if valid[b, t]:
                for name, x in (("sub", v), ("out", z)):
                    x, y = x[b, t, i], x[b, t, j]
                    cosines[name].append(x @ y / math.sqrt(x @ x) / math.sqrt(y @ y))
                total["pos"] += abs(weights[b, i, t] * weights[b, j, t]).sum() / B
        for name, values in cosines.items():
            total[name] += sum(values) / len(values)
    return {name: -value / N**2 for name, value in total.items()}


@pytest.mark.parametrize("k", [1, 2, 4])
def test_disagreement_against_a_slow_loop(k: int, assert_close) -> None:
    weights, v, z = random_weights(), random_vectors(k), random_vectors(N, seed=2)
    spoilt = (
        np.where(VALID[:, None, :, None], weights, np.nan),
        *(np.where(VALID[:, :, None, None], x, np.nan) for x in (v, z)),
    )
    sums = disagreement_sums(*map(f32, spoilt), VALID)
    got = similarity.disagreement(sums)
    assert got["pos_per_row"] == pytest.approx(got["pos"] * B / VALID.sum())
    del got["pos_per_row"]
    assert_close(got, slow_disagreement(weights, v, z, VALID))


def test_disagreement_of_equal_and_of_orthogonal_heads(assert_close) -> None:
    equal, orthogonal = np.ones((B, T, H, H)), np.broadcast_to(np.eye(H), (B, T, H, H))
    uniform = np.broadcast_to(CAUSAL / CAUSAL.sum(-1, keepdims=True), (B, H, T, T))
    harmonic = sum(1 / n for n in range(1, T + 1))
    expected = {"sub": -1.0, "out": -1 / H, "pos": -harmonic, "pos_per_row": -harmonic / T}
    terms = disagreement_sums(f32(uniform), f32(equal), f32(1e-25 * orthogonal))
    assert_close(similarity.disagreement(terms), expected)


def test_a_vector_of_zeros_has_no_direction(assert_close) -> None:
    weights, z = random_weights(), random_vectors(N)
    z[0, 2, 1] = 0
    sums = disagreement_sums(f32(weights), f32(z), f32(z))
    assert sums["n_out"].sum(0).tolist() == [
        [B * T - (1 in (i, j)) for j in range(N)] for i in range(N)
    ]
    z[:, :, 1] = 0  # a head with no direction at all
    got = similarity.disagreement(disagreement_sums(f32(weights), f32(z), f32(z)))
    assert np.isnan([got["sub"], got["out"]]).all() and np.isfinite(got["pos"])


def test_batches_join(assert_close) -> None:
    weights, v, z = f32(random_weights()), f32(random_vectors(K)), f32(random_vectors(N, seed=2))
    parts = [
        (
            js_sums(weights[i], CAUSAL, VALID[i]),
            disagreement_sums(weights[i], v[i], z[i], VALID[i]),
            cross_sums(z[i], VALID[i]),
        )
        for i in (slice(0, 2), slice(2, B))
    ]
    (js, terms), moments = (
        jax.tree.map(lambda *x: np.concatenate(x), *(part[:2] for part in parts)),
        jax.tree.map(jnp.add, *(part[2] for part in parts)),
    )
    assert_close(similarity.js_matrix(js), js_of(weights, valid=VALID))
    whole = disagreement_sums(weights, v, z, VALID)
    assert_close(similarity.disagreement(terms), similarity.disagreement(whole))
    assert_close(linear_cka(moments), linear_cka(cross_sums(z, VALID)))

"""What sharing kv heads costs, against slow loops and against the attention module itself."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from mha_jax import Attention
from mha_jax.analysis import cka, sharing, similarity
from mha_jax.attention.positions import rope

D, H, K = 8, 4, 4
UNEQUAL = [[2], [0, 3, 1]]
CROSSED = [[0, 2], [3, 1]]


def weights(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(D, K * H)).astype(np.float32)


def attention(n_heads: int, n_kv_heads: int, **switches) -> Attention:
    return Attention(D, n_heads, n_kv_heads, H, rngs=nnx.Rngs(0), **switches)


def params_of(module: Attention, seed: int = 0) -> dict[str, jax.Array]:
    """Its parameters, drawn anew: biases start from zero."""
    rng = np.random.default_rng(seed)
    state = nnx.to_pure_dict(nnx.state(module, nnx.Param))
    return {name: jnp.asarray(rng.normal(size=w.shape), w.dtype) for name, w in state.items()}


def output(module: Attention, params: dict[str, jax.Array]) -> jax.Array:
    x_btd = jax.random.normal(jax.random.key(1), (2, 5, D))
    return nnx.merge(nnx.graphdef(module), params)(x_btd)


@pytest.mark.parametrize("groups", [UNEQUAL, CROSSED, [[3, 1, 0, 2]], [[0], [1], [2], [3]]])
def test_weight_sharing_error_against_a_slow_loop(groups: list[list[int]], assert_close) -> None:
    w = weights()
    columns = [w[:, j * H : (j + 1) * H].astype(np.float64) for j in range(K)]
    expected = []
    for group in groups:
        mean = sum(columns[j] for j in group) / len(group)
        expected.append(sum(np.linalg.norm(columns[j] - mean) ** 2 for j in group))
    got = sharing.weight_sharing_error(w, K, groups)
    assert_close(got.groups, expected)
    assert_close(got.total, sum(expected))
    assert_close(got.share, sum(expected) / np.linalg.norm(w) ** 2)


def test_weight_sharing_error_of_known_heads() -> None:
    head = weights()[:, :H]
    equal = np.concatenate([head] * K, axis=1)
    opposite = np.concatenate([head, -head] * 2, axis=1)
    assert sharing.weight_sharing_error(equal, K, [[0, 1, 2, 3]]).total == 0
    assert sharing.weight_sharing_error(opposite, K, [[0, 1], [2, 3]]).share == 1
    assert sharing.weight_sharing_error(opposite, K, [[0, 2], [1, 3]]).share == 0
    assert np.isnan(sharing.weight_sharing_error(0 * equal, K, UNEQUAL).share)
    # Permuted heads under a grouping permuted alike.
    order = [2, 0, 3, 1]
    permuted = weights().reshape(D, K, H)[:, order].reshape(D, -1)
    again = [[order.index(head) for head in group] for group in UNEQUAL]
    before = sharing.weight_sharing_error(weights(), K, UNEQUAL)
    assert sharing.weight_sharing_error(permuted, K, again).groups == pytest.approx(before.groups)


def test_independent_heads_have_the_stated_baseline() -> None:
    w = np.random.default_rng(0).normal(size=(64, 8 * 32))
    for groups in ([[0, 5, 1], [2], [3, 4, 6, 7]], sharing.contiguous(8, 2), [list(range(8))]):
        share = sharing.weight_sharing_error(w, 8, groups).share
        # 2048 numbers a head: the share spreads by less than .01.
        assert share == pytest.approx(1 - len(groups) / 8, abs=0.01)


def test_pool_and_tie_against_slow_loops(assert_close) -> None:
    w, bias = weights(), weights()[0]
    pooled = np.zeros((D, len(UNEQUAL) * H))
    tied = np.zeros((D, K * H))
    for i, group in enumerate(UNEQUAL):
        for column in range(H):
            mean = sum(w[:, j * H + column].astype(np.float64) for j in group) / len(group)
            pooled[:, i * H + column] = mean
            for j in group:
                tied[:, j * H + column] = mean
    for function, expected in ((sharing.pool, pooled), (sharing.tie, tied)):
        traced = jax.jit(lambda w, function=function: function(w, K, UNEQUAL))
        assert_close(traced(w), expected)
        assert_close(traced(bias), expected[0])


@pytest.mark.parametrize(
    ("groups", "switches"),
    [
        (CROSSED, {}),
        (CROSSED, {"bias": True, "gate": True, "rope": True}),
        ([[1, 3, 0, 2]], {"qk_norm": True}),
    ],
)
def test_the_pooled_model_equals_the_tied_one(groups, switches, assert_close) -> None:
    n = 2 * K
    module, smaller = attention(n, K, **switches), attention(n, len(groups), **switches)
    params = params_of(module)
    tied = output(module, sharing.tie_heads(params, K, groups))
    pooled = sharing.pool_heads(params, n, K, groups)
    assert_close(output(smaller, pooled), tied)
    assert float(jnp.abs(tied - output(module, params)).max()) > 0.1
    shapes = jax.tree.map(jnp.shape, nnx.to_pure_dict(nnx.state(smaller, nnx.Param)))
    assert jax.tree.map(jnp.shape, pooled) == shapes


def test_alike_heads_cost_nothing(assert_close) -> None:
    module = attention(2 * K, K, bias=True)
    params = sharing.tie_heads(params_of(module), K, UNEQUAL)
    assert_close(output(module, sharing.tie_heads(params, K, UNEQUAL)), output(module, params))


def test_shared_matrices(assert_close) -> None:
    module, smaller = attention(2 * K, K, share="kv"), attention(2 * K, 2, share="kv")
    params = params_of(module)
    assert "wv" not in params
    tied = output(module, sharing.tie_heads(params, K, CROSSED))
    assert_close(output(smaller, sharing.pool_heads(params, 2 * K, K, CROSSED)), tied)
    for share in ("qk", "qkv"):
        params = params_of(attention(K, K, share=share))
        for function in (sharing.tie_heads, lambda *a: sharing.pool_heads(a[0], K, *a[1:])):
            with pytest.raises(ValueError, match="make keys by wq"):
                function(params, K, CROSSED)


def test_without_wo_query_heads_stay(assert_close) -> None:
    module, smaller = attention(2 * K, K, use_wo=False), attention(2 * K, 2, use_wo=False)
    params, neighbours = params_of(module), sharing.contiguous(K, 2)
    tied = output(module, sharing.tie_heads(params, K, neighbours))
    assert_close(output(smaller, sharing.pool_heads(params, 2 * K, K, neighbours)), tied)
    with pytest.raises(ValueError, match="needs a wo; use tie_heads"):
        sharing.pool_heads(params, 2 * K, K, CROSSED)


def test_bad_groups_are_refused_in_one_line() -> None:
    params = params_of(attention(2 * K, K))
    for groups in ([[0, 1], [2]], [[0, 1], [1, 2, 3]], [[0, 1, 2, 3], []], [[0, 1, 2, 4]]):
        for call in (
            lambda groups=groups: sharing.weight_sharing_error(weights(), K, groups),
            lambda groups=groups: sharing.pool(weights(), K, groups),
            lambda groups=groups: sharing.pool_heads(params, 2 * K, K, groups),
        ):
            with pytest.raises(ValueError, match=r"must hold each of 0\.\.3 once, none empty"):
                call()
    with pytest.raises(ValueError, match="differ in size"):
        sharing.pool_heads(params, 2 * K, K, UNEQUAL)
    with pytest.raises(ValueError, match="n_groups=3 must divide n_kv_heads=4"):
        sharing.contiguous(4, 3)
    with pytest.raises(ValueError, match="n_kv_heads=3 must divide the 16 columns"):
        sharing.pool(weights(), 3, [[0, 1, 2]])
    with pytest.raises(ValueError, match="n_kv_heads=4 must divide n_heads=6"):
        sharing.query_order(6, 4, CROSSED)
    assert sharing.contiguous(6, 2) == [[0, 1, 2], [3, 4, 5]]


def test_keys_are_compared_before_their_rotation(assert_close) -> None:
    """Two kv heads whose keys are equal up to a rotation: only then does CKA see it."""
    k_bskh = jax.random.normal(jax.random.key(0), (4, 32, 2, H))
    turn, _ = np.linalg.qr(np.random.default_rng(0).normal(size=(H, H)))
    k_bskh = k_bskh.at[:, :, 1].set(k_bskh[:, :, 0] @ jnp.asarray(turn, jnp.float32))
    rotated = rope(k_bskh)
    assert_close(sharing.before_rotation(rotated), k_bskh)
    before, after = (
        similarity.layer_mean(cka.linear_cka(cka.cross_sums(keys)))
        for keys in (sharing.before_rotation(rotated), rotated)
    )
    assert before == pytest.approx(1, abs=1e-5)
    assert after < 0.9

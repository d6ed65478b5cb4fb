"""Fewer kv heads for a trained model: against the model itself, slow loops and scipy."""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg
from shapes import model_of, spec_of

from mha_jax.analysis import conversion, grouping, procrustes, sharing
from mha_jax.attention.positions import rope
from mha_jax.model import build

N, K, H, D = 8, 4, 4, 16
SPEC = spec_of()
TOKENS = jax.random.randint(jax.random.key(1), (3, 6), 0, 11)
# d_model 16 of 8 heads of 4: query heads in pairs, so that a group is more than its kv head.
PLAIN = model_of(n_heads=N, n_kv_heads=K, positions="none")
ROPE = model_of(n_heads=N, n_kv_heads=K, positions="rope", bias=True)
GATED = model_of(n_heads=N, n_kv_heads=K, positions="none", gate=True, bias=True)
NORMED = model_of(n_heads=N, n_kv_heads=K, positions="rope", qk_norm=True)
CROSSED = [[0, 2], [1, 3]]


@functools.cache
def program(model):
    """Compiled once for each model."""
    return jax.jit(lambda params, tokens: build(model, SPEC).apply(params, tokens)[0])


def run(params, model):
    return program(model)(params, TOKENS)


@functools.cache
def shapes(model):
    return jax.eval_shape(build(model, SPEC).init, jax.random.key(0))


def trained(model, seed=0):
    """Parameters with nothing left of their init: biases and scales too."""
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda x: jnp.asarray(rng.normal(size=x.shape) / 2, x.dtype), shapes(model))


def with_mixers(params, *mixers):
    """The parameters with other arrays in the mixers of their layers."""
    layers = {
        str(i): {**params["layers"][str(i)], "mixer": params["layers"][str(i)]["mixer"] | mixer}
        for i, mixer in enumerate(mixers)
    }
    return {**params, "layers": layers}


def mixer_of(params, i=0):
    return params["layers"][str(i)]["mixer"]


def rotations(seed, how):
    """An orthogonal matrix for each kv head: any, or such as commute with rope."""
    rng = np.random.default_rng(seed)
    if how == "any":
        return np.linalg.qr(rng.normal(size=(K, H, H)))[0]
    out = np.zeros((K, H, H))
    for k, i in itertools.product(range(K), range(H // 2)):
        phase = np.exp(1j * rng.uniform(0, 2 * np.pi))
        for a in (i, i + H // 2):
            unit = (np.eye(H)[a, i] + 1j * np.eye(H)[a, i + H // 2]) * phase
            out[k, a, i], out[k, a, i + H // 2] = unit.real, unit.imag
    return out


def repeated(params, groups, how):
    """A mixer of 2 kv heads written with 4 that are copies, shuffled into `groups`, each turned."""
    small = {name: np.asarray(w, np.float64) for name, w in mixer_of(params).items()}
    turn_keys, turn_values = rotations(1, how), rotations(2, "any")
    group_of = {head: i for i, group in enumerate(groups) for head in group}
    # Query heads 4i..4i+3 read small kv head i; its copies share them out in pairs.
    queries = {
        head: [4 * i + 2 * groups[i].index(head) + j for j in range(2)]
        for head, i in group_of.items()
    }

    def cut(name, head):
        return small[name][..., head * H : (head + 1) * H]

    big = {}
    for names, turns in ((("wk", "bk"), turn_keys), (("wv", "bv"), turn_values)):
        for name in names:
            if name in small:
                big[name] = np.concatenate(
                    [cut(name, group_of[j]) @ turns[j] for j in range(K)], -1
                )
    for name in ("wq", "bq"):
        if name in small:
            big[name] = np.concatenate(
                [cut(name, q) @ turn_keys[j] for j in range(K) for q in queries[j]], -1
            )
    big["wo"] = np.concatenate(
        [turn_values[j].T @ small["wo"][q * H : (q + 1) * H] for j in range(K) for q in queries[j]]
    )
    return {name: jnp.asarray(w, jnp.float32) for name, w in big.items()}


def kv_heads(model, *counts):
    layers = zip(model.layers, counts, strict=True)
    return dataclasses.replace(
        model, layers=tuple(dataclasses.replace(layer, n_kv_heads=k) for layer, k in layers)
    )


@pytest.mark.parametrize("method", conversion.METHODS)
def test_a_fresh_model_of_the_new_spec_has_the_same_tree(method):
    model = dataclasses.replace(GATED, layers=GATED.layers * 3, qk_norm=True)
    key = jax.random.key(5)
    params, smaller, groups, _ = conversion.convert(
        trained(model), model, [2, 4, 1], method, key=key
    )
    assert smaller == kv_heads(model, 2, 4, 1)
    like = jax.tree.map(lambda x: (x.shape, x.dtype), shapes(smaller))
    assert jax.tree.map(lambda x: (x.shape, x.dtype), params) == like
    assert [len(g) for g in groups] == [2, 4, 1]
    build(smaller, SPEC)


@pytest.mark.parametrize("method", conversion.METHODS)
def test_as_many_kv_heads_is_the_identity(method):
    params = trained(ROPE)
    same = conversion.convert(params, ROPE, K, method, align=True, key=jax.random.key(0))
    assert same.model == ROPE and same.aligned == ()
    jax.tree.map(np.testing.assert_array_equal, same.params, params)


def test_mean_and_first_against_slow_loops(assert_close):
    params = trained(GATED)
    for method in ("mean", "first"):
        got = mixer_of(conversion.convert(params, GATED, 2, method).params)
        for name, w in mixer_of(params).items():
            expected = np.asarray(w, np.float64)
            if name in ("wk", "wv", "bk", "bv"):
                expected = expected[..., : 2 * H].copy()
                for group, column in itertools.product(range(2), range(H)):
                    ours = [w[..., (2 * group + j) * H + column] for j in range(2)]
                    expected[..., group * H + column] = (
                        (np.asarray(ours[0], np.float64) + ours[1]) / 2
                        if method == "mean"
                        else ours[0]
                    )
            assert_close(got[name], expected)


@pytest.mark.parametrize("kv_init", ["mean", "fresh"])
def test_random_is_the_draw_of_a_fresh_model(kv_init):
    model = dataclasses.replace(GATED, layers=GATED.layers * 2, kv_init=kv_init)
    key, params = jax.random.key(7), trained(model)
    made = conversion.convert(params, model, [4, 2], "random", key=key)
    fresh = build(made.model, SPEC).init(key)
    for name, w in mixer_of(params, 1).items():
        kept = mixer_of(fresh, 1)[name] if name in ("wk", "wv", "bk", "bv") else w
        np.testing.assert_array_equal(mixer_of(made.params, 1)[name], kept)
    jax.tree.map(np.testing.assert_array_equal, mixer_of(made.params), mixer_of(params))


@pytest.mark.parametrize("model", [GATED, ROPE])
def test_the_order_of_kv_heads_means_nothing(model, assert_close):
    params = trained(model)
    moved = sharing.pool_heads(mixer_of(params), N, K, [[2], [0], [3], [1]])
    assert float(jnp.abs(moved["wk"] - mixer_of(params)["wk"]).max()) > 0.1
    assert_close(run(with_mixers(params, moved), model), run(params, model))


@pytest.mark.parametrize("method", ["mean", "first", "similar"])
def test_alike_heads_are_merged_without_loss(method, assert_close):
    params = trained(GATED)
    groups = CROSSED if method == "similar" else sharing.contiguous(K, 2)
    params = with_mixers(params, sharing.tie_heads(mixer_of(params), K, groups))
    made = conversion.convert(params, GATED, 2, method)
    assert made.groups == (groups,)
    assert_close(run(made.params, made.model), run(params, GATED))


@pytest.mark.parametrize(
    ("model", "what", "how"),
    [
        (PLAIN, "keys", "any"),
        (PLAIN, "values", "any"),
        (ROPE, "keys", "phases"),
        (ROPE, "values", "any"),
        (GATED, "keys", "any"),
        (NORMED, "values", "any"),
    ],
)
def test_turning_heads_changes_no_output(model, what, how, assert_close):
    params = trained(model)
    turned = procrustes.turn(mixer_of(params), what, rotations(0, how))
    turned = {name: jnp.asarray(w, jnp.float32) for name, w in turned.items()}
    assert what in procrustes.turnable(model)
    assert_close(run(with_mixers(params, turned), model), run(params, model))


@pytest.mark.parametrize(
    ("model", "what", "how"),
    [(ROPE, "keys", "any"), (NORMED, "keys", "phases"), (GATED, "values", "any")],
)
def test_what_may_not_turn_would_change_outputs(model, what, how):
    params = trained(model)
    turned = procrustes.turn(mixer_of(params), what, rotations(0, how))
    turned = {name: jnp.asarray(w, jnp.float32) for name, w in turned.items()}
    change = run(with_mixers(params, turned), model) - run(params, model)
    assert float(jnp.abs(change).max()) > 0.01


@pytest.mark.parametrize("model", [PLAIN, ROPE, GATED, NORMED])
def test_unlike_heads_are_turned_nearer_by_what_the_model_allows(model, assert_close):
    params = trained(model)
    mixer = mixer_of(params)
    groups, sums = CROSSED, conversion.weight_sums(mixer, K)
    turned = procrustes.align(mixer, model, groups, sums)
    for what, name in (("keys", "wk"), ("values", "wv")):
        before, after = (sharing.weight_sharing_error(p[name], K, groups) for p in (mixer, turned))
        if what in procrustes.turnable(model):
            assert after.total < 0.95 * before.total
        else:
            assert after.total == before.total
    turned = {name: jnp.asarray(w, jnp.float32) for name, w in turned.items()}
    assert_close(run(with_mixers(params, turned), model), run(params, model))


def test_weights_are_compared_with_their_biases(assert_close):
    mixer = mixer_of(trained(ROPE))
    sums = conversion.weight_sums(mixer, K)
    for what, letter in (("keys", "k"), ("values", "v")):
        rows = [*np.asarray(mixer[f"w{letter}"], np.float64), np.asarray(mixer[f"b{letter}"])]
        assert_close(
            sums[what]["moment"].reshape(K * H, K * H), sum(np.outer(row, row) for row in rows)
        )
        assert not sums[what]["total"].any()


@pytest.mark.parametrize(("model", "how"), [(PLAIN, "any"), (ROPE, "phases")])
def test_repeated_shuffled_and_turned_heads_are_found_again(model, how, assert_close):
    small = kv_heads(model, 2)
    params = trained(small)
    big = with_mixers(params, repeated(params, CROSSED, how))
    expected = run(params, small)
    assert_close(run(big, model), expected)
    made = conversion.convert(big, model, 2, "similar", align=True)
    assert made.groups == (CROSSED,) and made.aligned == ("keys", "values")
    # Query heads come back in another order, and float32 weights were turned twice.
    assert_close(run(made.params, small), expected, 1e-4)
    for method, align in (("mean", False), ("mean", True), ("similar", False)):
        lossy = conversion.convert(big, model, 2, method, align=align)
        assert float(jnp.abs(run(lossy.params, small) - expected).max()) > 0.05, method


def test_activations_decide_where_weights_mislead(assert_close):
    """Heads that differ only in directions that no input takes."""
    small = kv_heads(PLAIN, 2)
    params = trained(small)
    embed = params["encoder"]["embed"]["0"].at[:, D // 2 :].set(0)
    params["encoder"]["embed"]["0"] = embed
    mixer = repeated(params, CROSSED, "any")
    noise = np.random.default_rng(3).normal(size=(2, D // 2, 2, H)) * 20
    unused = np.concatenate([noise[:, :, :1]] * 2 + [noise[:, :, 1:]] * 2, axis=2)
    for name, rows in zip(("wk", "wv"), unused.reshape(2, D // 2, -1), strict=True):
        mixer[name] = mixer[name].at[D // 2 :].set(rows)
    big, expected = with_mixers(params, mixer), run(params, small)
    assert_close(run(big, PLAIN), expected)

    def probed(params, tokens):
        probe = functools.partial(conversion.head_sums, rope=False)
        return build(PLAIN, SPEC).apply(params, tokens, probe=probe)[1]

    seen = jax.jit(probed)(big, TOKENS)
    by_weights = conversion.convert(big, PLAIN, 2, "similar", align=True)
    assert by_weights.groups == ([[0, 1], [2, 3]],)
    made = conversion.convert(big, PLAIN, 2, "similar", align=True, activations=seen)
    assert made.groups == (CROSSED,)
    # Moments are float32 sums.
    assert_close(run(made.params, made.model), expected, 1e-4)


def test_keys_are_seen_before_their_rotation(assert_close):
    k_bskh, v_bskh = jax.random.normal(jax.random.key(0), (2, 3, 6, K, H))
    found = conversion.head_sums({"k_bskh": rope(k_bskh), "v_bskh": v_bskh}, rope=True)
    for what, x in (("keys", k_bskh), ("values", v_bskh)):
        rows = np.asarray(x, np.float64).reshape(18, K, H)
        assert_close(found[what]["moment"], np.einsum("rkh,rje->khje", rows, rows))
    assert conversion.head_sums({"resid_btd": k_bskh}, rope=True) == {}


@pytest.mark.parametrize(("k", "n_groups"), [(6, 3), (6, 2), (8, 4)])
def test_small_layers_get_the_best_groups_of_all(k, n_groups):
    alike = np.random.default_rng(k).uniform(size=(k, k))
    alike = alike + alike.T

    def inside(groups):
        return sum(alike[i, j] for group in groups for i, j in itertools.combinations(group, 2))

    size = k // n_groups
    best = max(
        inside([order[i : i + size] for i in range(0, k, size)])
        for order in itertools.permutations(range(k))
        if order[0] == 0
    )
    groups = grouping.balanced(alike, n_groups)
    sharing.check_groups(groups, k)
    assert {len(group) for group in groups} == {size}
    assert inside(groups) == pytest.approx(best)


def test_large_layers_find_planted_groups_and_no_swap_helps():
    k, n_groups, rng = 16, 4, np.random.default_rng(0)
    planted = sorted(sorted(group) for group in rng.permutation(k).reshape(n_groups, -1).tolist())
    alike = rng.uniform(0, 0.4, size=(k, k))
    for group in planted:
        alike[np.ix_(group, group)] += 0.5
    assert grouping.balanced(alike + alike.T, n_groups) == planted
    alike = rng.uniform(size=(k, k))
    alike = alike + alike.T
    groups = grouping.balanced(alike, n_groups)
    assert groups == grouping.balanced(alike, n_groups)
    sharing.check_groups(groups, k)

    def inside(groups):
        return sum(alike[i, j] for group in groups for i, j in itertools.combinations(group, 2))

    for a, b in itertools.combinations(range(n_groups), 2):
        for i, j in itertools.product(range(4), range(4)):
            swapped = [list(group) for group in groups]
            swapped[a][i], swapped[b][j] = swapped[b][j], swapped[a][i]
            assert inside(swapped) <= inside(groups) + 1e-6


def test_equal_heads_stay_neighbours():
    for k in (8, 12):
        undefined = np.full((k, k), np.nan)
        for alike in (np.ones((k, k)), undefined, 1 - 1e-15 * np.arange(k * k).reshape(k, k)):
            assert grouping.balanced(alike, 4) == sharing.contiguous(k, 4)


def test_procrustes_against_scipy_and_a_scan_of_angles(assert_close):
    x, y = np.random.default_rng(0).normal(size=(2, 20, H))
    assert_close(procrustes.orthogonal(x.T @ y), scipy.linalg.orthogonal_procrustes(x, y)[0])
    turn = procrustes.phases(x.T @ y)
    angles = np.linspace(0, 2 * np.pi, 3601)
    for i in range(H // 2):
        pair = [i, i + H // 2]
        x_c, y_c = (z[:, pair[0]] + 1j * z[:, pair[1]] for z in (x, y))
        misses = [np.linalg.norm(x_c * np.exp(1j * angle) - y_c) for angle in angles]
        got = np.linalg.norm((x @ turn - y)[:, pair])
        # The scan is by .1 degrees: its best is above the true one by less than 1e-4.
        assert got <= min(misses) + 1e-9 and got == pytest.approx(min(misses), abs=1e-4)
    x_btnh = jnp.asarray(x.reshape(1, 20, 1, H), jnp.float32)
    turn = jnp.asarray(turn, jnp.float32)
    assert_close(rope(x_btnh @ turn[None, None]), rope(x_btnh) @ turn[None, None])


def test_what_cannot_be_converted_is_refused_in_one_line():
    def refused(match, model=PLAIN, n_kv_heads=2, method="mean", **more):
        with pytest.raises(ValueError, match=match) as error:
            conversion.convert({}, model, n_kv_heads, method, **more)
        assert "\n" not in str(error.value)

    user = dataclasses.replace(PLAIN.layers[0], mixer="my.py@0123456789")
    mixed = dataclasses.replace(PLAIN, layers=(PLAIN.layers[0], user))
    refused("layer 0: n_kv_heads=3 must divide its 4", n_kv_heads=3)
    refused("layer 0: n_kv_heads=0 must divide its 4", n_kv_heads=0)
    refused("layer 1: only the mixer 'grouped' converts, not 'my.py", mixed)
    refused("must be one number or one for each of 2 layers", mixed, [2])
    refused("is not one of mean, first, random, similar", method="median")
    refused("'similar' moves query heads", model_of(use_wo=False), method="similar")
    refused("'random' keeps no kv head: it needs a key", method="random")
    refused("'random' keeps no kv head", method="random", align=True, key=jax.random.key(0))
    refused("activations of 2 layers, the model has 1", activations=[{}, {}])
    refused("share='qk': wq makes the keys", model_of(share="qk"))
    refused("share= ties them", model_of(share="kv"), align=True)
    refused("qk_norm, and gate or no wo", model_of(gate=True, qk_norm=True), align=True)
    with pytest.raises(ValueError, match="n_groups=3 must divide the 4 heads"):
        grouping.balanced(np.eye(4), 3)
    assert procrustes.turnable(NORMED) == ("values",)
    assert procrustes.turnable(GATED) == ("keys",)

"""The attention functions and the module `Attention`: what they promise beyond parity."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from shapes import model_of

from mha_jax import cost
from mha_jax.attention import core, fast, grouped
from mha_jax.attention.grouped import Attention
from mha_jax.attention.positions import rope
from mha_jax.attention.stops import STOPS, Context
from mha_jax.config import LayerSpec

EXPECTED_TABLES = {
    core.Mask("causal"): ["1000", "1100", "1110", "1111"],
    core.Mask("full"): ["1111"] * 4,
    core.Mask("context_query", n_context=2): ["1100"] * 4,
    core.Mask("causal", window=2): ["1000", "1100", "0110", "0011"],
    core.Mask("causal", window=1, n_sinks=1): ["1000", "1100", "1010", "1001"],
}


@pytest.mark.parametrize("mask", EXPECTED_TABLES, ids=str)
def test_which_keys_a_query_sees(mask):
    table = core.visible_keys(4, mask[0], n_context=mask[1], window=mask[2], n_sinks=mask[3])
    assert ["".join(map(str, row.astype(int))) for row in table] == EXPECTED_TABLES[mask]


def test_masks_that_mean_nothing_are_refused():
    with pytest.raises(ValueError, match="mask='cuasal' is not one of causal, full"):
        core.visible_keys(4, "cuasal")
    with pytest.raises(ValueError, match="window=3 needs mask='causal', not 'full'"):
        core.visible_keys(4, "full", window=3)


def test_two_tokens_by_hand(assert_close):
    # Scores of token 1: 1 * 0 and 1 * log 3, so weights 1/4 and 3/4, and z = 4/4 + 3/4 * 8 = 7.
    q = jnp.ones((1, 2, 1, 1, 1))
    k = jnp.array([0.0, np.log(3.0)]).reshape(1, 2, 1, 1)
    v = jnp.array([4.0, 8.0]).reshape(1, 2, 1, 1)
    attended = core.reference(q, k, v, core.Mask("causal"), 1.0)
    assert_close(attended.weights_bkgts[0, 0, 0], [[1.0, 0.0], [0.25, 0.75]])
    assert_close(attended.z_btkgh[0, :, 0, 0, 0], [4.0, 7.0])
    assert_close(fast.fast(q, k, v, core.Mask("causal"), 1.0)[0, :, 0, 0, 0], [4.0, 7.0])


@pytest.mark.parametrize("kernel", ["fast", "reference"])
@pytest.mark.parametrize(
    ("length", "position"), [(9, 4), (150, 63), (150, 64), (600, 128), (600, 599)]
)
def test_no_gradient_from_the_future(kernel, length, position):
    attention = Attention(8, 2, 1, kernel=kernel, rngs=nnx.Rngs(0))
    x = jax.random.normal(jax.random.key(1), (1, length, 8))
    grad = jax.jit(jax.grad(lambda x: jnp.sum(attention(x)[0, position] ** 2)))(x)[0]
    assert np.all(np.abs(grad[: position + 1]).sum(axis=1) > 0)
    assert np.all(grad[position + 1 :] == 0)


def test_huge_scores_stay_finite():
    q = 1e4 * jnp.ones((1, 20, 1, 2, 4))
    k = jnp.linspace(-1e4, 1e4, 20 * 4).reshape(1, 20, 1, 4)
    for mask in (core.Mask("causal"), core.Mask("full")):
        by_q = jax.grad(lambda q, mask=mask: fast.fast(q, k, k, mask, 1.0).sum())(q)
        assert np.isfinite(by_q).all()
        assert np.isfinite(fast.fast(q, k, k, mask, 1.0)).all()


# --- the module --------------------------------------------------------------------------------


def params_of(attention):
    return nnx.to_pure_dict(nnx.state(attention, nnx.Param))


def count(attention):
    return sum(x.size for x in jax.tree.leaves(params_of(attention)))


@pytest.mark.parametrize("n_heads", [1, 2, 4, 8, 16])
def test_parameters_are_4_d_squared_at_every_head_count(n_heads):
    assert count(Attention(16, n_heads, rngs=nnx.Rngs(0))) == 4 * 16**2


@pytest.mark.parametrize("n_heads", [2, 4, 8, 16])
def test_every_head_count_starts_from_identical_weights(n_heads):
    one, many = (params_of(Attention(16, n, rngs=nnx.Rngs(0))) for n in (1, n_heads))
    assert one.keys() == many.keys()
    for name in one:
        np.testing.assert_array_equal(one[name], many[name])


def product_flops(program: str) -> int:
    """2 * multiply-and-adds of all matrix products in the text of a compiled program."""
    shapes = {
        name: [int(size) for size in sizes.split(",") if size]
        for name, sizes in re.findall(r"%?([\w.\-]+)(?: =|:) \w+\[([\d,]*)\]", program)
    }
    flops = 0
    for out, lhs, axes in re.findall(
        r"= \w+\[([\d,]*)\]\S* dot\((?:\w+\[[\d,]*\]\S* )?%?([\w.\-]+),"
        r".*?lhs_contracting_dims=\{([\d,]*)\}",
        program,
    ):
        contracted = [shapes[lhs][int(axis)] for axis in axes.split(",")]
        flops += 2 * int(np.prod([int(size) for size in out.split(",")]) * np.prod(contracted))
    return flops


@pytest.mark.parametrize("n_kv_heads", ["n", 1])
def test_matrix_products_cost_the_same_at_every_head_count(n_kv_heads):
    b, t, d, forward, both = 2, 24, 32, [], []
    x = jax.random.normal(jax.random.key(0), (b, t, d))
    for n in (2, 4, 8):
        k = n if n_kv_heads == "n" else n_kv_heads
        graph, params = nnx.split(Attention(d, n, k, mask="full", rngs=nnx.Rngs(0)))

        def run(params, x, graph=graph):
            return jnp.sum(nnx.merge(graph, params)(x) ** 2)

        for function, counts in ((run, forward), (jax.grad(run, argnums=(0, 1)), both)):
            counts.append(product_flops(jax.jit(function).lower(params, x).compile().as_text()))
        layer, model = LayerSpec("grouped", n, k, d // n, 0, 0, 0, None), model_of(d_model=d)
        told = cost.mixer_cost(layer, model)
        assert forward[-1] == b * t * (told.flops + told.flops_per_key * t)
    if n_kv_heads == "n":
        assert len(set(forward)) == len(set(both)) == 1
        assert forward[0] == 2 * b * t * (4 * d**2 + 2 * t * d)
    assert both == [3 * f for f in forward]


@pytest.mark.parametrize("kernel", ["fast", "reference"])
@pytest.mark.parametrize("n_kv_heads", [4, 2, 1])
def test_grouped_attention_is_mha_with_repeated_keys_and_values(n_kv_heads, kernel, assert_close):
    d, n, h = 12, 4, 3
    x = jax.random.normal(jax.random.key(0), (2, 20, d))
    few = Attention(d, n, n_kv_heads, kernel=kernel, rngs=nnx.Rngs(0))
    mha = Attention(d, n, kernel=kernel, rngs=nnx.Rngs(0))
    for name in ("wk", "wv"):  # head i of the MHA gets what kv head i // g has
        w_dkh = getattr(few, name)[...].reshape(d, n_kv_heads, h)
        repeated = np.repeat(w_dkh, n // n_kv_heads, axis=1).reshape(d, n * h)
        getattr(mha, name)[...] = jnp.asarray(repeated)
    assert_close(few(x), mha(x))


def test_default_is_mha_and_one_kv_head_is_mqa():
    rngs = {"rngs": nnx.Rngs(0)}
    assert Attention(16, 4, **rngs).wk.shape == Attention(16, 4, 4, **rngs).wk.shape == (16, 16)
    assert Attention(16, 4, 1, **rngs).wk.shape == (16, 4)


@pytest.mark.parametrize("n_kv_heads", [8, 4, 2, 1])
def test_fewer_kv_heads_start_as_rescaled_group_means(n_kv_heads, assert_close):
    d, n, h = 64, 8, 8
    mha = Attention(d, n, rngs=nnx.Rngs(0))
    few = Attention(d, n, n_kv_heads, rngs=nnx.Rngs(0))
    for name in ("wk", "wv"):
        full = np.asarray(getattr(mha, name)[...]).reshape(d, n_kv_heads, n // n_kv_heads, h)
        expected = full.mean(axis=2) * np.sqrt(n // n_kv_heads)
        assert_close(getattr(few, name)[...], expected.reshape(d, -1))
        # 512 or more draws of d^-1/2: their standard deviation is known to 3 %; four times that.
        assert np.std(getattr(few, name)[...]) * d**0.5 == pytest.approx(1, abs=0.13)
    np.testing.assert_array_equal(few.wq[...], mha.wq[...])


def test_fresh_kv_weights_are_another_draw_except_for_mha():
    def wk(k, kv_init):
        return np.asarray(Attention(16, 4, k, kv_init=kv_init, rngs=nnx.Rngs(0)).wk[...])

    np.testing.assert_array_equal(wk(4, "mean"), wk(4, "fresh"))
    assert np.abs(wk(2, "mean") - wk(2, "fresh")).max() > 0.1


def test_equal_heads_give_equal_weights_and_one_head_of_full_scale(assert_close):
    # All heads made copies of head 0: n weights of one kind, and z is head 0's, n times.
    d, n, h = 12, 3, 4
    attention = Attention(d, n, rngs=nnx.Rngs(0))
    for name in ("wq", "wk", "wv"):
        w = getattr(attention, name)
        w[...] = jnp.tile(w[:, :h], (1, n))
    x = jax.random.normal(jax.random.key(1), (2, 7, d))
    y, weights_bnts = attention(x, return_weights=True)
    for i in range(1, n):
        np.testing.assert_array_equal(weights_bnts[:, i], weights_bnts[:, 0])
    single = Attention(d, 1, d_head=h, rngs=nnx.Rngs(0))
    for name in ("wq", "wk", "wv"):
        getattr(single, name)[...] = getattr(attention, name)[:, :h]
    single.wo[...] = attention.wo[...].reshape(n, h, d).sum(axis=0)
    assert_close(y, single(x))


@pytest.mark.parametrize("n_kv_heads", [4, 2, 1])
def test_weights_on_request(n_kv_heads, assert_close):
    attention = Attention(16, 4, n_kv_heads, rngs=nnx.Rngs(0))
    x = jax.random.normal(jax.random.key(1), (2, 9, 16))
    y, weights_bnts = attention(x, return_weights=True)
    assert weights_bnts.shape == (2, 4, 9, 9)
    assert_close(weights_bnts.sum(axis=-1), np.ones((2, 4, 9)))
    assert np.all(np.asarray(weights_bnts)[..., ~np.tri(9, dtype=bool)] == 0)
    assert_close(y, attention(x))
    assert y.shape == x.shape


SWITCHES = {
    "plain": {},
    "not causal": {"mask": "full"},
    "unscaled": {"scale": False},
    "no wo": {"use_wo": False},
    "share qk": {"share": "qk", "n_kv_heads": 4},
    "share kv": {"share": "kv"},
    "share qkv": {"share": "qkv", "n_kv_heads": 4},
    "qk_norm": {"qk_norm": True},
    "gate": {"gate": True},
    "rope": {"rope": True},
    "bias": {"bias": True, "gate": True},
    "window": {"window": 3, "n_sinks": 1},
    "narrow": {"d_head": 2},
    "all": {"qk_norm": True, "gate": True, "rope": True, "bias": True, "share": "kv"},
}


def module_of(name, **more):
    switches = {"n_kv_heads": 2, **SWITCHES[name], **more}
    return Attention(16, 4, rngs=nnx.Rngs(0), **switches)


def run_stops(attention, x_btd, head_mask=None):
    b, t, d = x_btd.shape
    context = Context(attention.mask, wants_stops=True, head_mask=head_mask)
    y, stops = attention.mix(x_btd.reshape(b * t, d), b=b, t=t, context=context)
    return y.reshape(b, t, -1), stops


@pytest.mark.parametrize("name", SWITCHES)
def test_stops_fit_together(name, assert_close):
    attention, x = module_of(name), jax.random.normal(jax.random.key(1), (2, 7, 16))
    y, stops = run_stops(attention, x)
    assert set(stops) == set(STOPS) - {"resid_btd"}
    q, k, v = stops["q_btkgh"], stops["k_bskh"], stops["v_bskh"]
    weights = stops["weights_bkgts"]
    scores = attention.scale * jnp.einsum("btkgh,bskh->bkgts", q, k)
    assert_close(stops["scores_bkgts"], scores)
    assert_close(weights.sum(axis=-1), np.ones(weights.shape[:-1]))
    assert_close(stops["z_btkgh"], jnp.einsum("bkgts,bskh->btkgh", weights, v))
    bias = 0 if attention.bo is None else attention.bo[...].reshape(1, 1, -1)
    assert_close(stops["head_out_btnd"].sum(axis=2) + bias, y)
    assert_close(attention(x), y)


@pytest.mark.parametrize("name", SWITCHES)
def test_every_parameter_learns_and_the_two_kernels_agree(name, assert_close):
    x = jax.random.normal(jax.random.key(1), (2, 7, 16))
    results = []
    for kernel in ("fast", "reference"):
        graph, params = nnx.split(module_of(name, kernel=kernel))
        loss = jax.value_and_grad(lambda p, graph=graph: jnp.sum(nnx.merge(graph, p)(x) ** 2))
        results.append(nnx.to_pure_dict(loss(params)[1]))
    # Gradients of a sum of 224 squares are of size 10 to 100, and so are their roundings.
    assert_close(*results, tolerance=5e-5)
    for path, grad in jax.tree_util.tree_leaves_with_path(results[0]):
        # The same number added to all scores of a query changes nothing: keys' biases are idle,
        # unless their norm or rotation, or the values, feel them.
        if name == "bias" and path[-1].key == "bk":
            continue
        assert np.abs(grad).max() > 1e-3, path


def test_the_share_switch_drops_matrices():
    names = {share: set(params_of(module_of(f"share {share}"))) for share in ("qk", "kv", "qkv")}
    assert names == {"qk": {"wq", "wv", "wo"}, "kv": {"wq", "wk", "wo"}, "qkv": {"wq", "wo"}}
    stops = run_stops(module_of("share qkv"), jnp.ones((1, 3, 16)))[1]
    np.testing.assert_array_equal(stops["k_bskh"], stops["v_bskh"])
    np.testing.assert_array_equal(stops["k_bskh"], stops["q_btkgh"][:, :, :, 0])


def test_the_scale_switch_divides_by_the_root_of_d_head(assert_close):
    x = jax.random.normal(jax.random.key(1), (1, 5, 16))
    plain, unscaled = (run_stops(module_of(name), x)[1] for name in ("plain", "unscaled"))
    assert_close(plain["scores_bkgts"] * 2, unscaled["scores_bkgts"])


def test_without_wo_the_heads_are_concatenated(assert_close):
    y, stops = run_stops(module_of("no wo"), jax.random.normal(jax.random.key(1), (2, 5, 16)))
    assert_close(y, stops["z_btkgh"].reshape(2, 5, 16))
    assert Attention(16, 4, d_head=3, use_wo=False, rngs=nnx.Rngs(0)).width == 12


def test_qk_norm_gives_heads_of_unit_mean_square(assert_close):
    attention = module_of("qk_norm")
    stops = run_stops(attention, 50 * jax.random.normal(jax.random.key(1), (2, 5, 16)))[1]
    for name in ("q_btkgh", "k_bskh"):
        mean_square = jnp.mean(stops[name] ** 2, axis=-1)
        assert_close(mean_square, jnp.ones_like(mean_square))


def test_the_gate_is_a_sigmoid_on_each_heads_output(assert_close):
    attention, x = module_of("gate"), jax.random.normal(jax.random.key(1), (2, 5, 16))
    y, stops = run_stops(attention, x)
    gate = 1 / (1 + np.exp(-(np.asarray(x) @ np.asarray(attention.wg[...]))))
    assert_close(y, (stops["z_btkgh"].reshape(2, 5, 16) * gate) @ attention.wo[...])


@pytest.mark.parametrize("name", ["plain", "gate", "no wo"])
def test_a_masked_head_is_a_head_without_rows_in_wo(name, assert_close):
    attention, x = module_of(name), jax.random.normal(jax.random.key(1), (2, 5, 16))
    full, stops = run_stops(attention, x)
    masked, _ = run_stops(attention, x, head_mask=jnp.array([1.0, 1.0, 0.0, 1.0]))
    assert_close(masked, full - stops["head_out_btnd"][:, :, 2])
    if attention.wo is not None:
        attention.wo[...] = attention.wo[...].at[8:12].set(0)
        assert_close(masked, attention(x))


def test_rotary_scores_depend_on_the_distance_alone(assert_close):
    q, k = jax.random.normal(jax.random.key(0), (2, 6))
    turned_q, turned_k = (rope(jnp.tile(x, (9, 1)), axis=0) for x in (q, k))
    scores = np.asarray(turned_q @ turned_k.T)
    for offset in range(-8, 9):
        diagonal = np.diagonal(scores, offset)
        assert_close(diagonal, np.full(diagonal.shape, diagonal[0]))
    assert_close(scores[0, 0], q @ k)
    # Position 1 turns pair (0, 3) by one radian: the first wavelength is 2 pi.
    assert_close(turned_q[1, 0], q[0] * np.cos(1) - q[3] * np.sin(1))
    assert_close(jnp.linalg.norm(turned_q, axis=-1), np.full(9, np.linalg.norm(q)))
    with pytest.raises(ValueError, match="even d_head, not 5"):
        rope(jnp.ones((2, 5)), axis=0)


def test_the_rope_switch_turns_queries_and_keys_alike(assert_close):
    same = jnp.tile(jax.random.normal(jax.random.key(1), (1, 1, 16)), (1, 7, 1))
    scores = np.asarray(run_stops(module_of("rope"), same)[1]["scores_bkgts"])
    assert_close(scores[..., 1:, 1:], scores[..., :-1, :-1])
    assert np.abs(scores[..., 0, 0] - scores[..., 0, 1]).min() > 1e-3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"n_heads": 4, "n_kv_heads": 3}, "n_kv_heads=3 must divide n_heads=4"),
        ({"n_heads": 3}, "n_heads=3 must divide d_model=16, or give d_head"),
        ({"n_heads": 0}, "n_heads=0 must be at least 1"),
        ({"n_heads": 4, "d_head": 0}, "d_head=0 must be at least 1"),
        ({"n_heads": 4, "share": "k"}, "share='k' is not one of none, qk, kv, qkv"),
        ({"n_heads": 4, "n_kv_heads": 2, "share": "qk"}, "share='qk' needs n_kv_heads=2 = n_h"),
        ({"n_heads": 4, "kv_init": "first"}, "kv_init='first' is not one of mean, fresh"),
        ({"n_heads": 4, "kernel": "best"}, "kernel='best' is not one of auto, fast, reference"),
        ({"n_heads": 16, "rope": True}, "rope needs an even d_head, not 1"),
        ({"n_heads": 4, "mask": "none"}, "mask='none' is not one of causal"),
    ],
)
def test_what_does_not_fit_is_refused(arguments, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        Attention(16, rngs=nnx.Rngs(0), **arguments)


def test_the_module_is_a_plain_one_in_graph_and_in_tree_use(assert_close):
    class Block(nnx.Module):
        def __init__(self, rngs):
            self.attention = Attention(16, 4, 2, qk_norm=True, rngs=rngs)
            self.out = nnx.Linear(16, 3, rngs=rngs)

        def __call__(self, x):
            return self.out(self.attention(x))

    block, x = Block(nnx.Rngs(0)), jax.random.normal(jax.random.key(1), (2, 5, 16))
    everything, params = nnx.state(block), nnx.state(block, nnx.Param)
    assert jax.tree.structure(everything) == jax.tree.structure(params)  # no rng, no cache
    graph, state = nnx.split(block)
    merged = nnx.merge(graph, state)
    np.testing.assert_array_equal(merged(x), block(x))
    # As a pytree that plain jax transforms take.
    assert_close(jax.jit(lambda module, x: module(x))(block, x), block(x))
    grads = jax.grad(lambda module: jnp.sum(module(x) ** 2))(block)
    assert grads.attention.wq.shape == (16, 16)
    first, second = Attention(16, 4, rngs=(rngs := nnx.Rngs(0))), Attention(16, 4, rngs=rngs)
    assert np.abs(first.wq[...] - second.wq[...]).max() > 0.1


def test_low_precision_products_keep_parameters_in_float32():
    exact, low = module_of("plain"), module_of("plain", dtype=jnp.bfloat16)
    x = jax.random.normal(jax.random.key(1), (2, 40, 16))
    assert low.wq.dtype == jnp.float32
    assert low(x).dtype == jnp.bfloat16
    # Four roundings to 8 bits in a row, of values up to 3.
    assert np.abs(low(x).astype(jnp.float32) - exact(x)).max() < 0.06


def test_the_mixer_is_the_module_of_a_layer_and_a_model_spec():
    model = model_of(n_kv_heads=2, d_head=6, window=3, n_sinks=1, gate=True, positions="rope")
    mixer = grouped.Mixer(model.layers[0], model, key=jax.random.key(0))
    assert (mixer.n_heads, mixer.n_kv_heads, mixer.d_head, mixer.width) == (4, 2, 6, 16)
    assert (mixer.mask.window, mixer.mask.n_sinks, mixer.rope) == (3, 1, True)
    assert mixer.wg.shape == (16, 24)
    assert count(mixer) == cost.attention_params(model.layers[0], model)

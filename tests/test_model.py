"""The seam: init and apply as pure functions, probes and head masks."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from shapes import model_of, spec_of

from mha_jax import cost
from mha_jax.attention.stops import STOPS
from mha_jax.model import build

KEY = jax.random.key(0)
TOKENS = jax.random.randint(jax.random.key(1), (3, 6), 0, 11)
FULL = {"norm": "layer", "bias": True, "residual": True, "d_ff": 8, "gate": True, "n_layers": 2}


def leaves(params):
    return {
        jax.tree_util.keystr(path, simple=True, separator="/"): leaf
        for path, leaf in jax.tree_util.tree_leaves_with_path(params)
    }


def test_parameters_are_a_nested_dict_of_float32_arrays_by_name():
    params = build(model_of(n_layers=2, d_ff=8), spec_of()).init(KEY)
    assert set(leaves(params)) == {
        "encoder/embed/0",
        "positions",
        *(
            f"layers/{i}/{name}"
            for i in range(2)
            for name in ("mixer/wq", "mixer/wk", "mixer/wv", "mixer/wo", "mlp/wi/w", "mlp/wo/w")
        ),
        "readout/out/w",
    }
    assert type(params["layers"]) is dict
    assert {leaf.dtype for leaf in leaves(params).values()} == {np.dtype("float32")}


def test_init_is_a_function_of_the_key():
    model = build(model_of(**FULL), spec_of())
    first, again, other = (model.init(jax.random.key(i)) for i in (3, 3, 4))
    jitted = jax.jit(model.init)(jax.random.key(3))
    for name, leaf in leaves(first).items():
        np.testing.assert_array_equal(leaf, leaves(again)[name])
        np.testing.assert_allclose(leaf, leaves(jitted)[name], rtol=1e-6)
        if leaf.ndim == 2:
            assert np.abs(leaf - leaves(other)[name]).max() > 0.01


@pytest.mark.parametrize("n_heads", [2, 4, 8, 16])
def test_the_head_split_is_a_reshape_every_count_starts_alike(n_heads):
    spec = spec_of()
    one = build(model_of(n_heads=1, n_kv_heads=1, d_head=16, n_layers=2), spec).init(KEY)
    shape = {"n_heads": n_heads, "n_kv_heads": n_heads, "d_head": 16 // n_heads}
    many = build(model_of(**shape, n_layers=2), spec).init(KEY)
    assert leaves(one).keys() == leaves(many).keys()
    for name, leaf in leaves(one).items():
        np.testing.assert_array_equal(leaf, leaves(many)[name])


def test_a_parameter_does_not_depend_on_the_switches_of_others():
    plain = leaves(build(model_of(), spec_of()).init(KEY))
    for changes in (FULL, {"n_kv_heads": 1}, {"share": "kv"}, {"use_wo": False}, {"d_ff": 3}):
        other = leaves(build(model_of(**changes), spec_of()).init(KEY))
        for name in plain.keys() & other.keys() - {"layers/0/mixer/wk", "layers/0/mixer/wv"}:
            np.testing.assert_array_equal(plain[name], other[name])


def test_layers_and_matrices_are_draws_of_their_own():
    params = leaves(build(model_of(n_layers=2), spec_of()).init(KEY))
    squares = [leaf for leaf in params.values() if leaf.shape == (16, 16)]
    assert len(squares) == 8
    for i, first in enumerate(squares):
        for second in squares[:i]:
            correlation = np.corrcoef(np.ravel(first), np.ravel(second))[0, 1]
            assert abs(correlation) < 0.25  # 256 numbers: four standard errors of 1/16


@pytest.mark.parametrize("changes", [{}, FULL, {"n_kv_heads": 2, "qk_norm": True}])
def test_parameters_are_as_many_as_counted(changes):
    model, spec = model_of(**changes), spec_of()
    params = build(model, spec).init(KEY)
    assert sum(leaf.size for leaf in jax.tree.leaves(params)) == cost.model_params(model, spec)


def test_apply_needs_nothing_but_the_dict(assert_close):
    model = build(model_of(**FULL), spec_of())
    params = jax.tree.map(np.asarray, model.init(KEY))  # as they come back from a file
    outputs, stats = model.apply(params, TOKENS)
    assert outputs.shape == (3, 6, 2, 5)
    assert outputs.dtype == jnp.float32
    assert stats == []
    assert_close(jax.jit(lambda p, x: model.apply(p, x)[0])(params, TOKENS), outputs)
    scaled = jax.tree.map(lambda x: 2 * x, params)
    assert np.abs(model.apply(scaled, TOKENS)[0] - outputs).max() > 0.1


def test_lanes_are_models_of_their_own(assert_close):
    model = build(model_of(**FULL), spec_of())
    keys = jax.random.split(KEY, 3)
    params = jax.vmap(model.init)(keys)
    together = jax.vmap(lambda p: model.apply(p, TOKENS)[0])(params)
    for lane, key in enumerate(keys):
        assert_close(together[lane], model.apply(model.init(key), TOKENS)[0])


@pytest.mark.parametrize("n_kv_heads", [4, 2, 1])
def test_a_probe_sees_every_layer_and_changes_nothing(n_kv_heads, assert_close):
    model = build(model_of(**FULL, n_kv_heads=n_kv_heads), spec_of())
    params = model.init(KEY)
    outputs, stats = jax.jit(lambda p, x: model.apply(p, x, probe=lambda stops: stops))(
        params, TOKENS
    )
    assert_close(outputs, model.apply(params, TOKENS)[0])
    g = 4 // n_kv_heads
    for stops in stats:
        assert set(stops) == set(STOPS)
        assert stops["resid_btd"].shape == (3, 6, 16)
        assert stops["q_btkgh"].shape == stops["z_btkgh"].shape == (3, 6, n_kv_heads, g, 4)
        assert stops["k_bskh"].shape == stops["v_bskh"].shape == (3, 6, n_kv_heads, 4)
        assert stops["scores_bkgts"].shape == stops["weights_bkgts"].shape
        assert stops["weights_bkgts"].shape == (3, n_kv_heads, g, 6, 6)
        assert stops["head_out_btnd"].shape == (3, 6, 4, 16)
        assert_close(stops["weights_bkgts"].sum(axis=-1), np.ones((3, n_kv_heads, g, 6)))
    assert len(stats) == 2


def test_the_stream_of_a_probe_is_the_stream_of_the_model(assert_close):
    model = build(model_of(residual=True, n_layers=3), spec_of())
    stats = model.apply(model.init(KEY), TOKENS, probe=lambda stops: stops)[1]
    for layer, following in zip(stats, stats[1:], strict=False):
        added = layer["head_out_btnd"].sum(axis=2)
        assert_close(layer["resid_btd"] + added, following["resid_btd"])


def test_a_probe_returns_what_it_likes():
    model = build(model_of(n_layers=2), spec_of())
    params = model.init(KEY)
    _, stats = model.apply(params, TOKENS, probe=lambda s: s["weights_bkgts"].mean(axis=(0, 3)))
    assert [stat.shape for stat in stats] == [(4, 1, 6)] * 2


def test_head_masks_remove_heads(assert_close):
    model = build(model_of(**FULL), spec_of())
    params = model.init(KEY)
    outputs = model.apply(params, TOKENS)[0]
    ones = [jnp.ones(4), jnp.ones(4)]
    assert_close(model.apply(params, TOKENS, head_mask=ones)[0], outputs)
    masked = model.apply(params, TOKENS, head_mask=[jnp.ones(4), jnp.array([1.0, 0, 1, 1])])[0]
    wo = params["layers"]["1"]["mixer"]["wo"]
    params["layers"]["1"]["mixer"]["wo"] = wo.at[4:8].set(0)
    assert_close(masked, model.apply(params, TOKENS)[0])
    assert np.abs(masked - outputs).max() > 1e-3


def test_all_heads_are_ablated_in_one_program(assert_close):
    model = build(model_of(n_layers=2), spec_of())
    params = model.init(KEY)
    masks = 1 - jnp.eye(8).reshape(8, 2, 4)
    together = jax.vmap(lambda mask: model.apply(params, TOKENS, head_mask=[mask[0], mask[1]])[0])(
        masks
    )
    for i, mask in enumerate(masks):
        alone = model.apply(params, TOKENS, head_mask=[mask[0], mask[1]])[0]
        assert_close(together[i], alone)


def test_low_precision_is_close(assert_close):
    exact, low = (
        build(model_of(**FULL, compute_dtype=dtype), spec_of()) for dtype in ("float32", "bfloat16")
    )
    params = low.init(KEY)
    outputs = low.apply(params, TOKENS)[0]
    assert outputs.dtype == jnp.float32
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {np.dtype("float32")}
    # Some ten roundings to 8 bits one after another, of values up to 3.
    assert_close(outputs, exact.apply(params, TOKENS)[0], tolerance=0.06)


def test_sizes_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="n_kv_heads=3 must divide n_heads=4"):
        build(model_of(n_kv_heads=3), spec_of())

"""The transformer around the mixers: encoders, layers, norms, read-outs, mixers by name."""

import sys
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from shapes import MODEL, model_of, spec_of

from mha_jax.attention import core
from mha_jax.attention.init import normal
from mha_jax.attention.stops import Context
from mha_jax.blocks import MLP, Norm
from mha_jax.transformer import Encoder, Transformer

KEY = jax.random.key(0)
TOKENS = jax.random.randint(jax.random.key(1), (3, 6), 0, 11)


def transformer_of(spec=None, **changes):
    return Transformer(model_of(**changes), spec or spec_of(), key=KEY)


def value(x):
    """numpy's copy, which broadcasts without the rule of conftest.py."""
    return np.asarray(x[...])


def stops_of(transformer, inputs):
    return transformer(inputs, probe=lambda stops: stops)[1]


# --- encoder -----------------------------------------------------------------------------------


def test_tokens_read_a_row_and_fields_are_summed(assert_close):
    tokens = Encoder(MODEL, spec_of(), key=KEY)
    assert_close(tokens(TOKENS), np.asarray(tokens.embed[0][...])[np.asarray(TOKENS).ravel()])
    fields = Encoder(MODEL, spec_of(inputs="fields", input_sizes=(3, 5)), key=KEY)
    ids = np.array([[[0, 4], [2, 1]]])
    first, second = (np.asarray(table[...]) for table in fields.embed)
    assert_close(fields(jnp.asarray(ids)), np.stack([first[0] + second[4], first[2] + second[1]]))
    assert np.abs(first[:3] - second[:3]).max() > 0.01  # each table is a draw of its own


@pytest.mark.parametrize("bias", [False, True])
def test_vectors_are_multiplied_by_a_matrix(bias, assert_close):
    spec = spec_of(inputs="vectors", input_sizes=(7,))
    encoder = Encoder(model_of(bias=bias), spec, key=KEY)
    x = jax.random.normal(jax.random.key(2), (2, 3, 7))
    assert (encoder.bias is not None) == bias
    if bias:
        encoder.bias[...] = jnp.arange(16.0)
    shift = np.arange(16.0) if bias else 0
    assert_close(
        encoder(x), np.asarray(x).reshape(6, 7) @ np.asarray(encoder.embed[0][...]) + shift
    )


def test_the_mlp_encoder_has_one_relu_layer_with_biases(assert_close):
    spec = spec_of(inputs="vectors", input_sizes=(7,), encoder="mlp", d_encoder=9)
    encoder = Encoder(MODEL, spec, key=KEY)
    encoder.bias[...] = jnp.linspace(-1, 1, 9)
    encoder.out.b[...] = jnp.arange(16.0)
    x = jax.random.normal(jax.random.key(2), (2, 3, 7))
    hidden = value(x).reshape(6, 7) @ value(encoder.embed[0]) + value(encoder.bias)
    assert_close(encoder(x), np.maximum(hidden, 0) @ value(encoder.out.w) + np.arange(16.0))


def test_what_enters_the_stream_starts_with_length_one():
    # Means over 300 and more rows of 64 numbers; the length of a single row varies by 9 %.
    model = model_of(d_model=64)
    tokens = Transformer(model, spec_of(input_sizes=(400,), length=300, query_token=True), key=KEY)
    for rows in (tokens.encoder.embed[0][...], tokens.positions[...], tokens.query[...][None]):
        lengths = jnp.linalg.norm(rows, axis=1)
        assert jnp.mean(lengths) == pytest.approx(1, abs=0.02 if len(rows) > 1 else 0.3)
    vectors = Encoder(model, spec_of(inputs="vectors", input_sizes=(50,)), key=KEY)
    rows = vectors(jax.random.normal(jax.random.key(3), (4, 100, 50)))
    assert jnp.mean(jnp.linalg.norm(rows, axis=1)) == pytest.approx(1, abs=0.05)


# --- positions and the query token -------------------------------------------------------------


def test_positions_are_added_once_per_position(assert_close):
    with_positions = stops_of(transformer_of(), TOKENS)[0]["resid_btd"]
    without = stops_of(transformer_of(positions="none"), TOKENS)[0]["resid_btd"]
    added = np.asarray(transformer_of().positions[...])
    assert_close(with_positions, np.asarray(without) + added)
    shorter = stops_of(transformer_of(), TOKENS[:, :4])[0]["resid_btd"]
    assert_close(shorter, with_positions[:, :4])
    with pytest.raises(ValueError, match="7 positions, but only 6 are learned"):
        transformer_of()(jnp.zeros((1, 7), jnp.int32))


def test_the_query_token_is_the_last_position(assert_close):
    spec = spec_of(query_token=True, mask="full")
    transformer = transformer_of(spec, positions="none")
    outputs, stats = transformer(TOKENS[:, :5], probe=lambda stops: stops["resid_btd"])
    assert outputs.shape == (3, 6, 2, 5)
    assert_close(stats[0][:, 5], np.tile(transformer.query[...], (3, 1)))
    first = np.asarray(transformer.encoder(TOKENS[:, :5])).reshape(3, 5, 16)
    assert_close(stats[0][:, :5], first)


def test_no_positions_see_a_set_and_rope_sees_an_order():
    shuffled = TOKENS[:, jnp.array([3, 0, 5, 1, 2, 4])]
    spec = spec_of(mask="full")
    last = {}
    for positions in ("none", "rope"):
        transformer = transformer_of(spec, positions=positions, d_ff=8, residual=True, n_layers=2)
        last[positions] = [transformer(x)[0].sum(axis=1) for x in (TOKENS, shuffled)]
    np.testing.assert_allclose(*last["none"], atol=1e-5)
    assert np.abs(last["rope"][0] - last["rope"][1]).max() > 1e-3


def test_queries_and_keys_can_be_made_from_positions_alone(assert_close):
    transformer = transformer_of(qk_from="positions", bias=True, gate=True)
    stops = stops_of(transformer, TOKENS)[0]
    for name in ("q_btkgh", "k_bskh", "weights_bkgts"):
        assert_close(stops[name], np.broadcast_to(stops[name][:1], stops[name].shape))
    mixer = transformer.layers[0].mixer
    assert_close(stops["q_btkgh"][0].reshape(6, 16), transformer.positions[...] @ mixer.wq[...])
    values = stops["resid_btd"] @ mixer.wv[...]
    assert_close(stops["v_bskh"].reshape(values.shape), values)


# --- layers ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["layer", "rms"])
def test_norms_are_those_of_flax(kind, assert_close):
    x = 3 + 2 * jax.random.normal(jax.random.key(1), (5, 16))
    ours = Norm(kind, 16)
    peer = nnx.LayerNorm if kind == "layer" else nnx.RMSNorm
    theirs = peer(16, epsilon=1e-6, rngs=nnx.Rngs(0))
    ours.scale[...] = theirs.scale[...] = jnp.linspace(0.5, 2, 16)
    if kind == "layer":
        ours.bias[...] = theirs.bias[...] = jnp.linspace(-1, 1, 16)
    assert_close(ours(x), theirs(x))


def test_norm_none_is_the_identity():
    x = jnp.ones((2, 16))
    assert Norm("none", 16)(x) is x


@pytest.mark.parametrize(
    ("activation", "formula"),
    [
        ("relu", lambda x, gate: np.maximum(x, 0)),
        (
            "gelu",  # the tanh form, Hendrycks and Gimpel 2016
            lambda x, gate: 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
        ),
        ("swiglu", lambda x, gate: gate / (1 + np.exp(-gate)) * x),
    ],
)
def test_the_mlp(activation, formula, assert_close):
    mlp = MLP(model_of(activation=activation, bias=True), 24, key=KEY)
    mlp.wi.b[...] = jnp.linspace(-1, 1, 24)
    mlp.wo.b[...] = jnp.linspace(-1, 1, 16)
    x = np.asarray(jax.random.normal(jax.random.key(1), (5, 16)))
    gate = None if mlp.wg is None else x @ value(mlp.wg.w) + value(mlp.wg.b)
    hidden = formula(x @ value(mlp.wi.w) + value(mlp.wi.b), gate)
    assert_close(mlp(jnp.asarray(x)), hidden @ value(mlp.wo.w) + value(mlp.wo.b))


@pytest.mark.parametrize("residual", [False, True])
def test_a_layer_is_mixer_then_mlp_each_normed_before(residual, assert_close):
    transformer = transformer_of(norm="rms", residual=residual, d_ff=24, activation="relu")
    layer = transformer.layers[0]
    x = jax.random.normal(jax.random.key(1), (18, 16))
    context = Context(core.Mask("causal"))
    y, _ = layer.mixer.mix(layer.norm_mixer(x), b=3, t=6, context=context)
    after = x + y if residual else y
    expected = layer.mlp(layer.norm_mlp(after)) + (after if residual else 0)
    actual, stats, _ = layer(x, b=3, t=6, context=context, probe=None)
    assert stats is None
    assert_close(actual, expected)


def test_without_residual_the_readout_sees_attention_alone():
    transformer = transformer_of()
    transformer.layers[0].mixer.wo[...] = jnp.zeros((16, 16))
    assert np.all(np.asarray(transformer(TOKENS)[0]) == 0)
    kept = transformer_of(residual=True)
    kept.layers[0].mixer.wo[...] = jnp.zeros((16, 16))
    assert np.abs(kept(TOKENS)[0]).max() > 0.1


@pytest.mark.parametrize("norm", ["none", "layer"])
def test_linear_readout_of_the_normed_stream(norm, assert_close):
    transformer = transformer_of(norm=norm, bias=True, residual=True)
    transformer.readout.out.b[...] = jnp.arange(10.0)
    x = stops_of(transformer, TOKENS)[0]["resid_btd"].reshape(18, 16)
    context = Context(core.Mask("causal"))
    x, _, _ = transformer.layers[0](x, b=3, t=6, context=context, probe=None)
    expected = value(transformer.norm(x)) @ value(transformer.readout.out.w) + np.arange(10.0)
    outputs = transformer(TOKENS)[0]
    assert outputs.dtype == jnp.float32
    assert_close(outputs, expected.reshape(3, 6, 2, 5))


def test_mlp_readout_has_one_gelu_layer_with_biases(assert_close):
    transformer = transformer_of(spec_of(readout="mlp", d_readout=8))
    readout = transformer.readout
    readout.hidden.b[...], readout.out.b[...] = jnp.linspace(-1, 1, 8), jnp.arange(10.0)
    x = jax.random.normal(jax.random.key(1), (4, 16))
    hidden = jax.nn.gelu(x @ readout.hidden.w[...] + jnp.linspace(-1, 1, 8)[None])
    assert_close(readout(x), np.asarray(hidden @ readout.out.w[...]) + np.arange(10.0))


def test_without_a_readout_the_last_columns_are_the_answer(assert_close):
    spec = spec_of(readout="none", output_size=8)  # two read-out heads of 8: d_model
    transformer = transformer_of(spec, norm="layer")
    assert transformer.readout is None
    x = stops_of(transformer, TOKENS)[0]["resid_btd"].reshape(18, 16)
    x, _, _ = transformer.layers[0](x, b=3, t=6, context=Context(core.Mask("causal")), probe=None)
    assert_close(transformer(TOKENS)[0], transformer.norm(x).reshape(3, 6, 2, 8))
    bare = transformer_of(spec, use_wo=False)
    assert_close(
        bare(TOKENS)[0].reshape(3, 6, 4, 4),
        stops_of(bare, TOKENS)[0]["z_btkgh"].reshape(3, 6, 4, 4),
    )
    for model in ({"d_model": 12}, {"use_wo": False, "d_head": 3}):
        with pytest.raises(ValueError, match="16 columns, not 12"):
            transformer_of(spec, **model)


def test_without_wo_the_readout_is_as_wide_as_the_heads():
    transformer = transformer_of(use_wo=False, d_head=3, norm="rms")
    assert transformer.readout.out.w.shape == (12, 10)
    assert transformer(TOKENS)[0].shape == (3, 6, 2, 5)
    for more in ({"residual": True}, {"d_ff": 8}):
        with pytest.raises(ValueError, match="returns 12 columns takes no residual and no MLP"):
            transformer_of(use_wo=False, d_head=3, **more)
    with pytest.raises(ValueError, match="all but the last must return 16"):
        transformer_of(use_wo=False, d_head=3, n_layers=2)


def test_a_task_with_another_mask(assert_close):
    spec = spec_of(mask="context_query", n_context=2)
    weights = stops_of(transformer_of(spec), TOKENS)[0]["weights_bkgts"]
    assert np.all(np.asarray(weights)[..., 2:] == 0)
    with pytest.raises(ValueError, match="mask='diagonal' is not one of"):
        transformer_of(spec_of(mask="diagonal"))


@pytest.mark.parametrize(
    ("changes", "spec"),
    [
        ({"norm": "layer", "bias": True, "residual": True, "d_ff": 8, "n_layers": 2}, {}),
        ({"activation": "swiglu", "norm": "rms", "residual": True, "d_ff": 8}, {}),
        ({"n_kv_heads": 1}, {"query_token": True, "mask": "full"}),
        ({"positions": "none"}, {"inputs": "fields", "input_sizes": (3, 5)}),
        ({"positions": "rope"}, {"inputs": "vectors", "input_sizes": (3,)}),
        (
            {},
            {
                "inputs": "vectors",
                "input_sizes": (3,),
                "encoder": "mlp",
                "d_encoder": 8,
                "readout": "mlp",
                "d_readout": 8,
            },
        ),
    ],
)
def test_every_parameter_learns(changes, spec):
    spec = spec_of(**spec)
    transformer = transformer_of(spec, **changes)
    shape = (64, spec.length - spec.query_token)
    if spec.inputs == "vectors":
        inputs = jax.random.normal(jax.random.key(1), (*shape, *spec.input_sizes))
    elif spec.inputs == "fields":
        inputs = jax.random.randint(jax.random.key(1), (*shape, len(spec.input_sizes)), 0, 3)
    else:
        inputs = jax.random.randint(jax.random.key(1), shape, 0, 11)
    graph, params = nnx.split(transformer)

    @jax.jit
    @jax.grad
    def gradient(params):
        return jnp.sum((nnx.merge(graph, params)(inputs)[0] - 1) ** 2)

    grads = nnx.to_pure_dict(gradient(params))
    for path, grad in jax.tree_util.tree_leaves_with_path(grads):
        # The bias of the keys adds the same number to all scores of a query, which changes nothing.
        if path[-1].key != "bk":
            assert np.abs(grad).max() > 1e-4, jax.tree_util.keystr(path)


# --- a mixer of one's own ----------------------------------------------------------------------


class MeanMixer(nnx.Module):
    """Every position gets the mean of what it sees, times a matrix."""

    def __init__(self, layer, model, *, key):
        self.width = model.d_model
        self.w = nnx.Param(normal(key, "w", (model.d_model, model.d_model)))

    def mix(self, x, *, b, t, context):
        visible = context.mask.table(t)
        weights_ts = jnp.asarray(visible / visible.sum(axis=1, keepdims=True))
        mean_btd = jnp.einsum("ts,bsd->btd", weights_ts, x.reshape(b, t, -1))
        stops = {"weights_bkgts": jnp.broadcast_to(weights_ts, (b, 1, 1, t, t))}
        return mean_btd.reshape(b * t, -1) @ self.w[...], stops if context.wants_stops else {}


def test_a_mixer_of_ones_own_is_chosen_by_name(monkeypatch, assert_close):
    module = types.ModuleType("mha_jax.attention.mean")
    module.Mixer = MeanMixer
    monkeypatch.setitem(sys.modules, "mha_jax.attention.mean", module)
    transformer = transformer_of(mixer="mean", n_layers=2, residual=True)
    outputs, stats = transformer(TOKENS, probe=lambda stops: sorted(stops))
    assert stats == [["resid_btd", "weights_bkgts"]] * 2
    assert_close(outputs, transformer(TOKENS)[0])
    first = transformer.layers[0].mixer
    stops = stops_of(transformer, TOKENS)
    x = np.asarray(stops[0]["resid_btd"])
    mean = np.cumsum(x, axis=1) / np.arange(1, 7).reshape(1, 6, 1)
    assert_close(stops[1]["resid_btd"], x + mean @ np.asarray(first.w[...]))
    assert np.abs(first.w[...] - transformer.layers[1].mixer.w[...]).max() > 0.1

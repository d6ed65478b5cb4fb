"""Both forms of attention, and the module, against numpy, jax, flax and torch: values and
gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from mha_jax.attention import blocked as blocked_form
from mha_jax.attention import core
from mha_jax.attention import fast as fast_form
from mha_jax.attention.grouped import Attention

# (b, t, k, g, h), mask. Lengths below 17 take the product in letters, from there on folded rows, in
# chunks where the mask lets one skip keys, and above 512 in chunks that are made again. Blocks are
# of 128 keys and of 256 rows, and the last ones of 150, 200, 530 and 600 positions are not full.
CASES = [
    ((2, 1, 2, 2, 4), core.Mask("causal")),
    ((1, 1, 1, 1, 1), core.Mask("full")),
    ((3, 2, 1, 4, 3), core.Mask("causal")),
    ((2, 13, 4, 1, 5), core.Mask("full")),
    ((2, 13, 2, 3, 7), core.Mask("causal", window=4, n_sinks=2)),
    ((2, 16, 1, 4, 4), core.Mask("context_query", n_context=5)),
    ((2, 17, 4, 1, 5), core.Mask("full")),
    ((2, 40, 2, 2, 3), core.Mask("causal")),
    ((2, 40, 1, 6, 8), core.Mask("context_query", n_context=24)),
    ((1, 150, 1, 4, 5), core.Mask("causal")),
    ((1, 150, 4, 1, 6), core.Mask("causal", window=20)),
    ((1, 200, 2, 2, 4), core.Mask("causal", window=30, n_sinks=3)),
    ((1, 600, 2, 2, 4), core.Mask("causal")),
    ((1, 600, 4, 1, 3), core.Mask("causal", window=100, n_sinks=4)),
    ((1, 530, 1, 4, 4), core.Mask("full")),
    ((1, 530, 1, 2, 4), core.Mask("context_query", n_context=77)),
]
IDS = [f"{'x'.join(map(str, shape))}-{'-'.join(map(str, mask))}" for shape, mask in CASES]


def draw(shape, key=0):
    """Queries, keys, values, and the gradient that comes back into z."""
    b, t, k, g, h = shape
    keys = jax.random.split(jax.random.key(key), 4)
    return [
        jax.random.normal(keys[0], (b, t, k, g, h)),
        jax.random.normal(keys[1], (b, t, k, h)),
        jax.random.normal(keys[2], (b, t, k, h)),
        jax.random.normal(keys[3], (b, t, k, g, h)),
    ]


def value_and_grads(form, q, k, v, dz):
    """z and the gradients of sum(z * dz) by q, k and v."""
    z, pull = jax.vjp(form, q, k, v)
    return z, *pull(dz)


def in_numpy(q, k, v, dz, mask, scale):
    """The same in float64, one query of one head at a time, by the formulas on paper."""
    q, k, v, dz = (np.asarray(x, np.float64) for x in (q, k, v, dz))
    z, dq, dk, dv = np.zeros_like(q), np.zeros_like(q), np.zeros_like(k), np.zeros_like(v)
    positions = np.arange(k.shape[1])
    for b, t, i, j in np.ndindex(*q.shape[:4]):
        sees = positions[mask.sees(np.int64(t), positions)]
        scores = scale * k[b, sees, i] @ q[b, t, i, j]
        weights = np.exp(scores - scores.max())
        weights /= weights.sum()
        z[b, t, i, j] = weights @ v[b, sees, i]
        by_weight = v[b, sees, i] @ dz[b, t, i, j]
        by_score = weights * (by_weight - weights @ by_weight)
        dq[b, t, i, j] = scale * by_score @ k[b, sees, i]
        dv[b, sees, i] += np.outer(weights, dz[b, t, i, j])
        dk[b, sees, i] += scale * np.outer(by_score, q[b, t, i, j])
    return z, dq, dk, dv


@pytest.mark.parametrize(("shape", "mask"), CASES, ids=IDS)
def test_both_forms_are_the_formula_and_what_jax_says(shape, mask, assert_close):
    b, t, k, g, h = shape
    inputs, scale = draw(shape), 0.7

    def peer(q, key, v):
        return jax.nn.dot_product_attention(
            q.reshape(b, t, k * g, h), key, v, mask=mask.table(t)[None, None], scale=scale
        ).reshape(q.shape)

    desired = in_numpy(*inputs, mask, scale)

    def fast(q, k, v):
        return fast_form.fast(q, k, v, mask, scale)

    def reference(q, k, v):
        return core.reference(q, k, v, mask, scale).z_btkgh

    def blocked(q, k, v):
        return blocked_form.blocked(q * scale, k, v, mask)

    forms = (fast, reference, peer, *([blocked] if t >= 40 else []))
    results = jax.jit(lambda *args: [value_and_grads(form, *args) for form in forms])(*inputs)
    for actual in results:
        assert_close(actual, desired)


@pytest.mark.parametrize("length", [5, 40, 530])
def test_a_query_that_sees_nothing_gets_nothing(length):
    mask = core.Mask("context_query", n_context=0)
    inputs = draw((1, length, 2, 2, 3))

    def fast(q, k, v):
        return fast_form.fast(q, k, v, mask, 1.0)

    def reference(q, k, v):
        return core.reference(q, k, v, mask, 1.0).z_btkgh

    def blocked(q, k, v):
        return blocked_form.blocked(q, k, v, mask)

    forms = (fast, reference, blocked)
    results = jax.jit(lambda *args: [value_and_grads(form, *args) for form in forms])(*inputs)
    for part in jax.tree.leaves(results):
        assert np.all(np.asarray(part) == 0)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize(
    ("length", "mask"),
    [(150, core.Mask("causal")), (300, core.Mask("causal", window=40, n_sinks=2))],
    ids=str,
)
def test_blocks_with_sinks_and_values_of_another_width(length, mask, dtype, assert_close):
    """Also under vmap, and the gradients of the sinks' logits."""
    b, k, g, h, width = 2, 2, 3, 4, 6
    keys = jax.random.split(jax.random.key(0), 5)
    shapes = ((b, length, k, g, h), (b, length, k, h), (b, length, k, width), (k, g))
    inputs = [jax.random.normal(key, s) for key, s in zip(keys, shapes, strict=False)]
    inputs = [x.astype(dtype) for x in inputs[:3]] + [inputs[3]]
    dz = jax.random.normal(keys[4], (b, length, k, g, width))

    def pulled(form, *inputs):
        z, pull = jax.vjp(form, *inputs)
        return z, *pull(dz.astype(z.dtype))

    def blocks(q, key, v, sink_kg):
        return jax.vmap(lambda *one: blocked_form.blocked(*one, mask, sink_kg))(
            *(x[:, None] for x in (q, key, v))
        )[:, 0]

    def reference(q, key, v, sink_kg):
        wide = (x.astype(jnp.float32) for x in (q, key, v))
        return core.reference(*wide, mask, 1.0, sink_kg=sink_kg).z_btkgh

    ours, want = jax.jit(lambda *args: [pulled(form, *args) for form in (blocks, reference)])(
        *inputs
    )
    assert [x.dtype for x in ours[1:]] == [x.dtype for x in inputs]
    if dtype == jnp.float32:
        assert_close(ours, want)
    else:  # weights and their gradients are rounded to 8 bits, 0.4 %, one after the other
        for actual, desired in zip(ours, want, strict=True):
            error = np.abs(np.asarray(actual, np.float32) - np.asarray(desired, np.float32)).max()
            assert error < 0.02 * np.abs(np.asarray(desired, np.float32)).max()


def test_long_sequences_go_in_blocks(monkeypatch, assert_close):
    """Where one core or length says so; and the module says the same then."""
    monkeypatch.setattr(fast_form.host, "cores", lambda: [0])
    assert fast_form.in_blocks(257) and not fast_form.in_blocks(256)
    attention = Attention(12, 6, 3, window=50, sink_logit=True, rngs=nnx.Rngs(0))
    x = jax.random.normal(jax.random.key(1), (1, 300, 12))
    in_blocks = attention(x)
    assert "while" in str(jax.make_jaxpr(lambda x: attention(x))(x))
    monkeypatch.setattr(fast_form.host, "cores", lambda: [0, 1])
    assert fast_form.in_blocks(2049) and not fast_form.in_blocks(2048)
    assert "while" not in str(jax.make_jaxpr(lambda x: attention(x))(x))
    assert_close(in_blocks, attention(x))


@pytest.mark.parametrize("mask", [core.Mask("causal"), core.Mask("full")])
@pytest.mark.parametrize("n_kv_heads", [6, 3, 1])
def test_the_module_is_flax_multi_head_attention(n_kv_heads, mask, assert_close):
    d, n, h, b, t = 12, 6, 5, 2, 7
    ours = Attention(
        d, n, n_kv_heads, h, mask=mask.kind, bias=True, rngs=nnx.Rngs(0), kv_init="fresh"
    )
    theirs = nnx.MultiHeadAttention(
        num_heads=n,
        in_features=d,
        qkv_features=n * h,
        out_features=d,
        num_kv_heads=n_kv_heads,
        decode=False,
        rngs=nnx.Rngs(1),
    )
    biases = jax.random.split(jax.random.key(2), 4)
    for b_, key in zip((ours.bq, ours.bk, ours.bv, ours.bo), biases, strict=True):
        b_[...] = jax.random.normal(key, b_.shape)

    def split_heads(w):
        return w.reshape(*w.shape[:-1], -1, h)

    for linear, w, bias in (
        (theirs.query, ours.wq, ours.bq),
        (theirs.key, ours.wk, ours.bk),
        (theirs.value, ours.wv, ours.bv),
    ):
        linear.kernel[...], linear.bias[...] = split_heads(w[...]), split_heads(bias[...])
    theirs.out.kernel[...], theirs.out.bias[...] = ours.wo[...].reshape(n, h, d), ours.bo[...]

    # Of a size at which sums of its products stay near 1, as both sides round in float32.
    x, dy = 0.3 * jax.random.normal(jax.random.key(3), (2, b, t, d))
    graph, params = nnx.split(ours)
    peer_graph, peer_params = nnx.split(theirs)

    def peer(params, x):
        return nnx.merge(peer_graph, params)(x, mask=mask.table(t)[None, None])

    def run(module, params):
        y, pull = jax.vjp(module, params, x)
        return y, *pull(dy)

    y, by_params, by_x = jax.jit(run, static_argnums=0)(
        lambda params, x: nnx.merge(graph, params)(x), params
    )
    desired, desired_params, desired_x = jax.jit(run, static_argnums=0)(peer, peer_params)
    assert_close(y, desired)
    assert_close(by_x, desired_x)
    for name, linear in (("q", "query"), ("k", "key"), ("v", "value")):
        for ours_, theirs_ in (("w", "kernel"), ("b", "bias")):
            got = split_heads(by_params[ours_ + name][...])
            assert_close(got, desired_params[linear][theirs_][...])
    assert_close(by_params["wo"][...].reshape(n, h, d), desired_params["out"]["kernel"][...])
    assert_close(by_params["bo"][...], desired_params["out"]["bias"][...])


@pytest.mark.parametrize("kind", ["causal", "full"])
def test_the_module_is_torch_multi_head_attention(kind, assert_close):
    torch = pytest.importorskip("torch")
    d, n, b, t = 12, 4, 2, 7
    ours = Attention(d, n, mask=kind, bias=True, rngs=nnx.Rngs(0))
    for i, bias in enumerate((ours.bq, ours.bk, ours.bv, ours.bo)):
        bias[...] = jax.random.normal(jax.random.key(i), bias.shape)
    theirs = torch.nn.MultiheadAttention(d, n, batch_first=True, dtype=torch.float64)

    def tensor(x):
        return torch.tensor(np.asarray(x, np.float64))

    def joined(names):
        return np.concatenate([np.asarray(getattr(ours, name)[...]).T for name in names])

    theirs.load_state_dict(
        {
            "in_proj_weight": tensor(joined(("wq", "wk", "wv"))),
            "in_proj_bias": tensor(joined(("bq", "bk", "bv"))),
            "out_proj.weight": tensor(ours.wo[...].T),
            "out_proj.bias": tensor(ours.bo[...]),
        }
    )
    x, dy = jax.random.normal(jax.random.key(9), (2, b, t, d))
    x_torch = tensor(x).requires_grad_()
    hidden = tensor(~core.Mask(kind).table(t)).bool()
    desired, weights = theirs(
        x_torch, x_torch, x_torch, attn_mask=hidden, average_attn_weights=False
    )
    desired.backward(tensor(dy))

    graph, params = nnx.split(ours)

    @jax.jit
    def run(params, x):
        y, pull = jax.vjp(lambda params, x: nnx.merge(graph, params)(x), params, x)
        return y, *pull(dy)

    y, by_params, by_x = run(params, x)
    assert_close(y, desired.detach().numpy())
    assert_close(ours(x, return_weights=True)[1], weights.detach().numpy())
    assert_close(by_x, x_torch.grad.numpy())
    by_in = np.concatenate([np.asarray(by_params[name][...]).T for name in ("wq", "wk", "wv")])
    assert_close(by_in, theirs.in_proj_weight.grad.numpy())
    assert_close(by_params["wo"][...].T, theirs.out_proj.weight.grad.numpy())
    assert_close(by_params["bo"][...], theirs.out_proj.bias.grad.numpy())


@pytest.mark.parametrize(("shape", "mask"), CASES[1::2], ids=IDS[1::2])
def test_the_fast_form_is_torch_sdpa(shape, mask, assert_close):
    torch = pytest.importorskip("torch")
    b, t, k, g, h = shape
    q, key, v, dz = draw(shape, key=1)
    tensors = [
        torch.tensor(np.asarray(x, np.float64).transpose(0, 2, 1, 3)).requires_grad_()
        for x in (q.reshape(b, t, k * g, h), key, v)
    ]
    z = torch.nn.functional.scaled_dot_product_attention(
        *tensors, attn_mask=torch.tensor(np.array(mask.table(t))), scale=0.3, enable_gqa=True
    )
    z.backward(torch.tensor(np.asarray(dz.reshape(b, t, k * g, h), np.float64)).transpose(1, 2))
    results = [z.detach(), *(x.grad for x in tensors)]
    desired = [x.numpy().transpose(0, 2, 1, 3) for x in results]
    desired[:2] = [x.reshape(q.shape) for x in desired[:2]]

    def fast(q, k, v):
        return fast_form.fast(q, k, v, mask, 0.3)

    actual = jax.jit(lambda *args: value_and_grads(fast, *args))(q, key, v, dz)
    assert_close(list(actual), desired)


def test_bfloat16_products_are_close_and_the_softmax_stays_float32():
    shape, mask = (2, 40, 2, 2, 8), core.Mask("causal")
    q, k, v, _ = draw(shape)
    low = [x.astype(jnp.bfloat16) for x in (q, k, v)]
    exact = core.reference(q, k, v, mask, 0.3)
    rounded = core.reference(*low, mask, 0.3)
    assert rounded.weights_bkgts.dtype == rounded.scores_bkgts.dtype == jnp.float32
    np.testing.assert_allclose(rounded.weights_bkgts.sum(-1), 1, atol=1e-6)
    for z in (rounded.z_btkgh, fast_form.fast(*low, mask, 0.3)):
        assert z.dtype == jnp.bfloat16
        # A bfloat16 keeps 8 bits: inputs and weights are each rounded by up to 2^-9 of themselves,
        # scores of size 3 by ten times that.
        assert np.abs(z.astype(jnp.float32) - exact.z_btkgh).max() < 0.06

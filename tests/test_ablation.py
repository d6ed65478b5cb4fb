"""Leave-one-out and gradient importance against loops, finite differences and the other forms."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mha_jax.analysis import ablation, addresses
from mha_jax.model import build
from tests.shapes import model_of, spec_of

KEY = jax.random.key(0)
B, T = 5, 6
TOKENS = jax.random.randint(jax.random.key(1), (B, T), 0, 11)
TARGETS = jax.random.randint(jax.random.key(2), (B, T, 2), 0, 5)
MODEL = build(model_of(2, n_kv_heads=2, residual=True, d_ff=8), spec_of())
PARAMS = MODEL.init(KEY)


def per_token(outputs_btov):
    """Loss of each token, [b, t]."""
    log_p = jax.nn.log_softmax(outputs_btov)
    return -jnp.take_along_axis(log_p, TARGETS[..., None], axis=-1)[..., 0].mean(-1)


def losses(**changes):
    return per_token(MODEL.apply(PARAMS, TOKENS, **changes)[0]).mean(-1)


LAYERS = jax.jit(lambda: MODEL.apply(PARAMS, TOKENS, probe=lambda stops: stops)[1])()


@functools.cache
def rises(kind, of):
    return jax.jit(lambda: ablation.leave_one_out(losses, LAYERS, kind, of))()


@functools.cache
def forward():
    return jax.jit(lambda replace: losses(replace=replace))


@pytest.mark.parametrize("kind", ablation.KINDS)
@pytest.mark.parametrize("of", ["n", "k"])
def test_one_head_after_the_other(kind, of, assert_close) -> None:
    """Each head's rise is that of a model patched by hand with what stands in for it."""
    found = rises(kind, of)
    assert [x.shape for x in found] == [(B, 4 if of == "n" else 2)] * 2
    for layer in range(2):
        for head in range(found[layer].shape[1]):
            values = {}
            for name in ("z",) if of == "n" else ("k", "v"):
                address = f"l{layer}.{of}{head}.{name}"
                clean = np.asarray(addresses.pick(address, LAYERS))
                values[address] = {
                    "zero": np.zeros_like(clean),
                    "mean": np.broadcast_to(clean.mean(axis=0), clean.shape),
                    "resample": clean[[*range(1, B), 0]],
                }[kind]
            if kind == "zero" and of == "k":
                del values[f"l{layer}.k{head}.k"]
            want = forward()(addresses.replacements(values, LAYERS)) - losses()
            assert_close(found[layer][:, head], want)
            assert np.abs(want).max() > 1e-3


def test_a_kv_head_is_its_group(assert_close) -> None:
    masked = losses(head_mask=[jnp.ones(4), jnp.array([0.0, 0, 1, 1])]) - losses()
    assert_close(rises("zero", "k")[1][:, 0], masked)


def test_the_gradient_is_that_of_each_sequence(assert_close) -> None:
    found = ablation.gradient_importance(losses, B, (4, 4))
    for layer in range(2):
        for head in range(4):

            def at(factor, layer=layer, head=head):
                masks = [jnp.ones(4), jnp.ones(4)]
                masks[layer] = masks[layer].at[head].set(factor)
                return losses(head_mask=masks)

            # Of each sequence alone, forward mode: no other sequence and no other head in it.
            want = jnp.abs(jax.jvp(at, (1.0,), (1.0,))[1])
            assert_close(found[layer][:, head], want)
            slope = np.abs(np.asarray(at(1.05)) - np.asarray(at(0.95))) / 0.1
            np.testing.assert_allclose(found[layer][:, head], slope, rtol=0.05, atol=1e-4)


def test_it_is_the_form_of_the_paper_and_not_one_of_the_others() -> None:
    """|sum over tokens| per sequence lies between |batch| and the sum of |token|."""
    exact = ablation.gradient_importance(losses, B, (4, 4))

    def of_batch(masks_ln):
        return losses(head_mask=[masks_ln[0], masks_ln[1]]).mean()

    batch = np.abs(jax.grad(of_batch)(jnp.ones((2, 4))))
    z = [jnp.asarray(addresses.pick("z", LAYERS)[layer]) for layer in range(2)]

    def of_z(z_bthn, layer):
        values = {
            f"l{layer}.n{head}.z": np.zeros((B, T, 4)) for head in range(4)
        }  # shapes only; the values are put in below, so that they can be differentiated
        replace = addresses.replacements(values, LAYERS)
        (stop,) = replace[layer]
        replace[layer][stop] = replace[layer][stop]._replace(value=z_bthn)
        return losses(replace=replace).sum()

    for layer in range(2):
        terms = z[layer] * jax.grad(of_z)(z[layer], layer)  # [b, t, n, h]
        by_token = np.abs(np.asarray(terms.sum(-1))).sum(1)
        paper = np.asarray(exact[layer])
        np.testing.assert_allclose(paper, np.abs(np.asarray(terms.sum((1, 3)))), atol=1e-6)
        assert (by_token.mean(0) >= paper.mean(0) - 1e-6).all()
        assert (paper.mean(0) >= batch[layer] - 1e-6).all()
        assert (by_token.mean(0) > 1.05 * paper.mean(0)).any()
        assert (paper.mean(0) > 1.05 * batch[layer]).any()


def test_the_factor_of_a_kv_head_is_that_of_its_group(assert_close) -> None:
    found = ablation.gradient_importance(losses, B, (2, 2), of="k")

    def at(factor):
        return losses(head_mask=[jnp.ones(4), jnp.array([1.0, 1, factor, factor])])

    assert_close(found[1][:, 1], jnp.abs(jax.jvp(at, (1.0,), (1.0,))[1]))


def test_layers_are_normed() -> None:
    normed = ablation.per_layer([jnp.array([3.0, 4.0]), jnp.zeros(2)])
    np.testing.assert_allclose(normed[0], [0.6, 0.8], rtol=1e-6)
    np.testing.assert_array_equal(normed[1], [0.0, 0.0])


def test_a_layer_without_heads_has_none() -> None:
    layers = [{"resid_btd": LAYERS[0]["resid_btd"]}, LAYERS[1]]
    found = ablation.leave_one_out(losses, layers, "zero")
    assert found[0].shape == (B, 0)
    np.testing.assert_allclose(found[1], rises("zero", "n")[1], atol=1e-6)
    assert [x.shape for x in ablation.leave_one_out(losses, layers[:1], "mean")] == [(B, 0)]

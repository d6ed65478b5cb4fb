"""Looking at a model from inside, and changing it there."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mha_jax.analysis import addresses
from mha_jax.attention.stops import STOPS
from mha_jax.model import build
from tests.shapes import model_of, spec_of

KEY = jax.random.key(0)
TOKENS = jax.random.randint(jax.random.key(1), (3, 6), 0, 11)
OTHERS = jax.random.randint(jax.random.key(2), (3, 6), 0, 11)
# Two layers of four query heads that share two kv heads: n, k and g all differ.
MODEL = build(model_of(2, n_kv_heads=2, residual=True, d_ff=8), spec_of())
PARAMS = MODEL.init(KEY)


@jax.jit
def run(tokens, head_mask=None, kv_mask=None, replace=None):
    return MODEL.apply(
        PARAMS,
        tokens,
        probe=lambda stops: stops,
        head_mask=head_mask,
        kv_mask=kv_mask,
        replace=replace,
    )


@jax.jit
def fast(tokens, head_mask=None, kv_mask=None, replace=None):
    return MODEL.apply(PARAMS, tokens, head_mask=head_mask, kv_mask=kv_mask, replace=replace)[0]


OUTPUTS, LAYERS = run(TOKENS)


def replaced(values, tokens=TOKENS, forward=fast):
    return forward(tokens, replace=addresses.replacements(values, LAYERS))


def test_an_address_is_a_slice_of_the_stop() -> None:
    pick = {name: addresses.pick(name, LAYERS) for name in addresses.NAMES}
    for name, stop in addresses.NAMES.items():
        assert len(pick[name]) == 2
        for layer in range(2):
            array = np.asarray(LAYERS[layer][stop])
            if name == "resid":
                np.testing.assert_array_equal(addresses.pick(f"l{layer}.resid", LAYERS), array)
                continue
            letter = "k" if name in ("k", "v") else "n"
            for head in range(2 if letter == "k" else 4):
                one = addresses.pick(f"l{layer}.{letter}{head}.{name}", LAYERS)
                if "g" in stop.rpartition("_")[2]:
                    k_axis = stop.rpartition("_")[2].index("k")
                    # Query head i reads kv head i // g.
                    want = np.take(np.take(array, head // 2, k_axis), head % 2, k_axis)
                else:
                    axis = stop.rpartition("_")[2].index(letter)
                    want = np.take(array, head, axis)
                np.testing.assert_array_equal(one, want)


@pytest.mark.parametrize("name", addresses.NAMES)
def test_a_stop_replaced_by_itself_changes_nothing(name, assert_close) -> None:
    heads = {"resid": [""], "k": ["k1."], "v": ["k1."]}.get(name, ["n0.", "n3."])
    values = {
        f"l{layer}.{head}{name}": addresses.pick(f"l{layer}.{head}{name}", LAYERS)
        for layer in range(2)
        for head in heads
    }
    assert_close(replaced(values), OUTPUTS)


@pytest.mark.parametrize("name", addresses.NAMES)
def test_what_was_replaced_is_what_the_model_goes_on_with(name, assert_close) -> None:
    head = {"resid": "", "k": "k1.", "v": "k1."}.get(name, "n2.")
    address = f"l1.{head}{name}"
    there = run(OTHERS)[1]
    value = addresses.pick(address, there)
    changed, layers = replaced({address: value}, forward=run)
    assert_close(addresses.pick(address, layers), value)
    assert_close(replaced({address: value}), changed)
    assert float(jnp.abs(changed - OUTPUTS).max()) > 1e-4
    untouched = {"resid": "", "k": "k0.", "v": "k0."}.get(name, "n3.")
    if untouched:
        other = f"l1.{untouched}{name}"
        np.testing.assert_array_equal(addresses.pick(other, layers), addresses.pick(other, LAYERS))


def test_the_whole_of_a_layer_patched_is_the_other_sequence(assert_close) -> None:
    """With resid of the last layer from another input, nothing of the first input is left."""
    there_outputs, there = run(OTHERS)
    assert_close(replaced({"l1.resid": addresses.pick("l1.resid", there)}), there_outputs)


def test_weights_replaced_move_values(assert_close) -> None:
    """A head that is made to read position 0 has z equal to the value there, of its own kv head."""
    first = np.zeros((6, 6), np.float32)
    first[:, 0] = 1
    layers = replaced({"l0.n3.weights": first}, forward=run)[1]
    value = addresses.pick("l0.k1.v", LAYERS)[:, :1]
    assert_close(addresses.pick("l0.n3.z", layers), jnp.broadcast_to(value, (3, 6, 4)))


def test_a_masked_head_adds_nothing(assert_close) -> None:
    ones = [jnp.ones(4), jnp.ones(4)]
    masked = fast(TOKENS, head_mask=[ones[0], ones[1].at[2].set(0)])
    assert_close(masked, replaced({"l1.n2.z": 0.0}))
    assert_close(masked, replaced({"l1.n2.head_out": 0.0}))


def test_a_masked_kv_head_takes_its_group_along(assert_close) -> None:
    kv_mask = [jnp.array([1.0, 0.0]), jnp.ones(2)]
    masked = fast(TOKENS, kv_mask=kv_mask)
    assert_close(masked, fast(TOKENS, head_mask=[jnp.array([1.0, 1, 0, 0]), jnp.ones(4)]))
    assert_close(masked, replaced({"l0.k1.v": 0.0}))
    assert_close(run(TOKENS, kv_mask=kv_mask)[0], masked)


def test_all_heads_in_one_program(assert_close) -> None:
    """Masks are arguments: a vmap over them is a loop over heads."""
    masks = 1 - jnp.eye(4)
    together = jax.jit(jax.vmap(lambda m: fast(TOKENS, head_mask=[m, jnp.ones(4)])))(masks)
    for head in range(4):
        assert_close(together[head], fast(TOKENS, head_mask=[masks[head], jnp.ones(4)]))


def test_without_a_readout_matrix_a_head_keeps_its_columns(assert_close) -> None:
    model = build(model_of(use_wo=False), spec_of())
    params = model.init(KEY)
    outputs, layers = model.apply(params, TOKENS, probe=lambda stops: stops)
    own = addresses.pick("l0.n1.head_out", layers)
    assert_close(own[..., 4:8], addresses.pick("l0.n1.z", layers))
    assert not own[..., :4].any() and not own[..., 8:].any()
    put = addresses.replacements({"l0.n1.head_out": own}, layers)
    assert_close(model.apply(params, TOKENS, replace=put)[0], outputs)


def test_an_address_without_a_readable_layer() -> None:
    layers = [{"resid_btd": LAYERS[0]["resid_btd"]}, LAYERS[1]]
    assert addresses.pick("z", layers)[0] is None
    with pytest.raises(ValueError, match="mixer of layer 0 has no z"):
        addresses.pick("l0.n0.z", layers)
    with pytest.raises(ValueError, match="no mixer of the model has it"):
        addresses.check("z", layers[:1])


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("z[0]", "is no address; write l<layer>.n<head>.<stop>"),
        ("l00.n0.z", "is no address"),
        ("l0.n0.zz", "with a stop of resid, q, k, v, scores, weights, z, head_out"),
        ("l2.n0.z", "the model has 2 layers, which count from 0"),
        ("l0.k0.z", r"z belongs to a query head; write l0\.n<head>\.z"),
        ("l0.z", r"z belongs to a query head; write l0\.n<head>\.z"),
        ("l1.n0.v", r"v belongs to a kv head; write l1\.k<head>\.v"),
        ("l0.n4.q", "layer 0 has 4 query heads, which count from 0"),
        ("l0.k2.k", "layer 0 has 2 kv heads, which count from 0"),
        ("l0.n0.resid", r"resid has no heads; write l0\.resid"),
    ],
)
def test_a_wrong_address_is_refused(text, says) -> None:
    with pytest.raises(ValueError, match=says):
        addresses.check(text, LAYERS)
    with pytest.raises(ValueError, match=says):
        addresses.replacements({text: 0.0}, LAYERS)


def test_an_array_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match=r"'l0.n0.z': .*\(3, 6, 5\) does not fit \(3, 6, 4\)"):
        addresses.replacements({"l0.n0.z": np.zeros((3, 6, 5))}, LAYERS)


@pytest.mark.parametrize("value", [None, "a", 1j])
def test_a_value_that_is_no_real_number_is_refused(value) -> None:
    with pytest.raises(ValueError, match=r"'l0.n0.z': needs real numbers"):
        addresses.replacements({"l0.n0.z": value}, LAYERS)


def test_half_precision_is_taken() -> None:
    (first, _) = addresses.replacements({"l0.n0.z": jnp.ones(4, jnp.bfloat16)}, LAYERS)
    assert float(first["z_btkgh"].value[0, 0, 0, 0]) == 1


def test_every_stop_has_a_name() -> None:
    assert tuple(addresses.NAMES.values()) == STOPS

"""Programs that were compiled, not trained: every head's role is a line of the program.

Needs the extra `tracr`, which the locked environment does not have.
"""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("tracr", reason="install the extra: tracr")

from shapes import role_scores
from tracr_weights import BOS, VOCAB, params, shifts, slots, specs

from mha_jax.attention.core import visible_keys
from mha_jax.model import build

LENGTH = 6  # words behind the BOS
TEXTS = [
    [BOS, *words] for words in list(itertools.product(VOCAB, repeat=LENGTH))[:: 3**LENGTH // 12]
]


@pytest.fixture(scope="module", params=[1, 2, 3, 4])
def program(request):
    """K, the compiled program of K shifts, the texts as ids, and our model as a function of
    head masks: the stream [b, t, d] and the stops of each layer.
    """
    compiled = shifts(request.param, LENGTH)
    ids = jnp.array([compiled.input_encoder.encode(text) for text in TEXTS])
    model, tree = build(*specs(compiled)), params(compiled)

    @jax.jit
    def run(head_mask=None):
        outputs, stops = model.apply(tree, ids, probe=lambda stops: stops, head_mask=head_mask)
        return outputs[:, :, 0], stops

    return request.param, compiled, ids, run


def head_of(compiled):
    """Which head of layer 0 writes x[t-j], by j, from W_O."""
    config = compiled.model_config
    wo_nhd = np.asarray(compiled.params["transformer/layer_0/attn/linear"]["w"]).reshape(
        config.num_heads, config.key_size, -1
    )
    return {
        j: np.flatnonzero(np.abs(wo_nhd[:, :, columns]).sum((1, 2))).item()
        for j, columns in slots(compiled).items()
    }


def test_layers_are_reproduced(program, assert_close):
    k, compiled, ids, run = program
    with jax.numpy_rank_promotion("allow"):
        theirs = jax.jit(compiled.forward)(compiled.params, ids)
    inside = theirs.transformer_output
    stream, stops = run()
    before = [inside.input_embeddings, *inside.residuals[1::2]]  # of each layer, and the last
    for layer, ours in enumerate(stops):
        assert_close(ours["resid_btd"], before[layer])
        assert_close(ours["scores_bkgts"][:, :, 0], inside.attn_logits[layer])
        # What the heads add up to; the biases are zeros.
        assert_close(ours["head_out_btnd"].sum(2), inside.layer_outputs[2 * layer])
    assert_close(stream, before[-1])

    for text, answer in zip(TEXTS, theirs.unembedded_output.tolist(), strict=True):
        decoded = compiled.output_encoder.decode(answer)
        for t in range(k + 1, LENGTH + 1):
            wanted = tuple(text[t - j] for j in range(1, k + 1))
            assert decoded[t] == (wanted if k > 1 else wanted[0])


def test_shift_j_is_a_head_of_offset_minus_j(program, assert_close):
    k, compiled, _, run = program
    heads = head_of(compiled)
    assert sorted(heads) == list(range(1, k + 1))
    assert sorted(heads.values()) == list(range(compiled.model_config.num_heads))
    first, *later = (stops["weights_bkgts"][:, :, 0] for stops in run()[1])
    t, offsets = np.arange(LENGTH + 1), np.arange(1, 5)
    # x[t-j] must be a word: the BOS at 0 has no index.
    roles = {
        str(j): np.tile(np.where(t - j >= 1, t - j, -1), (len(TEXTS), 1)) for j in offsets.tolist()
    }
    got = role_scores(first, roles, visible_keys(LENGTH + 1, "full"))
    for j, head in heads.items():
        assert_close(got["mass"][head], np.where(offsets == j, 1.0, 0.0))
        w_bts = np.asarray(first[:, head, j + 1 :])
        assert -(w_bts * np.log(np.maximum(w_bts, 1e-30))).sum(-1).max() < 1e-5
    for w_bnts in later:  # layers that hold only MLPs are filled up with heads of zeros
        assert_close(w_bnts, np.full(w_bnts.shape, 1 / (LENGTH + 1)))


def test_a_head_is_needed_for_its_slot_only(program, assert_close):
    k, compiled, _, run = program
    whole = np.asarray(run()[0])
    for j, head in head_of(compiled).items():
        masks = [jnp.ones(k)] * compiled.model_config.num_layers
        masks[0] = masks[0].at[head].set(0)
        without = np.asarray(run(masks)[0])
        for other, columns in slots(compiled).items():
            if other == j:
                assert_close(whole[:, j + 1 :, columns].max(-1), np.ones((len(TEXTS), LENGTH - j)))
                assert_close(without[:, :, columns], np.zeros((*whole.shape[:2], len(VOCAB))))
            else:
                assert_close(without[:, :, columns], whole[:, :, columns])

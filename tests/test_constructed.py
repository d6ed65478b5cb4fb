"""Constructed heads: the model attends as the closed form says, and as it was asked to."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import run_of
from shapes import role_scores, spec_of

from mha_jax.analysis import naming
from mha_jax.analysis.constructed import Construction, demonstration, expected, pointers, visible
from mha_jax.analysis.constructed_weights import model_spec, params, resplit
from mha_jax.analysis.partition import role_masses
from mha_jax.model import build
from mha_jax.tasks import english

T, B = 32, 48
# 8 classes of 3 words, and the delimiter, which is alone in its class.
CLASSES = (*(i // 3 for i in range(24)), 8)
DELIMITER = 24
PURE = ("prev", "word", "class", "class_or_copy", "delimiter")
MIXTURES = (
    {"prev": 0.7, "word": 0.3},
    {"class": 0.5, "delimiter": 0.5},
    {"delimiter": 0.4, "class": 0.3, "word": 0.2, "prev": 0.1},
    {"word": 0.6, "prev": 0.2},  # and .2 spread evenly
    {"prev": 0.1},
    {},
)
# Weights of float32 scores up to 20: their rounding, 1e-6, is the relative error of a weight.
# Behind a previous-token head of 1e-6 on other keys: the same again.
ATTENTION = 5e-5


def construction(*layers, mask="full", n_kv_heads=None):
    """One read-out a head of the last layer, as large as the vocabulary."""
    spec = spec_of(
        input_sizes=(len(CLASSES),),
        length=T,
        mask=mask,
        outputs=tuple(f"head {i}" for i in range(len(layers[-1]))),
        output_size=len(CLASSES),
    )
    return Construction(spec, CLASSES, layers, DELIMITER, n_kv_heads)


def sentences(seed=0, b=B, t=T):
    """Random words with one delimiter each."""
    rng = np.random.default_rng(seed)
    words_bt = rng.integers(0, DELIMITER, (b, t))
    words_bt[np.arange(b), rng.integers(0, t, b)] = DELIMITER
    return words_bt


@functools.cache
def compiled(model, spec):
    apply = functools.partial(build(model, spec).apply, probe=lambda stops: stops["weights_bkgts"])
    return jax.jit(lambda tree, inputs, head_mask: apply(tree, inputs, head_mask=head_mask))


def run(built, inputs, *, model=None, head_mask=None):
    """The model's outputs [b, t, o, v] and its attention weights, one [b, n, t, s] a layer."""
    apply = compiled(model or model_spec(built), built.spec)
    outputs, stops = apply(params(built), jnp.asarray(inputs), head_mask)
    return outputs, [np.asarray(w).reshape(w.shape[0], -1, *w.shape[3:]) for w in stops]


def weights(built, inputs, model=None):
    return run(built, inputs, model=model)[1]


def masses(built, weights_bnts, words_bt, roles):
    """Role scores on the rows that tell `roles` apart: mass [n, R], R as in `roles`; rows."""
    found = role_scores(
        weights_bnts, pointers(built, words_bt, roles), visible(built, words_bt.shape[1])
    )
    order = [sorted(roles).index(role) for role in roles]
    return found["mass"][:, order], found["n_rows"][0]


# --- the closed form ---------------------------------------------------------------------------


def slow_keys(role, words, t, mask):
    """The keys of a role, from its sentence in the docstring."""
    keys = set()
    for s in range(len(words)):
        copy, kin = words[s] == words[t], CLASSES[words[s]] == CLASSES[words[t]]
        hit = {
            "prev": s == t - 1,
            "word": copy and s != t,
            "class": kin and not copy,
            "class_or_copy": kin and s != t,
            "delimiter": words[s] == DELIMITER,
            "induction": 0 < s < t and words[s - 1] == words[t],
        }[role]
        if hit and (mask == "full" or s <= t):
            keys.add(s)
    return keys


def slow_attention(head, words, t, mask):
    """Attention of one query: the factors of its keys, by hand."""
    n_seen = len(words) if mask == "full" else t + 1
    rest = max(1 - sum(head.values()), 1e-6)
    factor = np.zeros(len(words))
    factor[:n_seen] = 1
    for role, w in head.items():
        for s in slow_keys(role, words, t, mask):
            factor[s] *= 1 + w * T / rest
        if role == "induction" and t > 1:
            factor[[0, t]] = 0  # hidden; below two visible keys there is nothing else to see
    return factor / factor.sum()


@pytest.mark.parametrize("mask", ["full", "causal"])
@pytest.mark.parametrize("n_kv_heads", [None, 1])
def test_the_model_attends_as_the_rule_says(mask, n_kv_heads, assert_close):
    heads = (*({role: 1.0} for role in PURE), *MIXTURES)
    built = construction(heads, mask=mask, n_kv_heads=n_kv_heads)
    words_bt = sentences()
    (rule,) = expected(built, words_bt)
    assert_close(weights(built, words_bt)[0], rule, ATTENTION)
    slow = [
        [[slow_attention(head, words, t, mask) for t in range(T)] for head in heads]
        for words in words_bt[:4]
    ]
    assert_close(rule[:4], slow, 1e-12)  # both are float64


def test_an_induction_pair_attends_as_the_rule_says(assert_close):
    heads = ({"induction": 1.0}, {"induction": 0.7, "prev": 0.3}, {"word": 1.0})
    built = construction(({"word": 1.0}, {"prev": 1.0}), heads, mask="causal")
    words_bt = np.random.default_rng(0).integers(0, 6, (B, T))  # six words: many copies, and runs
    words_bt[: B // 2] = sentences()[: B // 2]
    first, second = weights(built, words_bt)
    rule = expected(built, words_bt)
    assert_close(first, rule[0], ATTENTION)
    assert_close(second, rule[1], ATTENTION)
    slow = [[slow_attention(heads[0], w, t, "causal") for t in range(T)] for w in words_bt]
    assert_close(rule[1][:, 0], slow, 1e-6)  # what is hidden there is about 1e-13 here


def test_a_shorter_sequence_attends_as_the_rule_says(assert_close):
    built = construction(MIXTURES, mask="causal")
    words_bt = sentences(t=T // 2)
    assert_close(weights(built, words_bt)[0], expected(built, words_bt)[0], ATTENTION)


# --- what was asked for ------------------------------------------------------------------------


@pytest.mark.parametrize("n_kv_heads", [None, 2, 1])
def test_a_mixture_has_the_weights_it_was_given(n_kv_heads, assert_close):
    built = construction(MIXTURES, n_kv_heads=n_kv_heads)
    words_bt = sentences(seed=1)
    attention = weights(built, words_bt)[0]
    for i, head in enumerate(MIXTURES[:-1]):
        mass, n_rows = masses(built, attention, words_bt, tuple(head))
        assert n_rows > 20
        rest = 1 - sum(head.values())
        assert_close(mass[i], [w + rest / T for w in head.values()], ATTENTION)
        assert rest > 0.3 or np.abs(mass[i] - list(head.values())).max() < 0.01


@pytest.mark.parametrize("n_kv_heads", [None, 1])
def test_the_weights_and_the_name_of_a_mixture(n_kv_heads):
    """Also of what is spread evenly, and whatever other roles are asked beside its own."""
    built = construction(MIXTURES, n_kv_heads=n_kv_heads)
    words_bt = sentences(seed=1)
    attention = weights(built, words_bt)[0]
    roles = ("prev", "word", "class", "delimiter")
    asked = pointers(built, words_bt, roles)
    found = naming.role_weights(role_masses(attention, asked, visible(built, T)))
    for i, head in enumerate(MIXTURES):
        built_in = np.array([head.get(role, 0.0) for role in sorted(roles)])
        np.testing.assert_allclose(found[i], built_in, atol=0.01)
        *_, second, heaviest = np.sort(built_in)
        want = "mixed" if heaviest < 0.5 or second >= 0.3 else max(head, key=lambda r: head[r])
        assert naming.role_name(found[i], roles) == want


def test_a_pure_head_has_all_mass_on_its_role():
    built = construction(tuple({role: 1.0} for role in PURE))
    words_bt = sentences(seed=2)
    attention = weights(built, words_bt)[0]
    for i, role in enumerate(PURE):
        mass, n_rows = masses(built, attention, words_bt, (role,))
        assert n_rows > 20
        assert mass[i, 0] > 1 - 1e-5
        for wrong in set(PURE) - {role}:
            if "class_or_copy" in (role, wrong) and {role, wrong} & {"word", "class"}:
                continue  # one has every key of the other
            mass, n_rows = masses(built, attention, words_bt, (role, wrong))
            assert n_rows > 5
            assert mass[i, 1] < 1e-5


def test_orientation():
    """Rows are queries: the previous-token head looks to the left, and the first row nowhere."""
    built = construction(({"prev": 1.0}, {"delimiter": 1.0}))
    words_bt = sentences(b=1)
    previous, sink = weights(built, words_bt)[0][0]
    np.testing.assert_allclose(np.diagonal(previous, -1), 1, atol=ATTENTION)
    np.testing.assert_allclose(previous[0], 1 / T, atol=ATTENTION)
    np.testing.assert_allclose(sink[:, words_bt[0] == DELIMITER], 1, atol=ATTENTION)


def test_copies_share_equally_and_the_query_is_none_of_them():
    built = construction(({"word": 1.0},))
    words_bt = np.arange(T)[None] % 20
    words_bt[0, [3, 17, 30]] = 22
    row = weights(built, words_bt)[0][0, 0, 17]
    np.testing.assert_allclose(row[[3, 30]], 0.5, atol=ATTENTION)
    assert row[17] < 1e-6


def test_the_induction_pair_predicts_a_repeated_sequence():
    built = construction(({"prev": 1.0},), ({"induction": 1.0},), mask="causal")
    half = np.stack([np.random.default_rng(i).permutation(24)[: T // 2] for i in range(B)])
    words_bt = np.concatenate([half, half], axis=1)
    outputs, attention = run(built, words_bt)
    predicted = np.asarray(outputs[:, T // 2 : -1, 0].argmax(-1))
    np.testing.assert_array_equal(predicted, words_bt[:, T // 2 + 1 :])
    mass, n_rows = masses(built, attention[1], words_bt, ("induction",))
    assert n_rows == B * T // 2
    assert mass[0, 0] > 1 - 1e-4


def test_without_its_previous_token_head_the_induction_head_is_lost():
    built = construction(({"prev": 1.0}, {"word": 1.0}), ({"induction": 1.0},), mask="causal")
    words_bt = np.tile(sentences(t=T // 2), 2)

    def mass(*first):
        _, attention = run(built, words_bt, head_mask=[jnp.array(first), jnp.ones(1)])
        return masses(built, attention[1], words_bt, ("induction",))[0][0, 0]

    assert mass(1.0, 1.0) > 1 - 1e-4
    assert mass(1.0, 0.0) == pytest.approx(mass(1.0, 1.0), abs=1e-5)  # the other head is not used
    assert mass(0.0, 1.0) < 0.2


# --- the heads of a task -----------------------------------------------------------------------


def test_constructed_heads_solve_a_task(assert_close):
    """Read-outs, values and pointers of `relations`, whose roles are these; of `class` there are
    two keys, and the first is asked for.
    """
    task = run_of({"task.name": "relations"}).static.task
    spec, classes = task.spec, (*(i // 4 for i in range(24)), 6)
    heads = tuple({role: 1.0} for role in spec.outputs)
    built = Construction(spec, classes, (heads,), delimiter=24)
    batch = task.module.sample(jax.random.key(0), {}, task.config, 32)
    outputs, attention = run(built, batch.inputs)
    right = np.asarray(outputs.argmax(-1) == batch.targets) & (np.asarray(batch.loss_mask) > 0)
    accuracy = right.sum((0, 1)) / np.asarray(batch.loss_mask).sum((0, 1))
    others = [spec.outputs.index(role) for role in ("prev", "word", "delimiter")]
    assert_close(accuracy[others], [1.0] * 3)

    seen = visible(built, spec.length)
    got = role_scores(attention[0], batch.pointers, seen)["corrected"]
    names = sorted(spec.outputs)
    for i, role in enumerate(spec.outputs):
        want = (0.5 - 1 / 13) / (1 - 1 / 13) if role == "class" else 1
        assert got[i, names.index(role)] == pytest.approx(want, abs=1e-4)


def test_the_induction_task_is_solved_by_the_pair(assert_close):
    task = run_of({"task.name": "induction"}).static.task
    spec = task.spec
    layers = ({"prev": 1.0},), ({"induction": 1.0},)
    built = Construction(spec, (0,) * spec.input_sizes[0], layers)
    batch = task.module.sample(jax.random.key(0), {}, task.config, 32)
    outputs, _ = run(built, batch.inputs)
    asked = np.asarray(batch.loss_mask) > 0
    np.testing.assert_array_equal(np.asarray(outputs.argmax(-1))[asked], batch.targets[asked])


# --- the demonstration -------------------------------------------------------------------------

SENTENCE = "the cat sat on the warm mat ."


def shown(n_heads):
    """The demonstration, its words, and the attention [n, t, s] of the weights re-split."""
    cfg = english.Config(length=8, n_values=16)
    parts = tuple(i for i, words in enumerate(english.WORDS.values()) for _ in words)
    built = demonstration(english.spec(cfg), parts, english.VOCAB.index("."))
    inputs = english.encode(cfg, SENTENCE)[None]
    model = resplit(model_spec(built), n_heads)
    return built, inputs[..., 0], weights(built, inputs, model)[0][0]


def test_the_demonstration_shows_four_relations():
    words = SENTENCE.split()
    neighbour, part, word, sink = shown(4)[2]
    np.testing.assert_allclose(np.diagonal(neighbour, -1), 1, atol=ATTENTION)
    for a, b in ((0, 4), (1, 6)):  # the determiners and the nouns pair up
        np.testing.assert_allclose([part[a, b], part[b, a]], 1, atol=ATTENTION)
    np.testing.assert_allclose([word[0, 4], word[4, 0]], 1, atol=ATTENTION)  # the two "the"
    np.testing.assert_allclose([word[1, 6], word[6, 1]], 1 / 8, atol=ATTENTION)  # cat and mat
    np.testing.assert_allclose(sink[:, words.index(".")], 1, atol=ATTENTION)


@pytest.mark.parametrize("n_heads", [4, 2, 1])
def test_the_demonstration_is_known_for_fewer_heads(n_heads, assert_close):
    built, words_bt, attention = shown(n_heads)
    (rule,) = expected(built, words_bt, n_heads)
    assert_close(attention, rule[0], ATTENTION)
    # cat: neighbour, part of speech and delimiter have a key each, a copy there is none.
    shares = {4: [[1, 0, 0], [0, 1, 0], None, [0, 0, 1]], 2: [[1, 1, 0], [0, 0, 1]], 1: [[1, 1, 1]]}
    for head, share in zip(attention, shares[n_heads], strict=True):
        if share is not None:
            # A score is divided by the root of the heads that were joined: other keys keep 1e-3.
            assert_close(head[1, [0, 6, 7]], np.array(share) / sum(share), 2e-3)


# --- refusals ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"layers": (({"next": 1.0},),)}, "not among the roles"),
        ({"layers": (({"prev": 0.7, "word": 0.4},),)}, "add up to 1 at most"),
        ({"layers": (({"prev": 0.0},),)}, "above 0"),
        ({"layers": (({"prev": float("nan")},),)}, "above 0"),
        ({"layers": (({"induction": 1.0},),)}, "induction needs"),
        ({"layers": (({"prev": 0.9},), ({"induction": 1.0},))}, "induction needs"),
        ({"layers": ()}, "needs a layer"),
        ({"layers": (({"prev": 1.0},) * 2,)}, "needs 2 read-outs"),
        ({"classes": (0, 1)}, "2 classes for 25 words"),
        ({"delimiter": 25}, "is no word"),
        ({"n_kv_heads": 2}, "must divide"),
        ({"spec": spec_of(inputs="vectors")}, "needs tokens or fields"),
    ],
)
def test_what_has_no_model_is_refused(changes, reason):
    with pytest.raises(ValueError, match=reason):
        dataclasses.replace(construction(({"prev": 1.0},)), **changes)
    full = construction(({"prev": 1.0},), ({"prev": 1.0},))
    with pytest.raises(ValueError, match="causal mask"):
        dataclasses.replace(full, layers=(({"prev": 1.0},), ({"induction": 1.0},)))


def test_shared_and_stacked_heads_are_not_re_split():
    shared = construction(({"prev": 1.0},) * 4, n_kv_heads=1)
    with pytest.raises(ValueError, match="re-split"):
        resplit(model_spec(shared), 2)
    with pytest.raises(ValueError, match="re-split"):
        resplit(model_spec(construction(({"prev": 1.0},) * 4)), 7)
    stacked = construction(({"prev": 1.0},) * 2, ({"prev": 1.0},) * 2)
    for built, n_heads in ((shared, 2), (stacked, 1)):
        with pytest.raises(ValueError, match="one layer of MHA"):
            expected(built, sentences(b=1), n_heads)

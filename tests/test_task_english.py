"""`english` against a solver that reads the sentence word by word, and its grammar as a pattern."""

import re

import jax
import numpy as np
import pytest

from mha_jax.tasks import english

sample = jax.jit(english.sample, static_argnums=(2, 3))

CONFIGS = [english.Config(12, 16), english.Config(7, 2), english.Config(8, 5)]
KIND = {word: kind for kind, words in english.WORDS.items() for word in words}
LETTER = {"filler": "_"} | {kind: kind[0] for kind in KIND.values() if kind != "filler"}
LETTER |= {"adverb": "r", "stop": "."}


def sentences(batch):
    return [[english.VOCAB[i] for i in row] for row in np.asarray(batch.inputs)[..., 0]]


def solve(words):
    """Per role the key position of each position of one sentence, None where undefined."""
    answers = {role: [] for role in english.ROLES}
    verb = next(s for s, word in enumerate(words) if KIND[word] == "verb")
    for t, word in enumerate(words):
        other = noun = None
        for s, there in enumerate(words):
            if other is None and KIND[there] == KIND[word] and s != t:
                other = s
            if noun is None and KIND[there] == "noun" and s > t:
                noun = s
        told = {"prev": t - 1 if t else None, "class": other, "noun": noun, "verb": verb}
        for role in english.ROLES:
            answers[role].append(None if word == "_" else told[role])
    return answers


@pytest.mark.parametrize("cfg", CONFIGS)
def test_labels_agree_with_the_solver(cfg):
    batch = jax.tree.map(np.asarray, sample(jax.random.key(7), {}, cfg, 100))
    for b, words in enumerate(sentences(batch)):
        for o, (role, positions) in enumerate(solve(words).items()):
            for t, s in enumerate(positions):
                assert batch.pointers[role][b, t] == (-1 if s is None else s)
                assert batch.loss_mask[b, t, o] == (s is not None)
                if s is not None:
                    assert batch.targets[b, t, o] == batch.inputs[b, s, 1]


@pytest.mark.parametrize("cfg", CONFIGS)
def test_sentences_are_grammatical_and_use_every_word(cfg):
    seen = set()
    for words in sentences(sample(jax.random.key(8), {}, cfg, 500)):
        assert len(words) == cfg.length
        pattern = "".join(LETTER[KIND[word]] for word in words)
        assert re.fullmatch(r"da*nr*vr*pda*n\._*", pattern), words
        seen |= set(words)
    shortest = cfg.length == 7
    unused = {"_"} | {w for w in KIND if KIND[w] in ("adjective", "adverb")} if shortest else set()
    assert seen == set(english.VOCAB) - unused


def test_words_lengths_places_and_values_are_uniform():
    cfg = CONFIGS[0]
    batch = sample(jax.random.key(9), {}, cfg, 4000)
    texts, values = sentences(batch), np.asarray(batch.inputs)[..., 1]
    # Rates of up to a half over 4,000 sentences: five standard deviations are 4 %.
    lengths = np.bincount([words.index(".") + 1 for words in texts], minlength=13) / 4000
    np.testing.assert_allclose(lengths[7:], 1 / 6, atol=0.04)
    for kind in ("determiner", "noun", "verb", "preposition"):
        first = [next(word for word in words if KIND[word] == kind) for words in texts]
        for word in english.WORDS[kind]:
            assert abs(first.count(word) / 4000 - 1 / len(english.WORDS[kind])) < 0.04
    nouns = [[word for word in words if KIND[word] == "noun"] for words in texts]
    assert abs(np.mean([a == b for a, b in nouns]) - 1 / 8) < 0.03
    inserted = "".join("".join(LETTER[KIND[w]] for w in words) for words in texts)
    adverbs = inserted.count("r") / (inserted.count("r") + inserted.count("a"))
    assert abs(adverbs - 1 / 2) < 0.04
    np.testing.assert_allclose(np.bincount(values.ravel()) / values.size, 1 / 16, rtol=0.1)


def test_no_offset_and_no_place_answers_what_is_asked_of_words():
    cfg = CONFIGS[0]
    batch = jax.tree.map(np.asarray, sample(jax.random.key(10), {}, cfg, 2000))
    for role, pointer in batch.pointers.items():
        asked = pointer >= 0
        offsets = np.bincount((pointer - np.arange(cfg.length))[asked] + cfg.length)
        places = np.bincount(pointer[asked])
        # The verb is the third to eighth word, most often the third.
        most = max(offsets.max(), places.max()) / asked.sum()
        assert most == 1 if role == "prev" else most < 0.35, (role, most)


def test_the_sentence_of_the_docstring():
    cfg = CONFIGS[0]
    text = "the cat sat on the warm mat ."
    inputs = english.encode(cfg, text)
    assert inputs.dtype == np.int32
    assert [english.VOCAB[i] for i in inputs[:, 0]] == text.split()
    assert inputs[:, 1].tolist() == list(range(8))
    rows = {}
    for line in english.__doc__.splitlines():
        name, *cells = line.split() or [""]
        if (
            name in english.ROLES
            and len(cells) == 8
            and all(re.fullmatch(r"\.|\d", c) for c in cells)
        ):
            rows[name] = [None if cell == "." else int(cell) for cell in cells]
    assert rows == solve(text.split())


def test_encode_fills_the_values_and_names_what_it_cannot_read():
    cfg = english.Config(7, 3)
    assert english.encode(cfg, "  mat cat\nmat . ")[:, 1].tolist() == [0, 1, 2, 0]
    assert english.encode(cfg, "").shape == (0, 2)
    for text, said in [
        ("the Cat sat", "'Cat'; nearest are cat, "),
        ("the cat sat.", "'sat.'; nearest are sat, "),
        ("zebra", "'zebra'; nearest are "),
        ("mät", r"'m\xe4t'; nearest are mat, "),
        ("x" * 5000, "xxx...; nearest are "),
    ]:
        with pytest.raises(ValueError, match=re.escape(said)) as caught:
            english.encode(cfg, text)
        assert len(str(caught.value)) < 200


def test_spec():
    spec = english.spec(CONFIGS[0])
    assert spec.input_sizes == (len(english.VOCAB), 16)
    assert len(set(spec.vocab)) == len(spec.vocab) == 41
    assert (spec.length, spec.mask, spec.chance) == (12, "full", 1 / 16)
    assert spec.outputs == spec.roles == ("prev", "class", "noun", "verb")


def test_classes_are_parts_of_speech() -> None:
    spec = english.spec(english.Config(length=12, n_values=16))
    kinds = tuple(english.WORDS)
    for word, kind in zip(spec.vocab, spec.classes, strict=True):
        assert word in english.WORDS[kinds[kind]]
    assert [spec.vocab[i] for i in spec.delimiters] == ["."]

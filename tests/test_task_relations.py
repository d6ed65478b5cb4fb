"""`relations` against a solver that reads the sentence word by word."""

import dataclasses

import jax
import numpy as np
import pytest

from mha_jax.tasks import relations

sample = jax.jit(relations.sample, static_argnums=(2, 3))

FOUR, ALL = "prev,class,word,delimiter", ",".join(relations.RELATIONS)
CAUSAL = "rhyme_last, class_last,rhyme,word,prev,delimiter,class"
CONFIGS = [
    relations.Config(6, 4, 3, 16, FOUR, False, 0),
    relations.Config(2, 2, 1, 2, FOUR, False, 0),
    relations.Config(5, 7, 5, 11, ALL, False, 0),
    relations.Config(20, 3, 6, 5, ALL, False, 9),
    relations.Config(6, 4, 3, 16, CAUSAL, True, 0),
    relations.Config(7, 2, 2, 4, CAUSAL, True, 5),
    relations.Config(3, 5, 1, 4, "rhyme,next", False, 1),
    relations.Config(6, 4, 3, 16, "word", False, 3),
]


def solve(cfg, words):
    """Per relation the key position of each position of one sentence, None where undefined."""
    delimiter = cfg.n_classes * cfg.words_per_class
    length, answers = len(words), {name: [] for name in relations.RELATIONS}
    for t, word in enumerate(words):
        places = {name: [] for name in answers}
        places["prev"] += [t - 1] if t > 0 else []
        places["next"] += [t + 1] if t + 1 < length else []
        places["delimiter"].append(words.index(delimiter))
        if word != delimiter:
            word_class, number = divmod(word, cfg.words_per_class)
            for s, other in enumerate(words):
                if other == delimiter or s == t:
                    continue
                other_class, other_number = divmod(other, cfg.words_per_class)
                if other == word:
                    places["word"].append(s)
                elif other_class == word_class:
                    places["class"].append(s)
                elif other_number == number:
                    places["rhyme"].append(s)
        places["class_last"], places["rhyme_last"] = places["class"][-1:], places["rhyme"][-1:]
        for name, found in places.items():
            place = found[0] if found else None
            hidden = place is None or (cfg.causal and place >= t)
            answers[name].append(None if hidden else place)
    return {name.strip(): answers[name.strip()] for name in cfg.relations.split(",")}


@pytest.mark.parametrize("cfg", CONFIGS)
def test_labels_agree_with_the_solver(cfg):
    batch = jax.tree.map(np.asarray, sample(jax.random.key(7), {}, cfg, 24))
    for b in range(24):
        words, values = batch.inputs[b, :, 0].tolist(), batch.inputs[b, :, 1]
        for o, (role, positions) in enumerate(solve(cfg, words).items()):
            for t, s in enumerate(positions):
                assert batch.pointers[role][b, t] == (-1 if s is None else s)
                assert batch.loss_mask[b, t, o] == (s is not None)
                if s is not None:
                    assert batch.targets[b, t, o] == values[s]


@pytest.mark.parametrize("cfg", CONFIGS)
def test_a_sentence_is_two_words_of_each_class_twice_and_single_words_of_others(cfg):
    batch = sample(jax.random.key(8), {}, cfg, 50)
    delimiter = cfg.n_classes * cfg.words_per_class
    for words in np.asarray(batch.inputs)[..., 0].tolist():
        assert len(words) == 4 * cfg.classes_per_sentence + 1 + cfg.n_distractors
        assert words.count(delimiter) == 1
        found = {word: words.count(word) for word in words if word != delimiter}
        classes = [word // cfg.words_per_class for word in found]
        assert len(set(classes)) == cfg.classes_per_sentence + cfg.n_distractors
        for word, count in found.items():
            assert count == classes.count(word // cfg.words_per_class)
        assert sum(count == 1 for count in found.values()) == cfg.n_distractors


def test_words_places_and_values_are_uniform():
    cfg = CONFIGS[0]
    batch = jax.tree.map(np.asarray, sample(jax.random.key(9), {}, cfg, 4000))
    words, values = batch.inputs[..., 0], batch.inputs[..., 1]
    # 5 % is more than five standard deviations of the rarest of these counts.
    word_rates = np.bincount(words[words < 24], minlength=24) / (4000 * 12)
    np.testing.assert_allclose(word_rates, 1 / 24, rtol=0.1)
    np.testing.assert_allclose(
        np.bincount(values.ravel(), minlength=16) / values.size, 1 / 16, rtol=0.1
    )
    places = np.bincount(batch.pointers["delimiter"][:, 0], minlength=13) / 4000
    np.testing.assert_allclose(places, 1 / 13, atol=5 * (1 / 13 / 4000) ** 0.5)
    # A word's copy is as likely at any other place: no offset answers "word".
    gaps = batch.pointers["word"] - np.arange(13)
    gaps = np.bincount(np.abs(gaps[batch.pointers["word"] >= 0]), minlength=13) / (4000 * 12)
    np.testing.assert_allclose(gaps[1:], 2 * np.arange(12, 0, -1) / (13 * 12), atol=0.01)


@pytest.mark.parametrize("distractors", [0, 3])
def test_no_offset_and_no_place_answers_what_is_asked_of_words(distractors):
    cfg = relations.Config(6, 4, 3, 16, ALL, False, distractors)
    batch = jax.tree.map(np.asarray, sample(jax.random.key(10), {}, cfg, 2000))
    length = relations.spec(cfg).length
    for name, pointer in batch.pointers.items():
        asked = pointer >= 0
        offsets = np.bincount((pointer - np.arange(length))[asked] + length)
        places = np.bincount(pointer[asked])
        # The first of two words in 13 stands at position 0 with probability 2 / 13, or more often
        # where it is known that others stand elsewhere; a place is asked of every position.
        most = max(offsets.max(), places.max()) / asked.sum()
        assert most == 1 if name in ("prev", "next") else most < 0.25, (name, most)


def test_two_relations_seldom_have_one_answer():
    """None follows from another: a head that answers one is wrong on most rows of the other."""
    cfg = relations.Config(6, 4, 3, 16, ALL, False, 0)
    batch = jax.tree.map(np.asarray, sample(jax.random.key(11), {}, cfg, 2000))
    for name, pointer in batch.pointers.items():
        for other in set(cfg.asked) - {name}:
            both = (pointer >= 0) & (batch.pointers[other] >= 0)
            assert np.mean(pointer[both] == batch.pointers[other][both]) < 0.2, (name, other)


BAD = [
    (dict(relations=" "), "at least one relation; choose from prev, class, "),
    (dict(relations="prev,clas"), "names 'clas', which is no relation; did you mean class"),
    (dict(relations="wörd, prev"), r"names 'w\xf6rd', which is no relation"),
    (dict(relations="q" * 999), "'" + "q" * 39 + ", which is no relation; choose from prev"),
    (dict(relations="prev,,word,"), "has an empty name; choose from"),
    (dict(relations="word,prev, word"), "names 'word' 2 times; name it once"),
    (dict(relations="prev\nclass"), r"names 'prev\nclass', which is no relation"),
    (dict(causal=True, relations=ALL), "asks for 'next', which a causal mask hides; drop it"),
    (dict(classes_per_sentence=1, relations="rhyme"), "'rhyme', and a sentence of one class has"),
]


@pytest.mark.parametrize("over, said", BAD)
def test_relations_that_cannot_be_asked(over, said):
    ((field, rule, fix),) = relations.problems(dataclasses.replace(CONFIGS[0], **over))
    assert field == "relations"
    assert said in f"{rule}; {fix}"
    assert "\n" not in rule + fix


def test_order_of_the_names_is_the_order_of_the_outputs():
    spec = relations.spec(CONFIGS[4])
    assert spec.outputs == spec.roles == tuple(CAUSAL.replace(" ", "").split(","))
    assert (spec.mask, spec.length) == ("causal", 13)
    assert relations.spec(CONFIGS[3]).length == 34


def test_spec():
    spec = relations.spec(CONFIGS[0])
    assert spec.input_sizes == (25, 16)
    assert spec.length == 13
    assert spec.vocab[0] == "0.0"
    assert spec.vocab[23:] == ("5.3", "|")
    assert spec.mask == "full"
    assert spec.chance == 1 / 16

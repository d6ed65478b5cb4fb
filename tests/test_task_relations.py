"""`relations` against a solver that reads the sentence word by word."""

import jax
import numpy as np
import pytest

from mha_jax.tasks import relations

sample = jax.jit(relations.sample, static_argnums=(2, 3))

CONFIGS = [
    relations.Config(6, 4, 3, 16),
    relations.Config(2, 2, 1, 2),
    relations.Config(5, 7, 5, 11),
    relations.Config(20, 3, 6, 5),
]


def solve(cfg, words):
    """Per role the key position of each position of one sentence, None where undefined."""
    delimiter = cfg.n_classes * cfg.words_per_class
    answers = {role: [] for role in relations.ROLES}
    for t, word in enumerate(words):
        answers["prev"].append(t - 1 if t else None)
        answers["delimiter"].append(words.index(delimiter))
        classmate = copy = None
        if word != delimiter:
            word_class = word // cfg.words_per_class
            for s, other in enumerate(words):
                same_class = other != delimiter and other // cfg.words_per_class == word_class
                if classmate is None and same_class and other != word:
                    classmate = s
                if other == word and s != t:
                    copy = s
        answers["class"].append(classmate)
        answers["word"].append(copy)
    return answers


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
def test_a_sentence_is_two_words_of_each_class_twice(cfg):
    batch = sample(jax.random.key(8), {}, cfg, 50)
    delimiter = cfg.n_classes * cfg.words_per_class
    for words in np.asarray(batch.inputs)[..., 0].tolist():
        assert len(words) == 4 * cfg.classes_per_sentence + 1
        assert words.count(delimiter) == 1
        found = {word for word in words if word != delimiter}
        assert all(words.count(word) == 2 for word in found)
        classes = [word // cfg.words_per_class for word in found]
        assert len(set(classes)) == cfg.classes_per_sentence
        assert all(classes.count(c) == 2 for c in classes)


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


def test_spec():
    spec = relations.spec(CONFIGS[0])
    assert spec.input_sizes == (25, 16)
    assert spec.length == 13
    assert spec.vocab[0] == "0.0"
    assert spec.vocab[23:] == ("5.3", "|")
    assert spec.mask == "full"
    assert spec.chance == 1 / 16

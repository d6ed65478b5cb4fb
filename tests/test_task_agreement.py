"""`agreement` against a parser that reads the words, and its baselines against played rules."""

import collections

import jax
import numpy as np
import pytest

from mha_jax.tasks import agreement

sample = jax.jit(agreement.sample, static_argnums=(2, 3))

CONFIGS = [
    agreement.Config(4, 2, 32, 4, 4, 3),
    agreement.Config(1, 0, 1, 1, 1, 1),
    agreement.Config(2, 5, 3, 2, 1, 2),
    agreement.Config(7, 1, 2, 9, 3, 1),
]


def parse(words):
    """Positions of the nouns and of the verb of a row; the subject is the first noun.

    Reads the grammar from left to right: adjective* noun (preposition adjective* noun)+ verb stop*.
    """
    nouns, t = [], 0
    while True:
        while words[t].startswith("a"):
            t += 1
        assert words[t].startswith("n")
        nouns.append(t)
        t += 1
        if not words[t].startswith("p"):
            break
        t += 1
    assert words[t].startswith("v")
    assert all(word == "." for word in words[t + 1 :])
    return nouns, t


def number(word):
    return {"sg": 0, "pl": 1}[word.split(".")[1]]


def rows(cfg, seed, n):
    """Each row's words, nouns, verb, and the arrays of the batch."""
    batch = jax.tree.map(np.asarray, sample(jax.random.key(seed), {}, cfg, n))
    lexicon = agreement.lexicon(cfg)
    for b in range(n):
        words = [lexicon[i] for i in batch.inputs[b]]
        yield words, *parse(words), batch, b


@pytest.mark.parametrize("cfg", CONFIGS)
def test_labels_agree_with_the_parser(cfg):
    for words, nouns, verb, batch, b in rows(cfg, 7, 64):
        subject = nouns[0]
        assert number(words[verb]) == number(words[subject])
        assert np.flatnonzero(batch.loss_mask[b, :, 0]).tolist() == [verb - 1]
        assert batch.targets[b, verb - 1, 0] == number(words[subject])
        assert batch.pointers["subject"][b, verb - 1] == subject
        assert (np.delete(batch.pointers["subject"][b], verb - 1) == -1).all()
        assert 1 <= len(nouns) - 1 <= cfg.max_attractors
        gaps = np.diff([-2, *nouns]) - 2  # adjectives before each noun
        assert set(gaps) <= set(range(cfg.max_adjectives + 1))


def test_counts_and_numbers_are_uniform_and_independent():
    counts, adjectives, agrees, numbers = [], [], [], []
    for words, nouns, _, _, _ in rows(CONFIGS[0], 8, 6000):
        counts.append(len(nouns) - 2)
        adjectives += list(np.diff([-2, *nouns]) - 2)
        of_nouns = [number(words[i]) for i in nouns]
        numbers.append(of_nouns[0])
        agrees += [other == of_nouns[0] for other in of_nouns[1:]]
    # Five standard deviations of each rate.
    for seen, classes in ((counts, 4), (adjectives, 3), (numbers, 2), (agrees, 2)):
        rates = np.bincount(seen, minlength=classes) / len(seen)
        assert len(rates) == classes
        p = 1 / classes
        np.testing.assert_allclose(rates, p, atol=5 * (p * (1 - p) / len(seen)) ** 0.5)


@pytest.mark.parametrize("cfg", CONFIGS)
def test_baselines_are_what_the_rules_reach(cfg):
    n = 4000
    nearest, most, at_offset = 0.0, 0.0, collections.Counter()
    for words, nouns, verb, batch, b in rows(cfg, 9, n):
        answer = batch.targets[b, verb - 1, 0]
        of_nouns = [number(words[i]) for i in nouns]
        nearest += of_nouns[-1] == answer
        right, wrong = of_nouns.count(answer), of_nouns.count(1 - answer)
        most += 0.5 if right == wrong else right > wrong
        for j in range(verb):
            word = words[verb - 1 - j]
            at_offset[j] += (number(word) == answer) - 0.5 if word.startswith("n") else 0
    found = agreement.baselines(cfg, 0, None)
    # Five standard deviations; the best of some twenty offsets is a little above its mean.
    error = 5 * 0.5 / n**0.5
    assert abs(found["last_noun"] - nearest / n) < error
    assert abs(found["majority"] - most / n) < error
    assert abs(found["fixed_offset"] - (0.5 + max(at_offset.values()) / n)) < error


def test_no_rule_without_a_subject_comes_near_the_answer():
    found = agreement.baselines(CONFIGS[0], 0, None)
    assert found.keys() == {"fixed_offset", "last_noun", "majority"}
    assert max(found.values()) < 0.8


def test_spec():
    spec = agreement.spec(CONFIGS[0])
    assert (spec.length, spec.input_sizes, spec.output_size) == (20, (64 + 8 + 4 + 3 + 1,), 2)
    assert spec.mask == "causal"
    assert len(spec.vocab) == 80
    assert spec.vocab[1] == "n0.pl"
    assert spec.vocab[-1] == "."

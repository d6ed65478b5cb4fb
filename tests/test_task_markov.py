"""`markov` against the exact probability of every chain, and add-one counts in plain Python."""

import itertools
import math
from collections import Counter

import jax
import numpy as np
import pytest

from mha_jax import loss
from mha_jax.tasks import markov

sample = jax.jit(markov.sample, static_argnums=(2, 3))

CONFIGS = [markov.Config(64, 4), markov.Config(2, 2), markov.Config(20, 7)]


def chains(batch):
    """[b, length + 1]: the inputs and the last target."""
    return np.concatenate([batch.inputs, batch.targets[:, -1]], axis=1).tolist()


def probability(chain, vocab):
    """Of a chain whose rows are Dirichlet(1): prod_i (v-1)! prod_j n_ij! / (v-1+n_i)!, over v."""
    out = 1 / vocab
    for i in range(vocab):
        followed = Counter(b for a, b in itertools.pairwise(chain) if a == i)
        out *= math.factorial(vocab - 1) * math.prod(map(math.factorial, followed.values()))
        out /= math.factorial(vocab - 1 + followed.total())
    return out


def bits(chain, vocab):
    """Mean loss over the chain of add-one counts: (bigram, unigram)."""
    pairs, seen = Counter(), Counter()  # with -1 for "whatever follows"
    bigram = unigram = 0.0
    for t, (here, to) in enumerate(itertools.pairwise(chain), start=1):
        seen[here] += 1
        bigram -= math.log2((1 + pairs[here, to]) / (vocab + pairs[here, -1]))
        unigram -= math.log2((1 + seen[to]) / (vocab + t))
        pairs[here, to] += 1
        pairs[here, -1] += 1
    return bigram / (len(chain) - 1), unigram / (len(chain) - 1)


@pytest.mark.parametrize("cfg", CONFIGS)
def test_targets_follow_and_pointers_are_found_again(cfg):
    batch = jax.tree.map(np.asarray, sample(jax.random.key(7), {}, cfg, 24))
    assert (batch.loss_mask == 1).all()
    for b in range(24):
        tokens, targets = batch.inputs[b].tolist(), batch.targets[b, :, 0].tolist()
        assert tokens[1:] == targets[:-1]
        for t, token in enumerate(tokens):
            before = [s for s in range(t) if tokens[s] == token]
            assert batch.pointers["previous"][b, t] == t - 1
            assert batch.pointers["induction"][b, t] == (before[-1] + 1 if before else -1)


@pytest.mark.parametrize("vocab, length", [(2, 4), (3, 3)])
def test_every_chain_is_as_likely_as_its_matrix_makes_it(vocab, length):
    n = 40000
    batch = jax.tree.map(np.asarray, sample(jax.random.key(8), {}, markov.Config(length, vocab), n))
    found = Counter(map(tuple, chains(batch)))
    total = 0.0
    for chain in itertools.product(range(vocab), repeat=length + 1):
        p = probability(chain, vocab)
        total += p
        assert abs(found[chain] - n * p) < 5 * (n * p) ** 0.5
    assert total == pytest.approx(1)


@pytest.mark.parametrize("vocab, length", [(2, 4), (3, 3), (2, 7)])
def test_bayes_losses_are_those_of_all_chains(vocab, length):
    bigram = unigram = 0.0
    for chain in itertools.product(range(vocab), repeat=length + 1):
        p, (b, u) = probability(chain, vocab), bits(chain, vocab)
        bigram, unigram = bigram + p * b, unigram + p * u
    cfg = markov.Config(length, vocab)
    # The Bayes predictor's loss is the entropy of the chain, less that of its first symbol.
    entropy = sum(
        -probability(chain, vocab) * math.log2(probability(chain, vocab))
        for chain in itertools.product(range(vocab), repeat=length + 1)
    )
    assert bigram == pytest.approx((entropy - math.log2(vocab)) / length)
    # 4,096 chains, each off by .15 at most: four standard errors.
    found = markov.baselines(cfg, 0, None)
    assert found["bigram_bayes"] == pytest.approx(bigram, abs=0.01)
    assert found["unigram_bayes"] == pytest.approx(unigram, abs=0.01)


def test_bayes_losses_are_those_of_add_one_counts_on_drawn_chains():
    cfg = CONFIGS[0]
    batch = jax.tree.map(np.asarray, sample(jax.random.key(9), {}, cfg, 800))
    losses = np.array([bits(chain, 4) for chain in chains(batch)])
    error = losses.std(0) / 800**0.5
    found = markov.baselines(cfg, 0, None)
    assert abs(losses[:, 0].mean() - found["bigram_bayes"]) < 4 * error[0]
    assert abs(losses[:, 1].mean() - found["unigram_bayes"]) < 4 * error[1]
    assert error.max() < 0.01 < 0.1 < found["unigram_bayes"] - found["bigram_bayes"]


def test_ceiling_is_the_bigram_loss_between_zero_and_chance():
    for cfg in CONFIGS:
        bound = markov.ceiling(cfg, 3, None)
        assert bound == markov.baselines(cfg, 5, None)["bigram_bayes"]
        assert 0 < bound < markov.spec(cfg).chance


def test_bits_per_token_of_the_bayes_predictor_is_the_ceiling():
    """Through the metric that a model is measured by."""
    cfg = CONFIGS[0]
    batch = sample(jax.random.key(10), {}, cfg, 512)
    tokens = np.asarray(batch.inputs)
    logits = np.zeros((512, 64, 1, 4), np.float32)
    for t in range(64):
        pair = (tokens[:, :t] == tokens[:, t : t + 1])[..., None] & (
            tokens[:, 1 : t + 1, None] == np.arange(4)
        )
        logits[:, t, 0] = np.log(1 + pair.sum(1))
    spec = markov.spec(cfg)
    found = loss.metrics(loss.sums(logits, batch, spec), spec)
    assert found["bits_per_token"] == pytest.approx(found["loss"] / math.log(2))
    # 512 chains: .008 is a standard error.
    assert found["bits_per_token"] == pytest.approx(markov.ceiling(cfg, 0, None), abs=0.03)


def test_spec():
    spec = markov.spec(CONFIGS[0])
    assert (spec.metric, spec.direction, spec.chance) == ("bits_per_token", "min", 2.0)
    assert spec.solved_at is None
    assert spec.autoregressive

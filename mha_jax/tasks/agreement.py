"""Subject-verb agreement: the verb has the number of its subject, whatever nouns stand between.

    sentence = noun phrase (preposition, noun phrase)+ verb     noun phrase = adjective* noun

Up to two attractors (nouns between subject and verb), up to one adjective a noun ("." fills the
row up, - is not asked):

    position    0     1     2     3     4     5     6
    input      old  keys   of   door  open    .     .
    target      -     -     -   plur.   -     -     -      number of the verb that comes next
    subject     -     -     -     1     -     -     -      where its subject stands

Heads needed: one, on the earliest noun. The number of each noun is drawn independently, so an
attractor disagrees with the subject half of the time. There are 1 to max_attractors of them, and 0
to max_adjectives before a noun, each count equally likely, so the subject stands at no fixed place,
neither from the start nor from the verb. Only nouns and the verb show a number, and the causal mask
hides the verb. `baselines` has what rules without a subject reach. Attractors as a test of syntax:
Linzen, Dupoux and Goldberg 2016 (arXiv:1611.01368); a rule judged against the best fixed offset:
Clark et al. 2019 (arXiv:1906.04341).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from mha_jax.config import ModelSpec
from mha_jax.tasks import Batch, TaskSpec, bounds

NUMBERS = ("singular", "plural")


@dataclasses.dataclass(frozen=True)
class Config:
    """Sizes of the grammar and of its lexicon."""

    max_attractors: int
    max_adjectives: int
    n_nouns: int
    n_verbs: int
    n_adjectives: int
    n_prepositions: int


def problems(cfg: Config) -> Iterator[tuple[str, str, str]]:
    """Fields out of range."""
    yield from bounds.outside(
        cfg,
        max_attractors=(1, 128),
        max_adjectives=(0, 16),
        n_nouns=(1, 4096),
        n_verbs=(1, 4096),
        n_adjectives=(1, 4096),
        n_prepositions=(1, 4096),
    )


def lexicon(cfg: Config) -> tuple[str, ...]:
    """All words by id: nouns and verbs (singular, then plural, of each), adjectives, prepositions
    and the stop."""
    return (
        *(f"n{i}.{number}" for i in range(cfg.n_nouns) for number in ("sg", "pl")),
        *(f"v{i}.{number}" for i in range(cfg.n_verbs) for number in ("sg", "pl")),
        *(f"a{i}" for i in range(cfg.n_adjectives)),
        *(f"p{i}" for i in range(cfg.n_prepositions)),
        ".",
    )


def spec(cfg: Config) -> TaskSpec:
    """The length is that of the longest sentence. Chance: either number."""
    words = lexicon(cfg)
    return TaskSpec(
        inputs="tokens",
        input_sizes=(len(words),),
        length=_n_slots(cfg),
        mask="causal",
        outputs=("number",),
        output_size=len(NUMBERS),
        kind="class",
        metric="accuracy",
        direction="max",
        chance=0.5,
        solved_at=0.99,
        roles=("subject",),
        vocab=words,
        classes=tuple("nvap.".index(word[0]) for word in words),
        delimiters=(len(words) - 1,),
    )


def baselines(cfg: Config, seed: int, model: ModelSpec) -> dict[str, float]:
    """What rules without a subject reach, by the probabilities of the grammar.

    `fixed_offset`: the number of the noun at the best fixed distance from the verb, a coin where no
    noun stands there. `last_noun`: of the noun nearest to the verb, an attractor. `majority`: of
    most nouns of the sentence, a coin where they are equal in number. An attractor is right half of
    the time, so a rule that names the subject with probability p is right with (1 + p) / 2.
    """
    del seed, model
    counts = range(1, cfg.max_attractors + 1)
    step = np.ones(cfg.max_adjectives + 1) / (cfg.max_adjectives + 1)  # adjectives of an attractor
    distances = np.zeros(_n_slots(cfg))  # between subject and the position before the verb
    passed = np.ones(1)  # adjectives of all attractors
    for k in counts:
        passed = np.convolve(passed, step)
        distances[2 * k : 2 * k + len(passed)] += passed / len(counts)
    majority = 0.0
    for k in counts:
        # The subject and more than (k - 1) / 2 of k attractors are most of the k + 1 nouns.
        agree = sum(math.comb(k, i) for i in range(k + 1) if 2 * (i + 1) > k + 1)
        equal = math.comb(k, (k - 1) // 2) if k % 2 else 0
        majority += (agree + equal / 2) / 2**k / len(counts)
    return {
        "fixed_offset": float(1 + distances.max()) / 2,
        "last_noun": 0.5,
        "majority": majority,
    }


def _n_slots(cfg: Config) -> int:
    """Words of the longest sentence: a preposition, adjectives and a noun for every noun, and the
    verb in the place of the preposition that the subject lacks."""
    return (cfg.max_attractors + 1) * (cfg.max_adjectives + 2)


def sample(key: Any, constants: dict[str, Any], cfg: Config, n: int) -> Batch:
    """Draw the longest sentence, then leave out what the drawn counts do not reach."""
    import jax.numpy as jnp

    from mha_jax.tasks import draw

    del constants
    nouns, adjectives, length = cfg.max_attractors + 1, cfg.max_adjectives, _n_slots(cfg)
    attractor_bits, adjective_bits, verb_bits, noun_bits, adj_bits, prep_bits = draw.columns(
        key, n, 1, nouns, 1, nouns, nouns * adjectives, nouns
    )
    first_verb = 2 * cfg.n_nouns
    first_adjective = first_verb + 2 * cfg.n_verbs
    first_preposition = first_adjective + cfg.n_adjectives
    stop = first_preposition + cfg.n_prepositions

    noun_bp = draw.integers(noun_bits, 2 * cfg.n_nouns)
    number_b1 = noun_bp[:, :1] % 2
    verb_b1 = first_verb + 2 * draw.integers(verb_bits, cfg.n_verbs) + number_b1
    prep_bp = first_preposition + draw.integers(prep_bits, cfg.n_prepositions)
    adj_bpa = first_adjective + draw.integers(adj_bits, cfg.n_adjectives).reshape(n, nouns, -1)
    # Phrases p: preposition, adjectives, noun; the subject's, the first, has no preposition.
    words = jnp.concatenate([prep_bp[..., None], adj_bpa, noun_bp[..., None]], axis=2)
    phrase = jnp.arange(nouns, dtype=jnp.int32)
    said_bp = phrase[None, :] <= 1 + draw.integers(attractor_bits, cfg.max_attractors)
    n_adj_bp = draw.integers(adjective_bits, adjectives + 1)
    adj_said = jnp.arange(adjectives, dtype=jnp.int32)[None, None, :] < n_adj_bp[..., None]
    prep_said = jnp.broadcast_to(phrase > 0, (n, nouns))[..., None]
    noun_said = jnp.ones((n, nouns, 1), bool)
    said = jnp.concatenate([prep_said, adj_said, noun_said], axis=2) & said_bp[..., None]

    # Slots s of the longest sentence, without the subject's preposition and with the verb.
    word_bs = jnp.concatenate([words.reshape(n, -1)[:, 1:], verb_b1], axis=1)
    said_bs = jnp.concatenate([said.reshape(n, -1)[:, 1:], jnp.ones((n, 1), bool)], axis=1)
    place_bs = jnp.where(said_bs, jnp.cumsum(said_bs, axis=1, dtype=jnp.int32) - 1, length)
    position = jnp.arange(length, dtype=jnp.int32)
    here_bts = place_bs[:, None, :] == position[None, :, None]
    tokens = jnp.where(here_bts, word_bs[:, None, :], 0).sum(axis=-1, dtype=jnp.int32)
    asked_bt = position[None, :] == place_bs[:, -1:] - 1
    return Batch(
        inputs=jnp.where(here_bts.any(axis=-1), tokens, stop),
        targets=jnp.where(asked_bt, number_b1, 0)[..., None],
        loss_mask=asked_bt.astype(jnp.float32)[..., None],
        pointers={"subject": jnp.where(asked_bt, n_adj_bp[:, :1], -1)},
    )

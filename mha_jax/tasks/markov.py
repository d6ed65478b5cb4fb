"""In-context bigrams: every sequence is a Markov chain of its own, to be learned while it is read.

    position    0  1  2  3  4  5  6  7
    input       b  a  b  a  a  b  c  b
    target      a  b  a  a  b  c  b  a      the next symbol, always asked
    previous    .  0  1  2  3  4  5  6
    induction   .  .  1  2  4  3  .  6      what followed the last earlier occurrence

Each row of a sequence's transition matrix is drawn from Dirichlet(1), the first symbol is uniform
(Edelman et al. 2024, arXiv:2402.11004). What can be known is then known: the best prediction after
symbol i is (1 + times j followed i) / (vocab + times i was followed), and its loss is `ceiling`.

Heads needed: one in each of two layers, a previous-token head and one that looks at *all* that
followed earlier occurrences (so its mass on the last of them, `induction`, is below 1). In the
paper training first comes to the shares of the symbols so far, `unigram_bayes`, which one layer can
count, and then drops to bigrams. Before a sequence is read all symbols are alike at all positions,
so whatever is better than chance was read. Two layers of two heads were seen .007 bits above the
ceiling with an MLP and .012 without.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from mha_jax.config import ModelSpec
from mha_jax.tasks import Batch, TaskSpec, bounds


@dataclasses.dataclass(frozen=True)
class Config:
    """Sizes of the task."""

    length: int
    vocab: int


def problems(cfg: Config) -> Iterator[tuple[str, str, str]]:
    """Fields out of range."""
    yield from bounds.outside(cfg, length=(2, 8192), vocab=(2, 256))


def spec(cfg: Config) -> TaskSpec:
    """Chance: every symbol is equally likely."""
    return TaskSpec(
        inputs="tokens",
        input_sizes=(cfg.vocab,),
        length=cfg.length,
        mask="causal",
        outputs=("symbol",),
        output_size=cfg.vocab,
        kind="class",
        metric="bits_per_token",
        direction="min",
        chance=math.log2(cfg.vocab),
        solved_at=None,
        roles=("previous", "induction"),
        autoregressive=True,
        vocab=tuple(map(str, range(cfg.vocab))),
    )


def sample(key: Any, constants: dict[str, Any], cfg: Config, n: int) -> Batch:
    """Draw n transition matrices and a chain of length + 1 from each."""
    import jax
    import jax.numpy as jnp

    from mha_jax.tasks import draw

    del constants
    length, vocab = cfg.length, cfg.vocab
    row_bits, first_bits, step_bits = draw.columns(key, n, vocab * vocab, 1, length)
    # Exponential numbers over their sum are Dirichlet(1). The next symbol is found by inversion for
    # every symbol that the chain may be at, so that the sequential part is one look-up a step.
    edges_bij = jnp.cumsum(draw.exponential(row_bits).reshape(n, vocab, vocab), axis=-1)
    edges_bij = edges_bij / edges_bij[..., -1:]
    passed_btij = edges_bij[:, None, :, :-1] <= draw.uniform(step_bits)[..., None, None]
    next_bti = jnp.sum(passed_btij, axis=-1, dtype=jnp.int32)

    def step(at_b1: Any, next_bi: Any) -> tuple[Any, Any]:
        to_b1 = jnp.take_along_axis(next_bi, at_b1, axis=1)
        return to_b1, to_b1[:, 0]

    first_b1 = draw.integers(first_bits, vocab)
    _, rest_tb = jax.lax.scan(step, first_b1, jnp.moveaxis(next_bti, 1, 0))
    tokens = jnp.concatenate([first_b1, rest_tb.T], axis=1)

    inputs = tokens[:, :-1]
    position = jnp.arange(length, dtype=jnp.int32)
    earlier_ts = position[None, :] < position[:, None]
    same_bts = (inputs[:, :, None] == inputs[:, None, :]) & earlier_ts[None]
    last_bt = jnp.max(jnp.where(same_bts, position[None, None, :], -1), axis=-1)
    return Batch(
        inputs=inputs,
        targets=tokens[:, 1:, None],
        loss_mask=jnp.ones((n, length, 1)),
        pointers={
            "previous": jnp.broadcast_to(position - 1, (n, length)),
            "induction": jnp.where(last_bt >= 0, last_bt + 1, -1),
        },
    )


def ceiling(cfg: Config, seed: int, model: ModelSpec) -> float:
    """The Bayes loss, bits a token: no predictor that knows only the sequence so far is below it.

    A Monte Carlo estimate, see `_bayes`; a trained model is measured on another draw.
    """
    del seed, model
    return _bayes(cfg)["bigram_bayes"]


def baselines(cfg: Config, seed: int, model: ModelSpec) -> dict[str, float]:
    """bigram_bayes: as `ceiling`. unigram_bayes: the loss, bits a token, of add-one counts of the
    symbols so far, the current one included."""
    del seed, model
    return dict(_bayes(cfg))


@functools.cache
def _bayes(cfg: Config) -> dict[str, float]:
    """Both losses, averaged over positions, by Monte Carlo of a fixed seed.

    With the matrix integrated out a chain is an urn: the next symbol has exactly the probabilities
    that the add-one counts predict. So symbols are drawn from the prediction, and in place of the
    loss on the symbol drawn its expectation is summed: an entropy for the bigrams, a cross entropy
    for the unigrams. The standard errors at the default sizes are .001.
    """
    n = min(max(2**20 // (cfg.length * cfg.vocab), 64), 4096)
    rng = np.random.default_rng(0)
    row = np.arange(n)
    followed_nij = np.ones((n, cfg.vocab, cfg.vocab))
    seen_ni = np.ones((n, cfg.vocab))
    at_n = rng.integers(cfg.vocab, size=n)
    bigram = unigram = 0.0
    for _ in range(cfg.length):
        seen_ni[row, at_n] += 1
        p_nj = followed_nij[row, at_n]
        p_nj /= p_nj.sum(-1, keepdims=True)
        bigram -= (p_nj * np.log2(p_nj)).sum()
        unigram -= (p_nj * np.log2(seen_ni / seen_ni.sum(-1, keepdims=True))).sum()
        to_n = (np.cumsum(p_nj[:, :-1], axis=-1) <= rng.uniform(size=(n, 1))).sum(-1)
        followed_nij[row, at_n, to_n] += 1
        at_n = to_n
    count = n * cfg.length
    return {"unigram_bayes": float(unigram / count), "bigram_bayes": float(bigram / count)}

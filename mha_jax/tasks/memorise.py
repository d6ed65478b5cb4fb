"""Memorise: how many random queries can one attention layer learn by heart?

n = 3 context vectors, the same in every sequence; N queries with random labels. One example (- is
not asked):

    position   0   1   2   3
    input      x0  x1  x2  q7      q7 is the query of example 7
    target     -   -   -   5       and 5 its label

All vectors are N(0, I) and, with the labels, fixed by task.seed. There is nothing to generalise to:
train, validation and test are the same set, and the metric is the share of it that the model fits.
A sweep over n_examples gives the capacity, the largest set that is fitted, against the number of
heads: of 512 examples 1, 2 and 4 heads fitted .76, .93 and all in 3,000 steps of the base setting.

Heads needed: in proportion to the examples. One layer of H heads of width d_h memorises at least of
the order of H * min(n, d_h) of them, and widening a head beyond n does not help (Mahdavi, Liao and
Thrampoulidis 2024, arXiv:2306.02010, whose experiments also share the context). Meant for one layer
without residual and MLP and a fixed `model.d_head`: the query sees the context only, so what the
read-out gets depends on it through the attention weights alone. A context of its own for each
example would give it away without them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np

from mha_jax.tasks import Batch, TaskSpec, bounds


@dataclasses.dataclass(frozen=True)
class Config:
    """Sizes of the task."""

    n_examples: int
    n_context: int
    n_channels: int
    n_classes: int


def problems(cfg: Config) -> Iterator[tuple[str, str, str]]:
    """Fields out of range, and more classes than examples."""
    yield from bounds.outside(
        cfg, n_examples=(2, 2**20), n_context=(2, 4096), n_channels=(1, 512), n_classes=(2, 4096)
    )
    if cfg.n_classes > cfg.n_examples:
        yield (
            "n_classes",
            f"must not exceed n_examples={cfg.n_examples}, every label is used",
            f"use {cfg.n_examples} or less, or raise n_examples",
        )


def spec(cfg: Config) -> TaskSpec:
    """The query, last, sees the context and not itself. Chance: the label of most examples."""
    return TaskSpec(
        inputs="vectors",
        input_sizes=(cfg.n_channels,),
        length=cfg.n_context + 1,
        mask="context_query",
        n_context=cfg.n_context,
        outputs=("label",),
        output_size=cfg.n_classes,
        kind="class",
        metric="accuracy",
        direction="max",
        chance=-(-cfg.n_examples // cfg.n_classes) / cfg.n_examples,
        solved_at=0.99,
        roles=(),
    )


def constants(cfg: Config, seed: int, split: str) -> dict[str, Any]:
    """The same for every split.

    context: float32 [n_context, n_channels]. queries: float32 [n_examples, n_channels]. labels:
    int32 [n_examples], in random order; their counts differ by one at most.
    """
    del split
    rng = np.random.default_rng(seed)
    return {
        "context": rng.standard_normal((cfg.n_context, cfg.n_channels)).astype(np.float32),
        "queries": rng.standard_normal((cfg.n_examples, cfg.n_channels)).astype(np.float32),
        "labels": rng.permutation(np.arange(cfg.n_examples, dtype=np.int32) % cfg.n_classes),
    }


def sample(key: Any, constants: dict[str, Any], cfg: Config, n: int) -> Batch:
    """Draw n examples, with replacement."""
    import jax.numpy as jnp

    from mha_jax.tasks import draw

    (bits,) = draw.columns(key, n, 1)
    example_b1 = draw.integers(bits, cfg.n_examples)
    query_b1c = jnp.take(constants["queries"], example_b1, axis=0)
    label_b1 = jnp.take(constants["labels"], example_b1)
    context_bsc = jnp.broadcast_to(constants["context"], (n, cfg.n_context, cfg.n_channels))
    before = ((0, 0), (cfg.n_context, 0))  # the rows before the query
    return Batch(
        inputs=jnp.concatenate([context_bsc, query_b1c], axis=1),
        targets=jnp.pad(label_b1, before)[..., None],
        loss_mask=jnp.pad(jnp.ones((n, 1)), before)[..., None],
        pointers={},
    )

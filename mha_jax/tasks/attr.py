"""Multi-attribute lookup: one head per pointer, and a shared key that must hold all attributes.

N items, each one token with A attributes (different from item to item within a sequence) and a
value; then Q query tokens. A query names one attribute value of each kind, of items chosen
independently, and must give their A values.

N = 3 items, A = 2 attributes, Q = 2 queries (? is the value id "none", . is not asked):

    position       0  1  2 | 3   4
    attribute 0    5  2  7 | 7'  5'
    attribute 1    1  6  3 | 6'  3'
    value          4  9  8 | ?   ?

    attr0          .  .  . | 8   4      of the items with attribute 0 = 7 and 5: items 2 and 0
    attr1          .  .  . | 9   8      of the items with attribute 1 = 6 and 3: items 1 and 2

A query's attribute has ids of its own (the primed ones, shifted by attribute_vocab), so that a
single layer without a residual can tell a query from an item by its embedding alone.

Heads needed: A, since one attention pattern gives one mixture of values and A pointers are
independent. All pointers address the same tokens by different features, so the stacked logits of
all heads have rank <= n_kv_heads * d_head: few kv heads cost quality once that is small. A
multi-query relative of associative recall (Arora et al. 2023, arXiv:2312.04927); the cliffs are
measured, not proved, and need enough steps (5,000) and a good learning rate.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from mha_jax.tasks import Batch, TaskSpec, bounds


@dataclasses.dataclass(frozen=True)
class Config:
    """Sizes of the task."""

    n_items: int
    n_attributes: int
    attribute_vocab: int
    n_values: int
    n_queries: int


def problems(cfg: Config) -> Iterator[tuple[str, str, str]]:
    """Fields out of range, and too few attribute values to give every item its own."""
    yield from bounds.outside(
        cfg,
        n_items=(1, 4096),
        n_attributes=(1, 64),
        attribute_vocab=(1, 4096),
        n_values=(2, 4096),
        n_queries=(1, 4096),
    )
    if cfg.attribute_vocab < cfg.n_items:
        yield (
            "attribute_vocab",
            f"must be at least n_items={cfg.n_items}, an attribute differs from item to item",
            f"use {cfg.n_items} or more, or lower n_items",
        )


def spec(cfg: Config) -> TaskSpec:
    """Inputs are A attribute fields, with ids of items and then of queries, and a value field.

    The last id of the value field is "none", the value of a query.
    """
    outputs = tuple(f"attr{a}" for a in range(cfg.n_attributes))
    return TaskSpec(
        inputs="fields",
        input_sizes=(2 * cfg.attribute_vocab,) * cfg.n_attributes + (cfg.n_values + 1,),
        length=cfg.n_items + cfg.n_queries,
        mask="context_query",
        n_context=cfg.n_items,
        outputs=outputs,
        output_size=cfg.n_values,
        kind="class",
        metric="accuracy",
        direction="max",
        chance=1 / cfg.n_values,
        solved_at=0.99,
        roles=outputs,
    )


def sample(key: Any, constants: dict[str, Any], cfg: Config, n: int) -> Batch:
    """Draw n sets of items and their queries; a pointer is the position of the named item."""
    import jax.numpy as jnp

    from mha_jax.tasks import draw

    del constants
    items, queries, attributes = cfg.n_items, cfg.n_queries, cfg.n_attributes
    code_bits, value_bits, pick_bits = draw.columns(
        key, n, attributes * cfg.attribute_vocab, items, queries * attributes
    )
    # The first entries of a random permutation of the vocabulary: no two items share one.
    codes = draw.ranks(code_bits.reshape(n, attributes, cfg.attribute_vocab), items)
    values = draw.integers(value_bits, cfg.n_values)
    picks = draw.integers(pick_bits, items).reshape(n, attributes, queries)
    named = jnp.take_along_axis(codes, picks, axis=2) + cfg.attribute_vocab
    answers = jnp.take_along_axis(values, picks.reshape(n, -1), axis=1).reshape(picks.shape)

    def after_items(fill: int, x_baq: Any) -> Any:
        """[b, a, q] of the queries -> [b, a, t] with `fill` at the items."""
        return jnp.pad(x_baq, ((0, 0), (0, 0), (items, 0)), constant_values=fill)

    fields_bat = jnp.concatenate([codes, named], axis=2)
    value_bt = jnp.pad(values, ((0, 0), (0, queries)), constant_values=cfg.n_values)
    pointers_bat = after_items(-1, picks)
    return Batch(
        inputs=jnp.moveaxis(jnp.concatenate([fields_bat, value_bt[:, None]], axis=1), 1, 2),
        targets=jnp.moveaxis(after_items(0, answers), 1, 2),
        loss_mask=jnp.moveaxis((pointers_bat >= 0).astype(jnp.float32), 1, 2),
        pointers={f"attr{a}": pointers_bat[:, a] for a in range(attributes)},
    )

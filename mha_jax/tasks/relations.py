"""Four relations at once: the idea of multi-head attention as a task.

A sentence draws `classes_per_sentence` word classes, two words of each and each word twice, adds
one delimiter and shuffles. Every position also carries a random value. Asked at every position:
the value that stands at the previous position, at the first token of the *other* word of the same
class, at the other copy of the same word, and at the delimiter. Gaps are random, so no fixed
offset answers the last three.

One class per sentence (words 3.0 and 3.2 are of class 3, | is the delimiter, . is not asked):

    position     0    1    2    3    4
    word       3.2    | 3.0  3.2  3.0
    value        7    1    4    9    2

    prev         .    7    1    4    9
    class        4    .    7    4    7
    word         9    .    2    7    4
    delimiter    1    1    1    1    1

Heads needed: one a relation. A linear read-out of one softmax mixture of values can name only its
heaviest value, so a single head answers one relation, or two by mixing them at distinct weights.
All four come with four heads, whatever the number of kv heads, as long as n_kv_heads * d_head
leaves room for the keys and values. An observation on small models, not a theorem. Meant for one
layer with learned positions and no residual; the mask is full.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from mha_jax.tasks import Batch, TaskSpec, bounds

ROLES = ("prev", "class", "word", "delimiter")


@dataclasses.dataclass(frozen=True)
class Config:
    """Sizes of the task."""

    n_classes: int
    words_per_class: int
    classes_per_sentence: int
    n_values: int


def problems(cfg: Config) -> Iterator[tuple[str, str, str]]:
    """Fields out of range, and more classes in a sentence than there are."""
    yield from bounds.outside(
        cfg,
        n_classes=(1, 4096),
        words_per_class=(2, 4096),
        classes_per_sentence=(1, 256),
        n_values=(2, 4096),
    )
    if cfg.classes_per_sentence > cfg.n_classes:
        yield (
            "classes_per_sentence",
            f"must not exceed n_classes={cfg.n_classes}, a sentence draws different classes",
            f"use {cfg.n_classes} or less, or raise n_classes",
        )


def spec(cfg: Config) -> TaskSpec:
    """Inputs are two fields: word id (the delimiter is the last one) and value."""
    words = [f"{c}.{w}" for c in range(cfg.n_classes) for w in range(cfg.words_per_class)]
    return TaskSpec(
        inputs="fields",
        input_sizes=(len(words) + 1, cfg.n_values),
        length=4 * cfg.classes_per_sentence + 1,
        mask="full",
        outputs=ROLES,
        output_size=cfg.n_values,
        kind="class",
        metric="accuracy",
        direction="max",
        chance=1 / cfg.n_values,
        solved_at=0.99,
        roles=ROLES,
        vocab=(*words, "|"),
    )


def sample(key: Any, constants: dict[str, Any], cfg: Config, n: int) -> Batch:
    """Draw n sentences; the pointers are the positions whose value is asked for."""
    import jax.numpy as jnp

    from mha_jax.tasks import draw

    del constants
    n_words = 2 * cfg.classes_per_sentence  # different words of a sentence
    length = 2 * n_words + 1
    class_bits, word_bits, step_bits, order_bits, value_bits = draw.columns(
        key, n, cfg.n_classes, n_words // 2, n_words // 2, length, length
    )
    classes = draw.ranks(class_bits, n_words // 2)
    word = draw.integers(word_bits, cfg.words_per_class)
    other = (word + 1 + draw.integers(step_bits, cfg.words_per_class - 1)) % cfg.words_per_class
    ids = cfg.words_per_class * classes[..., None] + jnp.stack([word, other], axis=-1)
    delimiter = jnp.full((n, 1), cfg.n_classes * cfg.words_per_class, jnp.int32)
    ids = jnp.concatenate([ids.reshape(n, n_words), delimiter], axis=1)

    # Before the shuffle slots 2i and 2i+1 hold word i, words 2c and 2c+1 are of one class, and the
    # last slot, an even one, holds the delimiter. A partner is one bit away; the delimiter's, in
    # either sense, does not exist.
    slot_bt = draw.ranks(order_bits)
    word_bt = slot_bt // 2
    values_bt = draw.integers(value_bits, cfg.n_values)
    position = jnp.arange(length, dtype=jnp.int32)

    def first(found_bts: Any) -> Any:
        """The first position s that is found, -1 if none is."""
        earliest = jnp.min(jnp.where(found_bts, position[None, None, :], length), axis=-1)
        return jnp.where(earliest < length, earliest, -1)

    pointers = {
        "prev": jnp.broadcast_to(position - 1, (n, length)),
        "class": first(word_bt[:, None, :] == (word_bt ^ 1)[:, :, None]),
        "word": first(slot_bt[:, None, :] == (slot_bt ^ 1)[:, :, None]),
        "delimiter": jnp.broadcast_to(first((slot_bt == 2 * n_words)[:, None, :]), (n, length)),
    }
    pointer_bto = jnp.stack([pointers[role] for role in ROLES], axis=-1)
    asked_bto = pointer_bto >= 0
    flat = jnp.maximum(pointer_bto, 0).reshape(n, -1)
    targets = jnp.take_along_axis(values_bt, flat, axis=1).reshape(pointer_bto.shape)
    return Batch(
        inputs=jnp.stack([jnp.take_along_axis(ids, word_bt, axis=1), values_bt], axis=-1),
        targets=jnp.where(asked_bto, targets, 0),
        loss_mask=asked_bto.astype(jnp.float32),
        pointers=pointers,
    )

"""Several relations at once: the idea of multi-head attention as a task.

A sentence draws `classes_per_sentence` word classes, two words of each and each word twice, adds
one delimiter and `n_distractors` single words of further classes, and shuffles. Every position also
carries a random value. Asked at every position, for each of the `relations`: the value that stands

    prev         at the previous position
    class        at the first token of the *other* word of the same class
    word         at the other copy of the same word
    delimiter    at the delimiter
    next         at the next position
    class_last   at the last token of the other word of the same class
    rhyme        at the first token of a word of another class with the same number in its class
    rhyme_last   at the last such token

Where there is no such position nothing is asked; with `causal` neither where it is not an earlier
one. One class per sentence (words 3.0 and 3.2 are of class 3, | is the delimiter, . is not asked):

    position     0    1    2    3    4
    word       3.2    | 3.0  3.2  3.0
    value        7    1    4    9    2

    prev         .    7    1    4    9
    class        4    .    7    4    7
    word         9    .    2    7    4
    delimiter    1    1    1    1    1

Heads needed: one a relation. A linear read-out of one softmax mixture of values can name only its
heaviest value, so a single head answers one relation, or two by mixing them at distinct weights.
All come with as many heads, whatever the number of kv heads, as long as n_kv_heads * d_head leaves
room for the keys and values. An observation on small models, not a theorem, and made for up to five
relations: six and eight were seen at .98 and .96 to .99 with as many heads of width 16. Meant for
one layer with learned positions and no residual.

Why these eight: two of them ask for the same position by chance only, and gaps are random, so
fixed offsets answer `prev` and `next` alone. There is one marker only, since a head can answer a
marker beside something else (one head, asked for `prev` and `delimiter`, was seen at 1.00 and .98):
the weight of a word that is the same in every sentence can be read off linearly, and can be made to
depend on the value there.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from mha_jax.tasks import Batch, TaskSpec, bounds
from mha_jax.values import nearest

RELATIONS = ("prev", "class", "word", "delimiter", "next", "class_last", "rhyme", "rhyme_last")


@dataclasses.dataclass(frozen=True)
class Config:
    """Sizes of the task, and what is asked."""

    n_classes: int
    words_per_class: int
    classes_per_sentence: int
    n_values: int
    relations: str
    causal: bool
    n_distractors: int

    @property
    def asked(self) -> tuple[str, ...]:
        """The names in `relations`, in their order."""
        return tuple(name.strip() for name in self.relations.split(","))


def problems(cfg: Config) -> Iterator[tuple[str, str, str]]:
    """Fields out of range, more classes in a sentence than there are, and what cannot be asked."""
    yield from bounds.outside(
        cfg,
        n_classes=(1, 4096),
        words_per_class=(2, 4096),
        classes_per_sentence=(1, 256),
        n_values=(2, 4096),
        n_distractors=(0, 1024),
    )
    if cfg.classes_per_sentence > cfg.n_classes:
        yield (
            "classes_per_sentence",
            f"must not exceed n_classes={cfg.n_classes}, a sentence draws different classes",
            f"use {cfg.n_classes} or less, or raise n_classes",
        )
    elif cfg.n_distractors > cfg.n_classes - cfg.classes_per_sentence:
        rest = cfg.n_classes - cfg.classes_per_sentence
        yield (
            "n_distractors",
            f"must not exceed the {rest} classes that a sentence leaves over, each is of its own",
            f"use {rest} or less, or raise n_classes",
        )
    yield from (("relations", rule, fix) for rule, fix in _not_to_be_asked(cfg))


def _not_to_be_asked(cfg: Config) -> Iterator[tuple[str, str]]:
    """Problems of the field `relations`: the rule it breaks, the fix."""
    names, all_names = cfg.asked, f"choose from {', '.join(RELATIONS)}"
    if not cfg.relations.strip():
        yield "must name at least one relation", all_names
        return
    for name in dict.fromkeys(names):
        if name not in RELATIONS:
            rule = f"names {name!a:.40}, which is no relation" if name else "has an empty name"
            yield rule, nearest(name, RELATIONS).removeprefix("; ") or all_names
        elif names.count(name) > 1:
            yield f"names {name!r} {names.count(name)} times", "name it once"
    if cfg.causal and "next" in names:
        yield "asks for 'next', which a causal mask hides", "drop it, or set causal=False"
    if cfg.classes_per_sentence + cfg.n_distractors < 2:
        for name in (name for name in ("rhyme", "rhyme_last") if name in names):
            fix = f"drop it, or raise classes_per_sentence={cfg.classes_per_sentence}"
            yield f"asks for {name!r}, and a sentence of one class has none", fix


def spec(cfg: Config) -> TaskSpec:
    """Inputs are two fields: word id (the delimiter is the last one) and value."""
    words = [f"{c}.{w}" for c in range(cfg.n_classes) for w in range(cfg.words_per_class)]
    return TaskSpec(
        inputs="fields",
        input_sizes=(len(words) + 1, cfg.n_values),
        length=4 * cfg.classes_per_sentence + 1 + cfg.n_distractors,
        mask="causal" if cfg.causal else "full",
        outputs=cfg.asked,
        output_size=cfg.n_values,
        kind="class",
        metric="accuracy",
        direction="max",
        chance=1 / cfg.n_values,
        solved_at=0.99,
        roles=cfg.asked,
        vocab=(*words, "|"),
        classes=(*(i // cfg.words_per_class for i in range(len(words))), cfg.n_classes),
        delimiters=(len(words),),
    )


def sample(key: Any, constants: dict[str, Any], cfg: Config, n: int) -> Batch:
    """Draw n sentences; the pointers are the positions whose value is asked for."""
    import jax.numpy as jnp

    from mha_jax.tasks import draw

    del constants
    doubled, singles = cfg.classes_per_sentence, cfg.n_distractors  # classes of two words, of one
    length = 4 * doubled + 1 + singles
    class_bits, word_bits, step_bits, order_bits, value_bits = draw.columns(
        key, n, cfg.n_classes, doubled + singles, doubled, length, length
    )
    classes = draw.ranks(class_bits, doubled + singles)
    word = draw.integers(word_bits, cfg.words_per_class)
    step = 1 + draw.integers(step_bits, cfg.words_per_class - 1)
    ids = cfg.words_per_class * classes + word
    others = cfg.words_per_class * classes[:, :doubled]
    others += (word[:, :doubled] + step) % cfg.words_per_class
    pairs = jnp.stack([ids[:, :doubled], others], axis=-1).reshape(n, 2 * doubled)
    delimiter = cfg.n_classes * cfg.words_per_class
    ordered = [jnp.repeat(pairs, 2, axis=1), jnp.full((n, 1), delimiter), ids[:, doubled:]]
    words_bt = jnp.take_along_axis(jnp.concatenate(ordered, axis=1), draw.ranks(order_bits), axis=1)
    values_bt = draw.integers(value_bits, cfg.n_values)
    pointer_bto = jnp.stack(_pointers(words_bt, cfg), axis=-1)
    asked_bto = pointer_bto >= 0
    flat = jnp.maximum(pointer_bto, 0).reshape(n, -1)
    targets = jnp.take_along_axis(values_bt, flat, axis=1).reshape(pointer_bto.shape)
    return Batch(
        inputs=jnp.stack([words_bt, values_bt], axis=-1),
        targets=jnp.where(asked_bto, targets, 0),
        loss_mask=asked_bto.astype(jnp.float32),
        pointers={role: pointer_bto[..., o] for o, role in enumerate(cfg.asked)},
    )


def _pointers(words_bt: Any, cfg: Config) -> list[Any]:
    """For each relation that is asked the position of its answer, int32 [b, t]; -1 without one."""
    import jax.numpy as jnp

    length = words_bt.shape[1]
    position_bt = jnp.broadcast_to(jnp.arange(length, dtype=jnp.int32), words_bt.shape)
    delimiter_bt = words_bt == cfg.n_classes * cfg.words_per_class
    # The delimiter is alone in its class, n_classes, and with its number.
    class_bt = words_bt // cfg.words_per_class
    number_bt = jnp.where(delimiter_bt, -1, words_bt % cfg.words_per_class)

    def same(x_bt: Any) -> Any:
        """Whether key s has what query t has, [b, t, s]."""
        return x_bt[:, :, None] == x_bt[:, None, :]

    def first(found_bts: Any) -> Any:
        earliest = jnp.min(jnp.where(found_bts, position_bt[:, None, :], length), axis=-1)
        return jnp.where(earliest < length, earliest, -1)

    def last(found_bts: Any) -> Any:
        return jnp.max(jnp.where(found_bts, position_bt[:, None, :], -1), axis=-1)

    classmate_bts = same(class_bt) & ~same(words_bt)
    rhyme_bts = same(number_bt) & ~same(class_bt)
    found = {
        "prev": position_bt - 1,
        "class": first(classmate_bts),
        "word": first(same(words_bt) & ~same(position_bt)),
        "delimiter": first(delimiter_bt[:, None, :]),
        "next": jnp.where(position_bt < length - 1, position_bt + 1, -1),
        "class_last": last(classmate_bts),
        "rhyme": first(rhyme_bts),
        "rhyme_last": last(rhyme_bts),
    }
    pointers = [jnp.broadcast_to(found[role], words_bt.shape) for role in cfg.asked]
    return [jnp.where(p < position_bt, p, -1) for p in pointers] if cfg.causal else pointers

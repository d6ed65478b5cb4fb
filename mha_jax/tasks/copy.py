"""Copy: symbols, a delimiter, the symbols again.

L = 4 (the answer is asked from the delimiter on):

    position   0  1  2  3  4  5  6  7
    input      c  a  a  d  |  c  a  a
    target     .  .  .  .  c  a  a  d
    source     .  .  .  .  0  1  2  3       where the answer stands

Heads needed: one, looking L positions back. A control: more heads do not help. The length is
fixed, so positions alone solve it and no induction head has to form. Symbols may repeat, so an
answer may stand at other positions too; `source` names the one that is copied.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from mha_jax.tasks import Batch, TaskSpec, bounds


@dataclasses.dataclass(frozen=True)
class Config:
    """Sizes of the task."""

    length: int
    vocab: int


def problems(cfg: Config) -> Iterator[tuple[str, str, str]]:
    """Fields out of range."""
    yield from bounds.outside(cfg, length=(1, 8192), vocab=(2, 65536))


def spec(cfg: Config) -> TaskSpec:
    """Tokens; the delimiter is the last of the vocabulary. Chance: any fixed symbol."""
    return TaskSpec(
        inputs="tokens",
        input_sizes=(cfg.vocab + 1,),
        length=2 * cfg.length,
        mask="causal",
        outputs=("symbol",),
        output_size=cfg.vocab + 1,
        kind="class",
        metric="accuracy",
        direction="max",
        chance=1 / cfg.vocab,
        solved_at=0.99,
        roles=("source",),
        autoregressive=True,
        vocab=(*map(str, range(cfg.vocab)), "|"),
        delimiters=(cfg.vocab,),
    )


def sample(key: Any, constants: dict[str, Any], cfg: Config, n: int) -> Batch:
    """Draw n strings; the targets are the inputs moved by one, scored on the copied half."""
    import jax.numpy as jnp

    from mha_jax.tasks import draw

    del constants
    (bits,) = draw.columns(key, n, cfg.length)
    symbols = draw.integers(bits, cfg.vocab)
    delimiter = jnp.full((n, 1), cfg.vocab, jnp.int32)
    tokens = jnp.concatenate([symbols, delimiter, symbols], axis=1)
    position = jnp.arange(2 * cfg.length, dtype=jnp.int32)
    asked = position >= cfg.length
    return Batch(
        inputs=tokens[:, :-1],
        targets=tokens[:, 1:, None],
        loss_mask=jnp.broadcast_to(asked.astype(jnp.float32)[:, None], (n, 2 * cfg.length, 1)),
        pointers={
            "source": jnp.broadcast_to(
                jnp.where(asked, position - cfg.length, -1), (n, 2 * cfg.length)
            )
        },
    )

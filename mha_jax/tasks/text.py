"""Next-byte prediction on real text.

    position    0  1  2  3  4  5  6  7
    input       T  h  e     f  o  r  m     length + 1 bytes from a random place of the split
    target      h  e     f  o  r  m  s
    previous    .  0  1  2  3  4  5  6
    first       .  0  0  0  0  0  0  0

Nobody knows how many heads this needs: it is here so that what the other tasks show can be looked
at on real input. `previous` and `first` are no answers but the two patterns that heads of a
language model are known to fall into: the previous-token head of the induction circuit (Olsson et
al. 2022, arXiv:2209.11895) and the attention sink (Xiao et al. 2023, arXiv:2309.17453).

`corpus.py` says what is read and how it is held out: whole topics, files or blocks, by task.seed.
The documents of a split are joined by newlines, and a window may run over a join.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from typing import Any

import numpy as np

from mha_jax.tasks import Batch, Documents, TaskSpec, bounds, corpus


@dataclasses.dataclass(frozen=True)
class Config:
    """Which text, and how much of it the model sees at a time."""

    path: str
    length: int
    suffix: str


def problems(cfg: Config) -> Iterator[tuple[str, str, str]]:
    """A window out of range, and whatever keeps the corpus from being used, for any seed."""
    sizes = list(bounds.outside(cfg, length=(1, 65536)))
    yield from sizes
    if not re.fullmatch(r"(\.\w[\w+-]*)+", cfg.suffix):
        yield "suffix", "must be a dot and a file ending", 'use ".txt" or the like'
        return
    try:
        small = [] if sizes else list(corpus.too_small(cfg.path, cfg.suffix, cfg.length + 1))
    except corpus.CorpusError as error:
        yield "path", error.rule, error.fix
        return
    for rule, fix in small:
        yield "path", rule, fix


def spec(cfg: Config) -> TaskSpec:
    """Bytes in, bytes out.

    Chance is a uniform guess, 8 bits: the entropy of single bytes would need the corpus here.
    """
    return TaskSpec(
        inputs="tokens",
        input_sizes=(256,),
        length=cfg.length,
        mask="causal",
        outputs=("byte",),
        output_size=256,
        kind="class",
        metric="bits_per_byte",
        direction="min",
        chance=8.0,
        solved_at=None,
        roles=("previous", "first"),
        autoregressive=True,
        vocab=tuple(
            chr(b) if 32 <= b < 127 else "\\n" if b == 10 else f"\\x{b:02x}" for b in range(256)
        ),
        delimiters=tuple(b" \n"),
    )


def encode(cfg: Config, text: str) -> np.ndarray:
    """The UTF-8 bytes of a text, int32 [t].

    Raises:
      ValueError: a lone surrogate, which UTF-8 does not have.
    """
    del cfg
    return np.frombuffer(text.encode(), np.uint8).astype(np.int32)


def constants(cfg: Config, seed: int, split: str) -> dict[str, Any]:
    """corpus: uint8 [bytes of the split].

    Raises:
      CorpusError: the corpus cannot be read (any more).
    """
    try:
        text = corpus.split(cfg.path, cfg.suffix, seed, split)
    except corpus.CorpusError as error:
        raise corpus.CorpusError(f"task.text.path={cfg.path!r} {error.rule}", error.fix) from None
    return {"corpus": np.frombuffer(text, np.uint8)}


def documents(cfg: Config, seed: int) -> Documents:
    """The held-out topics, files or blocks, each cut into windows from its start.

    Within a window a byte is predicted from those before it in the window, as in training; the
    first byte of a document is not asked for.
    """
    held_out = corpus.held_out(cfg.path, cfg.suffix, seed, "test")
    index, rows = [], []
    for i, document in enumerate(held_out):
        data = np.frombuffer(document.data, np.uint8).astype(np.int32)
        for start in range(0, len(data) - 1, cfg.length):
            window = data[start : start + cfg.length + 1]
            index.append(i)
            rows.append(np.pad(window, (0, cfg.length + 1 - len(window)), constant_values=-1))
    windows = np.stack(rows)
    return Documents(
        names=tuple(document.name for document in held_out),
        index=np.array(index),
        inputs=np.maximum(windows[:, :-1], 0),
        targets=np.maximum(windows[:, 1:, None], 0),
        loss_mask=(windows[:, 1:, None] >= 0).astype(np.float32),
    )


def data_hash(cfg: Config) -> str:
    """SHA-256 of the documents. A changed text is another run.

    Raises:
      CorpusError: the corpus cannot be read.
    """
    return corpus.digest(cfg.path, cfg.suffix)


def sample(key: Any, constants: dict[str, Any], cfg: Config, n: int) -> Batch:
    """Draw n windows at uniform places."""
    import jax
    import jax.numpy as jnp

    data = constants["corpus"]
    start = jax.random.randint(key, (n, 1), 0, data.shape[0] - cfg.length)
    position = jnp.arange(cfg.length + 1, dtype=jnp.int32)
    window = jnp.take(data, start + position[None, :], axis=0).astype(jnp.int32)
    later = position[: cfg.length] > 0
    shape = (n, cfg.length)
    return Batch(
        inputs=window[:, :-1],
        targets=window[:, 1:, None],
        loss_mask=jnp.ones((*shape, 1)),
        pointers={
            "previous": jnp.broadcast_to(position[: cfg.length] - 1, shape),
            "first": jnp.broadcast_to(jnp.where(later, 0, -1), shape),
        },
    )

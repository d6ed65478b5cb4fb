"""Attention in float64 numpy, head by head, written from the formula; the shapes and values it is
compared on, and how far off each number of a program may be.
"""

from __future__ import annotations

import dataclasses
import functools
import random
from typing import Any

import jax.numpy as jnp
import ml_dtypes
import numpy as np

from mha_jax.attention import core

_UNIT = {"float32": 2.0**-24, "bfloat16": 2.0**-9}  # half the distance of neighbours, relative
VALUES = ("normal", "normal", "zeros", "equal", "huge", "tiny", "one_key", "mixed")


class Table(core.Mask):
    """Any table of what is seen, rows that see nothing among them."""

    @functools.cached_property
    def seen(self) -> np.ndarray:
        """bool [t, s]: `n_context` is the seed, `window` the length."""
        draw = np.random.default_rng(self.n_context)
        seen = draw.random((self.window, self.window)) < draw.choice((0.1, 0.5, 0.9))
        seen[draw.random(self.window) < 0.3] = False
        return seen

    def sees(self, t: Any, s: Any) -> Any:
        """As `Mask.sees`."""
        seen = self.seen if isinstance(t, np.ndarray) else jnp.asarray(self.seen)
        return seen[t, s]


@dataclasses.dataclass(frozen=True)
class Shape:
    """What is compiled once."""

    b: int
    t: int
    k: int
    g: int
    h: int
    h_v: int
    mask: core.Mask
    dtype: str
    sink: bool
    form: str  # reference | fast | blocked

    @classmethod
    def drawn(cls, draw: random.Random) -> Shape:
        """A shape; scales of bfloat16 are powers of two, which round nothing."""
        dtype = draw.choice(("float32", "float32", "bfloat16"))
        form = draw.choice(("reference", "fast", "fast", "blocked"))
        t = draw.choice((1, 1, 2, 3, 5, 8, 16, 17, 31, 64, 70, 129))
        h = draw.choice((1, 4, 16) if dtype == "bfloat16" else (1, 2, 3, 4, 5, 8, 16, 17))
        window = draw.randrange(1, t + 2)
        masks = [
            core.Mask(),
            core.Mask("full"),
            core.Mask("context_query", draw.randrange(1, t + 1)),
            core.Mask("causal", 0, window),
            core.Mask("causal", 0, window, draw.randrange(0, 4)),
        ]
        if form != "blocked":
            masks.append(Table("causal", draw.randrange(2**31), t))
        return cls(
            draw.choice((1, 2)),
            t,
            draw.choice((1, 2, 3)),
            draw.choice((1, 2, 4)),
            h,
            h if form == "blocked" else draw.choice((h, h, 1, 3)),
            draw.choice(masks),
            dtype,
            draw.random() < 0.3,
            form,
        )

    @property
    def scale(self) -> float:
        """Of the scores."""
        return self.h**-0.5


def arrays(shape: Shape, length: int, seed: int, kinds: tuple[str, ...]) -> tuple[Any, ...]:
    """q, k, v of a dtype, and the logits of the sinks or None."""
    draw = np.random.default_rng(seed)
    s = shape
    sizes = ((s.b, length, s.k, s.g, s.h), (s.b, length, s.k, s.h), (s.b, length, s.k, s.h_v))
    made = []
    for size, kind in zip(sizes, kinds, strict=True):
        x = draw.standard_normal(size)
        if kind == "zeros":
            x = np.zeros(size) * draw.choice((-1.0, 1.0))
        elif kind == "equal":
            x = np.broadcast_to(x[:, :1], size)
        elif kind == "huge":  # one entry a row, a power of two: its products are exact
            x = np.eye(size[-1])[draw.integers(size[-1], size=size[:-1])]
            x = x * draw.choice((-1, 1), size=(*size[:-1], 1)) * 2.0 ** draw.integers(5, 40)
        elif kind == "tiny":
            x = x * 2.0**-100
        elif kind == "one_key":  # all but one position are far away from it
            x = x * np.where(np.arange(length) == draw.integers(length), 30.0, 0.01).reshape(
                1, -1, *[1] * (len(size) - 2)
            )
        elif kind == "mixed":
            x = x * 2.0 ** draw.integers(-20, 5, size=size)
        made.append(np.asarray(x, np.float32).astype(_dtype(s.dtype)))
    sink = draw.choice((0.0, 1.0, 30.0, 1e4)) * draw.standard_normal((s.k, s.g))
    return *made, (sink.astype(np.float32) if s.sink else None)


def _dtype(name: str) -> Any:
    return np.float32 if name == "float32" else ml_dtypes.bfloat16


def desired(
    shape: Shape, length: int, q: Any, k: Any, v: Any, sink: Any
) -> tuple[np.ndarray, np.ndarray]:
    """z_btkgh in float64, one head after another, and how far off each number may be."""
    s = shape
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    t, at = np.arange(length)[:, None], np.arange(length)[None, :]
    m = s.mask
    if isinstance(m, Table):
        seen = m.seen
    elif m.kind == "full":
        seen = np.ones((length, length), bool)
    elif m.kind == "context_query":
        seen = np.broadcast_to(at < m.n_context, (length, length))
    else:
        seen = (at <= t) & ((m.window == 0) | (t - at < m.window) | (at < m.n_sinks))
    z = np.zeros((s.b, length, s.k, s.g, s.h_v))
    bound = np.zeros_like(z)
    unit, f32 = _UNIT[s.dtype], _UNIT["float32"]
    for b in range(s.b):
        for i in range(s.k):
            for j in range(s.g):
                scores = s.scale * q[b, :, i, j] @ k[b, :, i].T
                size = s.scale * np.abs(q[b, :, i, j]) @ np.abs(k[b, :, i]).T
                rows = np.where(seen, scores, -np.inf)
                top = rows.max(axis=1, initial=-np.inf)
                extra = -np.inf if sink is None else float(sink[i, j])
                top = np.maximum(top, extra)
                top = np.where(np.isfinite(top), top, 0.0)
                exp = np.exp(rows - top[:, None])
                total = exp.sum(axis=1) + np.exp(extra - top)
                weights = exp / np.where(total > 0, total, 1.0)[:, None]
                z[b, :, i, j] = weights @ v[b, :, i]
                # A score is a sum of h products, of a scaled factor each; exact where there is
                # one product of powers of two. The largest score is taken off, which rounds.
                exact = np.all((np.abs(q[b, :, i, j]) > 0).sum(-1) <= 1) and _powers(q, k, s.scale)
                off = 0.0 if exact else (s.h + 3) * f32 * np.where(seen, size, 0).max(axis=1)
                off = off + 2 * f32 * np.where(seen, np.abs(rows - top[:, None]), 0).clip(
                    0, 120
                ).max(axis=1)
                grow = np.expm1(np.minimum(2 * off, 60))[:, None]
                terms = weights @ np.abs(v[b, :, i])
                # What the weights of keys whose scores may be off can come to, at the most.
                most = np.where(seen.any(axis=1), 1.0, 0.0)[:, None] * np.abs(v[b, :, i]).max(
                    axis=0
                )
                rounding = (length + 40) * f32 + 4 * unit
                bound[b, :, i, j] = np.minimum(grow * terms, 2 * most) + rounding * terms
                # A CPU makes 0 of what is below the smallest normal number: of each weight, and of
                # each product with a value.
                bound[b, :, i, j] += np.finfo(np.float32).tiny * (length + 2) * (1 + most)
    return z, bound


def _powers(q: np.ndarray, k: np.ndarray, scale: float) -> bool:
    """Whether all numbers are zeros and powers of two."""
    return all(np.all(np.frexp(x)[0] * np.where(x, 2, 0) % 1 == 0) for x in (q, k, np.array(scale)))

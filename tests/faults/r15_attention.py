"""R15: attention against float64 numpy that is written here, not read from the package: the
reference, the fast and the blocked form, MHA, GQA and MQA, windows, sinks, masks with rows that see
nothing, one position, one key, huge and tiny scores, bfloat16; and a cache against whole sequences.

Values, and in caches lengths and chunks, vary within a compiled shape. The bound of each number
follows from the sizes of the terms that were added up, so a wrong formula does not hide in it.
"""

from __future__ import annotations

import dataclasses
import functools
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from hypothesis import strategies

from mha_jax.attention import cache, core, fast
from mha_jax.attention.blocked import blocked
from tests.faults.tally import Tally, draws, say

SHAPES = (40, 1000)  # compiled, of whole sequences: quick, full
OF_EACH = (25, 6)  # values that each is given
CACHES, OF_EACH_CACHE = (8, 60), (20, 20)
_UNIT = {"float32": 2.0**-24, "bfloat16": 2.0**-9}  # half the distance of neighbours, relative
_VALUES = ("normal", "normal", "zeros", "equal", "huge", "tiny", "one_key", "mixed")


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


def run(seed: int, quick: bool, directory: Path) -> list[dict[str, Any]]:
    """The rows of R15."""
    del directory
    draw = draws(seed, "R15")
    whole, decoded = Tally("R15 attention"), Tally("R15 caches")
    shapes: dict[Shape, None] = {}
    while len(shapes) < SHAPES[not quick]:
        shapes[Shape.drawn(draw)] = None
    for i, shape in enumerate(shapes):
        _try(whole, _program(shape), shape, shape.t, OF_EACH[not quick], draw)
        if i % 20 == 19:
            say(f"R15: {whole.passed} of {whole.tried} cases, {i + 1} shapes")
        if i % 100 == 99:
            jax.clear_caches()  # a thousand programs are a gigabyte
    whole.told.append(f"{len(shapes)} shapes")
    for _ in range(CACHES[not quick]):
        shape, capacity = _cached(draw)
        _try(decoded, _decoder(shape, capacity), shape, capacity, OF_EACH_CACHE[not quick], draw)
    decoded.told.append(f"{CACHES[not quick]} shapes")
    return [whole.row(), decoded.row()]


def _try(
    tally: Tally,
    program: Callable[..., np.ndarray],
    shape: Shape,
    length: int,
    n: int,
    draw: random.Random,
) -> None:
    """`n` draws of values for a compiled shape, by hypothesis."""
    tried, wrong = [0], [""]

    @hypothesis.seed(draw.randrange(2**32))
    @hypothesis.settings(
        max_examples=n,
        deadline=None,
        database=None,
        derandomize=False,
        suppress_health_check=list(hypothesis.HealthCheck),
        phases=(hypothesis.Phase.generate,),  # values that fail are told; none is a simpler one
        print_blob=False,
        verbosity=hypothesis.Verbosity.quiet,
    )
    @hypothesis.given(
        strategies.integers(0, 2**32 - 1),
        strategies.sampled_from(_VALUES),
        strategies.sampled_from(_VALUES),
        strategies.sampled_from(_VALUES),
    )
    def check(values_seed: int, of_q: str, of_k: str, of_v: str) -> None:
        tried[0] += 1
        arrays = _arrays(shape, length, values_seed, (of_q, of_k, of_v))
        found = np.asarray(program(*arrays, values_seed), np.float64)
        desired, bound = _desired(shape, length, *arrays)
        assert found.shape == desired.shape
        with np.errstate(invalid="ignore"):
            off = ~(np.abs(found - desired) <= bound)
        if off.any():
            wrong[0] = f"seed {values_seed}, {of_q}/{of_k}/{of_v}: {off.sum()} of {off.size} wrong"
        assert not off.any()

    try:
        check()
    except Exception as error:  # it ends with the first values that are wrong
        told = wrong[0] or f"{type(error).__name__}: {str(error)[:200]}"
        tally.add(told, str(shape))
        return
    for _ in range(tried[0]):
        tally.add("")


def _arrays(shape: Shape, length: int, seed: int, kinds: tuple[str, ...]) -> tuple[Any, ...]:
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


def _desired(
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
                bound[b, :, i, j] += 1e-37 * (1 + length * most)
    return z, bound


def _powers(q: np.ndarray, k: np.ndarray, scale: float) -> bool:
    """Whether all numbers are zeros and powers of two."""
    return all(np.all(np.frexp(x)[0] * np.where(x, 2, 0) % 1 == 0) for x in (q, k, np.array(scale)))


def _program(shape: Shape) -> Callable[..., Any]:
    """A form of attention over whole sequences, compiled."""

    @jax.jit
    def program(q: Any, k: Any, v: Any, sink: Any) -> Any:
        if shape.form == "reference":
            return core.reference(q, k, v, shape.mask, shape.scale, sink_kg=sink).z_btkgh
        if shape.form == "blocked":
            return blocked(q * shape.scale, k, v, shape.mask, sink).astype(v.dtype)
        return fast.fast(q, k, v, shape.mask, shape.scale, sink)

    return lambda q, k, v, sink, _: program(q, k, v, sink).astype(jnp.float32)


def _cached(draw: random.Random) -> tuple[Shape, int]:
    """A shape whose t is the tokens of a chunk, and the length of the whole sequences."""
    capacity = draw.choice((1, 2, 5, 9, 12))
    mask = draw.choice(
        (
            core.Mask(),
            core.Mask("causal", 0, draw.randrange(1, capacity + 2)),
            core.Mask("causal", 0, draw.randrange(1, capacity + 1), draw.randrange(1, 4)),
        )
    )
    k, g, h = draw.choice((1, 2)), draw.choice((1, 3)), draw.choice((1, 4, 8))
    chunk = draw.choice((1, 1, 3))
    dtype, sink = draw.choice(("float32", "float32", "bfloat16")), draw.random() < 0.3
    h = 4 if dtype == "bfloat16" else h
    return Shape(3, chunk, k, g, h, h, mask, dtype, sink, "cache"), capacity


def _decoder(shape: Shape, capacity: int) -> Callable[..., np.ndarray]:
    """Sequences read chunk by chunk into a cache, each chunk with another number of tokens of each
    sequence that count, until all have `capacity` tokens."""
    layout, c = cache.Layout.of(shape.mask, capacity), shape.t

    @jax.jit
    def extend(q: Any, k: Any, v: Any, kept: Any, length_b: Any, n_valid_b: Any, sink: Any) -> Any:
        position_bc = length_b[:, None] + jnp.arange(c)[None]
        step = cache.Step(length_b, n_valid_b, position_bc, capacity)
        kept, parts = cache.append(
            kept,
            {"k": k, "v": v},
            step,
            shape.mask,
            lambda arrays, _: ((arrays["k"],), arrays["v"]),
        )
        return kept, cache.attend([q], parts, shape.scale, sink)

    def decode(q: Any, k: Any, v: Any, sink: Any, seed: int) -> np.ndarray:
        draw = np.random.default_rng(seed)
        size = (shape.b, shape.k, layout.n_slots, shape.h)
        kept = {name: jnp.zeros(size, cache.storage(jnp.dtype(shape.dtype))) for name in ("k", "v")}
        z = np.full((shape.b, capacity, shape.k, shape.g, shape.h), np.nan)
        length = np.zeros(shape.b, np.int32)
        while (length < capacity).any():
            n_valid = np.minimum(draw.integers(0, c + 1, shape.b), capacity - length)
            n_valid = n_valid.astype(np.int32)
            rows = np.minimum(length[:, None] + np.arange(c)[None], capacity - 1)
            of_chunk = [np.take_along_axis(x, _like(rows, x), axis=1) for x in (q, k, v)]
            kept, out = extend(*of_chunk, kept, length, n_valid, sink)
            for b in range(shape.b):
                z[b, length[b] : length[b] + n_valid[b]] = out[b, : n_valid[b]]
            length = length + n_valid
        return z

    return decode


def _like(rows_bc: np.ndarray, x: np.ndarray) -> np.ndarray:
    return rows_bc.reshape(*rows_bc.shape, *[1] * (x.ndim - 2))

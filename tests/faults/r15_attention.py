"""R15: attention against float64 numpy that is written here, not read from the package: the
reference, the fast and the blocked form, MHA, GQA and MQA, windows, sinks, masks with rows that see
nothing, one position, one key, huge and tiny scores, bfloat16; and a cache against whole sequences.

Values, and in caches lengths and chunks, vary within a compiled shape. The bound of each number
follows from the sizes of the terms that were added up, so a wrong formula does not hide in it.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import strategies

from mha_jax.attention import cache, core, fast
from mha_jax.attention.blocked import blocked
from tests.faults.float64 import VALUES, Shape, arrays, desired
from tests.faults.tally import Tally, draws, say

SHAPES = (40, 1000)  # compiled, of whole sequences: quick, full
OF_EACH = (25, 6)  # values that each is given
CACHES, OF_EACH_CACHE = (8, 60), (20, 20)


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
        strategies.sampled_from(VALUES),
        strategies.sampled_from(VALUES),
        strategies.sampled_from(VALUES),
    )
    def check(values_seed: int, of_q: str, of_k: str, of_v: str) -> None:
        tried[0] += 1
        given = arrays(shape, length, values_seed, (of_q, of_k, of_v))
        found = np.asarray(program(*given, values_seed), np.float64)
        right, bound = desired(shape, length, *given)
        assert found.shape == right.shape
        with np.errstate(invalid="ignore"):
            off = ~(np.abs(found - right) <= bound)
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

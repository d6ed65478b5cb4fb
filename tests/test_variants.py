"""Every way to shrink the cache: with it a model says what it says of the whole sequence, and what
is stored has the bytes that the cost model tells."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from shapes import LAYER_FIELDS, model_of, spec_of

from mha_jax import cost, train
from mha_jax.attention import cache
from mha_jax.config import ModelSpec
from mha_jax.decode import Decoder
from mha_jax.model import build
from tests.synthetic import static

CAPACITY, LENGTH, CHUNK = 24, 21, 5
SPEC = spec_of(length=CAPACITY)


def layers_of(**changes: Any) -> ModelSpec:
    """`model_of` in which a list gives a field of each layer."""
    lists = {name: value for name, value in changes.items() if isinstance(value, tuple)}
    n_layers = max([len(value) for value in lists.values()], default=1)
    plain = {name: value for name, value in changes.items() if name not in lists}
    one = model_of(n_layers, **{"norm": "rms" if n_layers > 1 else "none", **plain})
    assert set(lists) <= LAYER_FIELDS
    layers = tuple(
        dataclasses.replace(layer, **{name: value[i] for name, value in lists.items()})
        for i, layer in enumerate(one.layers)
    )
    return dataclasses.replace(one, layers=layers)


ROPE, NONE = {"positions": "rope"}, {"positions": "none"}
INT8, INT4 = {"kv_quant": "int8"}, {"kv_quant": "int4"}
MLA = {"mixer": "mla", "n_kv_heads": 1, "d_latent": 6}
GLA = {"mixer": "mla", "n_kv_heads": 2, "d_latent": 5}
TURNED = {"positions": "rope", "d_rope": 2}
GTA = {"mixer": "gta", "bias": True}
QUERY_LATENT = {"d_latent_q": 7, "qk_norm": True, "bias": True}

VARIANTS: dict[str, dict[str, Any]] = {
    "sink and gate, MHA": {"sink_logit": True, "gate": True, "bias": True},
    "sink and gate, GQA, rope": {"sink_logit": True, "gate": True, "n_kv_heads": 2, **ROPE},
    "sink and gate, MQA": {"sink_logit": True, "gate": True, "n_kv_heads": 1, **NONE},
    "K=V": {"share": "kv", "n_kv_heads": 2},
    "K=V, rope": {"share": "kv", "n_kv_heads": 1, **ROPE},
    "K=V, rope, normed": {"share": "kv", "qk_norm": True, "n_kv_heads": 2, "bias": True, **ROPE},
    "K=V, normed": {"share": "kv", "qk_norm": True, **NONE},
    "Q=K=V": {"share": "qkv", "bias": True},
    "Q=K=V, rope, normed": {"share": "qkv", "qk_norm": True, **ROPE},
    "Q=K, rope, normed": {"share": "qk", "qk_norm": True, "bias": True, **ROPE},
    "kv counts differ": {"n_kv_heads": (4, 1), "qk_norm": True, **ROPE},
    "window": {"window": 4, "n_kv_heads": 2, **ROPE},
    "window of one": {"window": 1, "n_kv_heads": 1, "sink_logit": True},
    "sinks and window": {"window": 3, "n_sinks": 2, "n_kv_heads": 2, **ROPE},
    "sinks and window, MQA": {"window": 2, "n_sinks": 1, "n_kv_heads": 1, **NONE},
    "sinks and window, K=V": {"window": 3, "n_sinks": 1, "share": "kv", "qk_norm": True, **ROPE},
    "local and global": {"window": (4, 0), "n_kv_heads": 2, **ROPE},
    "local and global, sinks": {"window": (3, 3, 0), "n_sinks": (1, 0, 0), "gate": True},
    "CLA-2": {"kv_from": (None, 0), "n_kv_heads": 2, "qk_norm": True, **ROPE},
    "CLA-2, more heads": {"kv_from": (None, 0, None, 2), "n_heads": (4, 2, 4, 2), "n_kv_heads": 2},
    "CLA-3": {"kv_from": (None, 0, 0), "n_kv_heads": 1, "bias": True, "gate": True, **ROPE},
    "trailing, not the one before": {"kv_from": (None, None, 0), "residual": True, **ROPE},
    "CLA-2, window": {"kv_from": (None, 0), "window": 3, "n_sinks": 1, "sink_logit": True},
    "CLA-2, K=V": {"kv_from": (None, 0), "share": "kv", "qk_norm": True, **ROPE},
    "CLA-2, int8": {"kv_from": (None, 0), "n_kv_heads": 2, **INT8, **ROPE},
    "int8": {"n_kv_heads": 2, **INT8, **ROPE},
    "int8, tail of two groups": {"kv_group": 3, "kv_tail": 6, "n_kv_heads": 1, **INT8, **NONE},
    "int8, token by token, no tail": {
        **{"kv_group": 1, "kv_tail": 0, "bias": True, "sink_logit": True},
        **INT8,
    },
    "int4": {"n_kv_heads": 2, "qk_norm": True, **INT4, **ROPE},
    "int4, no tail": {"kv_group": 8, "kv_tail": 0, "n_kv_heads": 1, **INT4},
    "int4, group that does not divide": {"kv_group": 5, "kv_tail": 5, "gate": True, **INT4},
    "int4, all in the tail": {"kv_group": 8, "kv_tail": 24, **INT4, **ROPE},
    "int4, ring of all": {"kv_group": 8, "kv_tail": 16, **INT4, **NONE},
    "MLA": {**MLA, **NONE},
    "MLA, learned, gate": {**MLA, "gate": True, "bias": True, "sink_logit": True},
    "MLA, rope": {**MLA, **TURNED},
    "MLA, rope, query latent": {**MLA, **TURNED, **QUERY_LATENT},
    "MLA, rope, window": {**MLA, **TURNED, "window": 3, "n_sinks": 1, "qk_norm": True},
    "GLA": {**GLA, **NONE, "bias": True},
    "GLA, rope, query latent": {**GLA, **TURNED, **QUERY_LATENT, "sink_logit": True},
    "GLA, rope, window": {**GLA, **TURNED, "window": 4},
    "GTA": {**GTA, "n_kv_heads": 2},
    "GTA, rope": {**GTA, "n_kv_heads": 4, **ROPE},
    "GTA, rope, one head": {**GTA, "n_kv_heads": 1, "gate": True, "sink_logit": True, **ROPE},
    "GTA, rope, window": {**GTA, "n_kv_heads": 2, "window": 3, "n_sinks": 2, **ROPE},
    "MLA below GTA below MQA": {
        "mixer": ("mla", "gta", "grouped"),
        "n_kv_heads": (1, 2, 1),
        "d_latent": 6,
        **TURNED,
    },
}


# The tests compile hundreds of small programs, and run each a few times.
compiled = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})


def drawn(built: Any) -> Any:
    """Parameters of which none is zero or one: biases, scales of norms and sink logits matter."""
    rng = np.random.default_rng(0)

    def draw(x: Any) -> np.ndarray:
        values = rng.normal(size=x.shape) * (0.4 if x.ndim > 1 else 0.3)
        return (values + (0.6 if x.ndim == 1 else 0.0)).astype(np.float32)

    return jax.tree.map(draw, jax.eval_shape(built.init, jax.random.key(0)))


def empty(built: Any, params: Any, b: int) -> Any:
    """A cache without tokens."""
    shapes = jax.eval_shape(lambda p: built.init_cache(p, b, CAPACITY), params)
    return jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), shapes)


@functools.cache
def model(name: str) -> tuple[ModelSpec, Any, Any, np.ndarray, np.ndarray]:
    """A variant, its parameters, three sequences, and what it says of them as a whole."""
    spec = layers_of(**VARIANTS[name])
    built = build(spec, SPEC)
    params = drawn(built)
    inputs = np.random.default_rng(1).integers(0, 11, (3, LENGTH))
    whole = compiled(lambda params, inputs: built.apply(params, inputs)[0])(params, inputs)
    return spec, built, params, inputs, np.asarray(whole)


@functools.cache
def step_of(name: str) -> Any:
    """Compiled once for each batch size and chunk length."""
    built = model(name)[1]

    def step(params: Any, kept: Any, inputs: Any, length_b: Any, n_valid_b: Any) -> Any:
        return built.extend(params, inputs, kept, length_b, n_valid_b, CAPACITY)

    return compiled(step, donate_argnums=1)


ENDS = (LENGTH, 14, 6)  # tokens of each sequence at the end


def one_by_one(ends: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    for at in range(LENGTH):
        yield 1, at < ends


def prompts_then_one_by_one(ends: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    first = np.array([5, 3, 1])
    yield CHUNK, first
    for at in range(LENGTH - 1):
        yield 1, first + at < ends


def whole_chunks(ends: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    for at in range(0, LENGTH, CHUNK):
        yield CHUNK, np.clip(ends - at, 0, CHUNK)


def ragged_chunks(ends: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    rng, length = np.random.default_rng(0), np.zeros_like(ends)
    while (length < ends).any():
        n_valid = np.minimum(rng.integers(0, CHUNK + 1, len(ends)), ends - length)
        length = length + n_valid
        yield CHUNK, n_valid


CASES = [(name, one_by_one, 1) for name in VARIANTS] + [
    (name, schedule, 3)
    for name in VARIANTS
    for schedule in (one_by_one, prompts_then_one_by_one, whole_chunks, ragged_chunks)
]


@pytest.mark.parametrize(("name", "schedule", "b"), CASES)
def test_the_cache_says_what_the_whole_sequence_says(name: str, schedule: Any, b: int) -> None:
    spec, built, params, inputs, whole = model(name)
    kept, length, ends = empty(built, params, b), np.zeros(b, np.int32), np.array(ENDS[:b])
    assert cache.nbytes(kept) == b * cost.kv_bytes_resident(spec, CAPACITY)
    shapes = jax.tree.map(lambda x: (x.shape, x.dtype), kept)
    for c, n_valid in schedule(ends):
        at = np.minimum(length[:, None] + np.arange(c), LENGTH - 1)
        chunk = np.take_along_axis(inputs[:b], at, axis=1)
        out, kept = step_of(name)(params, kept, chunk, length, n_valid.astype(np.int32))
        for row in range(b):
            n, start = int(n_valid[row]), length[row]
            # float32 sums of a few dozen terms in another order
            np.testing.assert_allclose(
                out[row, :n], whole[row, start : start + n], rtol=1e-5, atol=1e-5
            )
        length = (length + n_valid).astype(np.int32)
    assert length.tolist() == ends.tolist()
    assert jax.tree.map(lambda x: (x.shape, x.dtype), kept) == shapes


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("more", [{}, {"use_wo": False, "d_head": 8}], ids=str)
def test_parameters_are_as_many_as_the_cost_model_tells(name: str, more: dict[str, Any]) -> None:
    changes = {k: v for k, v in VARIANTS[name].items() if not (more and isinstance(v, tuple))}
    spec = layers_of(**changes, **({} if {"d_ff", "residual"} & set(changes) else more))
    shapes = jax.eval_shape(build(spec, SPEC).init, jax.random.key(0))
    assert sum(x.size for x in jax.tree.leaves(shapes)) == cost.model_params(spec, SPEC)


# --- a step in place -----------------------------------------------------------------------------

ROOM = 64
IN_PLACE = (
    *("sink and gate, GQA, rope", "K=V, rope, normed", "sinks and window, K=V", "Q=K=V"),
    *("local and global", "CLA-2", "CLA-2, int8", "int8", "int8, tail of two groups", "int4"),
    *("int4, group that does not divide", "MLA, rope", "MLA, rope, window"),
    *("GLA, rope, query latent", "GTA, rope", "GTA, rope, one head"),
)


IN_16_BITS = ("sink and gate, GQA, rope", "int8", "MLA, rope", "GTA, rope")


@pytest.mark.parametrize(
    ("name", "b", "dtype"),
    [
        *((name, b, "float32") for name in IN_PLACE for b in (1, 4)),
        *((name, b, "bfloat16") for name in IN_16_BITS for b in (1, 4)),
    ],
)
def test_no_step_copies_what_is_stored(name: str, b: int, dtype: str) -> None:
    changes = {**VARIANTS[name], "cache_dtype": dtype}
    if changes.get("n_sinks"):
        changes |= {"window": 16}
    # Widths that nothing else in the program has.
    spec = layers_of(**changes, d_model=7, d_head=12)
    built = build(spec, spec_of(length=ROOM))
    params = jax.eval_shape(built.init, jax.random.key(0))
    kept = jax.eval_shape(lambda p: built.init_cache(p, b, ROOM), params)

    def step(params: Any, kept: Any, token_b1: Any, length_b: Any) -> Any:
        return built.extend(params, token_b1, kept, length_b, jnp.ones_like(length_b), ROOM)

    like = jax.ShapeDtypeStruct
    args = params, kept, like((b, 1), jnp.int32), like((b,), jnp.int32)
    program = jax.jit(step, donate_argnums=1).lower(*args).compile()
    names = {"float32": "f32", "uint8": "u8", "uint16": "u16"}
    # Axes of length one come and go, so an array is known by its type and size.
    stored = {(names[str(x.dtype)], x.size) for x in jax.tree.leaves(kept)}
    # The scores of one query may be as many as the steps of the values.
    moved = r"= (\w+)\[([\d,]*)\]\S* (?:copy|transpose|concatenate)\((?!.*->bkrs/dot_general)"
    for kind, shape in re.findall(moved, program.as_text()):
        assert (kind, int(np.prod([int(n) for n in shape.split(",") if n]))) not in stored
    assert program.memory_analysis().alias_size_in_bytes == cache.nbytes(kept)


# --- published bytes -----------------------------------------------------------------------------


def per_token(context: int = 1024, **changes: Any) -> float:
    """Bytes a token of all layers of a model of 16 heads of width 128 in 16 bits."""
    big = {"n_heads": 16, "n_kv_heads": 16, "d_head": 128, "cache_dtype": "bfloat16"}
    return cost.kv_bytes_per_token(layers_of(**{**big, **changes}), context)


def test_bytes_of_every_formula_by_hand() -> None:
    """b bytes a number, h query heads, g kv heads, d head width, T tokens, L layers."""
    h, d, b, t = 16, 128, 2, 1024
    for g in (16, 4, 1):
        assert per_token(n_kv_heads=g) == 2 * g * d * b
        assert per_token(n_kv_heads=g, share="kv") == g * d * b
    assert per_token(n_kv_heads=(4, 2, 1)) == 2 * d * b * (4 + 2 + 1)
    for control in ({"sink_logit": True}, {"gate": True}):
        assert per_token(**control) == 2 * h * d * b
    assert per_token(window=128) == 2 * h * d * b * 128 / t
    assert per_token(window=128, context=64) == 2 * h * d * b
    assert per_token(window=128, n_sinks=4) == 2 * h * d * b * 132 / t
    assert per_token(window=(128, 128, 128, 0)) == 2 * h * d * b * (3 * 128 + t) / t
    for f in (2, 3):  # CLA-f
        kv_from = tuple(None if i % f == 0 else i // f * f for i in range(6))
        assert per_token(n_kv_heads=1, kv_from=kv_from) == 6 * 2 * d * b / f
    assert per_token(kv_from=(None, None, None, 2, 2, 2)) == 2 * h * d * b * (6 - 3)


@pytest.mark.parametrize(("how", "bits"), [("int8", 8), ("int4", 4)])
def test_bytes_of_few_bits_by_hand(how: str, bits: int) -> None:
    g, d, b, group, tail, t = 4, 128, 2, 32, 64, 1024
    quantised = t - tail
    numbers = 2 * g * d * bits // 8 * quantised
    of_keys, of_values = 2 * g * d * b * quantised // group, 2 * g * b * quantised
    whole = 2 * g * d * b * (tail + group)  # one group fills up before it is quantised
    found = cost.kv_bytes_resident(
        layers_of(
            **{"n_heads": 16, "n_kv_heads": g, "d_head": d, "cache_dtype": "bfloat16"},
            **{"kv_quant": how, "kv_group": group, "kv_tail": tail},
        ),
        t,
    )
    assert found == numbers + of_keys + of_values + whole


def test_published_bytes_of_latents_and_tied_keys() -> None:
    """DeepSeek-V2's latent of 512 and rotated 64; Zadouri et al. 2025, bytes a token and layer."""
    latent = {"mixer": "mla", "positions": "rope", "d_rope": 64}
    assert per_token(**latent, n_kv_heads=1, d_latent=512) == (512 + 64) * 2 == 1152
    assert per_token(**latent, n_kv_heads=2, d_latent=256) == (2 * 256 + 64) * 2 == 1152
    assert per_token(mixer="gta", positions="rope", n_kv_heads=4) == (4 * 128 + 64) * 2 == 1152
    assert (per_token(), per_token(n_kv_heads=4)) == (8192, 2048)


# Brandon et al. 2024: d_head, heads, kv heads, layers that share one store, bytes a token.
CLA = (
    *((128, 16, 16, 1, 163840), (128, 16, 4, 1, 40960), (128, 16, 2, 1, 20480)),
    *((128, 16, 1, 1, 10240), (64, 32, 1, 1, 5120), (46, 45, 1, 1, 3680), (32, 64, 1, 1, 2560)),
    *((512, 4, 1, 2, 20480), (256, 8, 1, 2, 10240), (128, 16, 1, 2, 5120), (90, 22, 1, 2, 3600)),
    *((64, 32, 1, 2, 2560), (256, 8, 4, 2, 40960), (128, 16, 4, 2, 20480)),
    *((128, 16, 2, 2, 10240), (128, 16, 1, 3, 3584), (128, 16, 1, 4, 2560)),
)


@pytest.mark.parametrize(("d_head", "n", "k", "f", "expected"), CLA)
def test_published_bytes_of_layers_that_share(
    d_head: int, n: int, k: int, f: int, expected: int
) -> None:
    kv_from = tuple(None if i % f == 0 else i // f * f for i in range(20))
    changes = {"d_head": d_head, "n_heads": n, "n_kv_heads": k, "kv_from": kv_from}
    assert per_token(**changes) == expected
    read = cost.kv_bytes_read(layers_of(**changes, cache_dtype="bfloat16"), 1024)
    assert read == 20 * 2 * k * d_head * 2 * 1024  # a layer that borrows reads them anew


def test_a_borrowed_cache_is_read_as_often_as_layers_read_it() -> None:
    spec = static("text", 4, 2, 4, length=24)
    (layer,) = spec.model.layers
    model = dataclasses.replace(
        spec.model,
        **{"d_model": 16, "positions": "rope"},
        layers=(layer, dataclasses.replace(layer, kv_from=0), layer),
    )
    program = train.Program.of(dataclasses.replace(spec, model=model))
    decoder = Decoder(program, jax.eval_shape(program.model.init, jax.random.key(0)))
    apart = decoder.bytes_read_per_step(3, 64) - decoder.cache_bytes(3, 64)
    assert decoder.cache_bytes(3, 64) == 3 * cost.kv_bytes_resident(model, 64)
    params = dict(decoder.params)
    params["encoder"] = {k: v for k, v in params["encoder"].items() if k != "embed"}
    assert apart - cache.nbytes(params) == 3 * 64 * 2 * (2 * 4) * 4  # the second time
    assert decoder.bytes_read_per_step(3, 64) == cache.nbytes(params) + 3 * cost.kv_bytes_read(
        model, 64
    )

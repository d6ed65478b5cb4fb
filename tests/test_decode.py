"""With a cache, token by token, a model says what it says of the whole sequence."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from shapes import SPEC, model_of

from mha_jax import train
from mha_jax.attention import cache, core
from mha_jax.attention.cache import Layout
from mha_jax.decode import Decoder, State
from mha_jax.model import build
from mha_jax.sampling import Sampling
from tests.synthetic import static

B, LENGTH = 3, 13
N_VALID = (13, 9, 4)  # tokens that each sequence has in the end


@functools.cache
def model(**changes: Any) -> Any:
    spec = dataclasses.replace(SPEC, length=LENGTH)
    built = build(model_of(**changes), spec)
    params = built.init(jax.random.key(0))
    inputs = jax.random.randint(jax.random.key(1), (B, LENGTH), 0, 11)
    return built, params, inputs, built.apply(params, inputs)[0]


def stepped(built: Any, params: Any, inputs: jax.Array, chunks: Any, capacity: int) -> Any:
    """Outputs [b, t, o, v] of a ragged batch, chunk by chunk, and the last cache."""
    kept, length_b = built.init_cache(params, B, capacity), jnp.zeros(B, jnp.int32)
    shapes = jax.tree.map(jnp.shape, kept)
    outputs, at = [], 0
    for c in chunks:
        n_valid_b = jnp.clip(jnp.asarray(N_VALID) - at, 0, c)
        out, kept = built.extend(
            params, inputs[:, at : at + c], kept, length_b, n_valid_b, capacity
        )
        assert jax.tree.map(jnp.shape, kept) == shapes
        outputs.append(out)
        length_b, at = length_b + n_valid_b, at + c
    return jnp.concatenate(outputs, axis=1), kept


KV, POSITIONS = (4, 2, 1), ("learned", "rope", "none")
WINDOWS = ((0, 0), (4, 0), (3, 2), (1, 0))
CHUNKS = ((1,) * LENGTH, (13,), (5, 1, 1, 6))
GRID = list(itertools.product(KV, POSITIONS, WINDOWS, CHUNKS))


@pytest.mark.parametrize(("k", "positions", "window", "chunks"), GRID)
def test_the_cache_says_what_the_whole_sequence_says(k, positions, window, chunks):
    changes = {"n_kv_heads": k, "positions": positions, "window": window[0], "n_sinks": window[1]}
    built, params, inputs, whole = model(n_layers=2, residual=True, norm="rms", d_ff=8, **changes)
    out, kept = stepped(built, params, inputs, chunks, LENGTH)
    for row, n in enumerate(N_VALID):
        # float32 sums of at most 13 terms, in another order
        np.testing.assert_allclose(out[row, :n], whole[row, :n], atol=1e-5)
    slots = min(LENGTH, sum(window)) if window[0] else LENGTH
    assert cache.nbytes(kept) == 2 * (2 * k * 4) * slots * B * 4  # layers, k and v, float32


@pytest.mark.parametrize(
    "changes",
    [
        {"gate": True, "bias": True},
        {"qk_norm": True, "positions": "rope"},
        {"share": "kv"},
        {"share": "qkv"},
        {"share": "qk", "positions": "rope"},
        {"use_wo": False},
        {"scale": False, "norm": "layer"},
        {"qk_from": "positions"},
        {"activation": "swiglu", "d_ff": 8, "kernel": "reference"},
        {"d_head": 6, "n_kv_heads": 2},
    ],
    ids=str,
)
def test_with_every_switch(changes):
    built, params, inputs, whole = model(window=3, n_sinks=1, **changes)
    out, _ = stepped(built, params, inputs, (4, 1, 1, 7), LENGTH)
    for row, n in enumerate(N_VALID):
        np.testing.assert_allclose(out[row, :n], whole[row, :n], atol=1e-5)


def test_layers_may_differ():
    spec = dataclasses.replace(SPEC, length=LENGTH)
    layers = [model_of(n_kv_heads=k, window=w).layers[0] for k, w in ((1, 2), (4, 0), (2, 5))]
    built = build(dataclasses.replace(model_of(), layers=tuple(layers)), spec)
    params = built.init(jax.random.key(0))
    inputs = jax.random.randint(jax.random.key(1), (B, LENGTH), 0, 11)
    out, kept = stepped(built, params, inputs, (6, 1, 6), LENGTH)
    np.testing.assert_allclose(out[0], built.apply(params, inputs)[0][0], atol=1e-5)
    assert [x["k"].shape[1:3] for x in kept] == [(1, 2), (4, LENGTH), (2, 5)]


@pytest.mark.parametrize(("window", "n_sinks"), [(0, 0), (1, 0), (3, 0), (3, 2), (2, 5)])
def test_slots_hold_what_was_written_last(window, n_sinks):
    mask, capacity = core.Mask(window=window, n_sinks=n_sinks), 11
    layout = Layout.of(mask, capacity)
    standing = np.full(layout.n_slots, -1)
    for length in range(capacity):
        found = layout.positions(jnp.array([length]))[0]
        assert found.tolist() == standing.tolist()
        seen = {p for p in range(length) if mask.sees(length - 1, p)}
        assert seen <= set(standing.tolist())
        standing[int(layout.slot(jnp.int32(length)))] = length
        assert int(layout.slot(length)) == int(layout.slot(np.int32(length)))


def test_a_long_sequence_goes_round_the_ring_many_times():
    capacity, mask = 40, core.Mask(window=3, n_sinks=1)
    rng = np.random.default_rng(0)
    q, k, v = (jnp.asarray(rng.normal(size=(1, capacity, 2, 1, 4)), jnp.float32) for _ in range(3))
    whole = core.reference(q, k[:, :, :, 0], v[:, :, :, 0], mask, 0.5).z_btkgh
    slots = Layout.of(mask, capacity).n_slots
    kept, at = {name: jnp.zeros((1, 2, slots, 4)) for name in "kv"}, 0

    def read(arrays: cache.Cache, position_bs: jax.Array) -> Any:
        return (arrays["k"],), arrays["v"]

    for c in (9, 1, 1, 20, 1, 8):
        step = cache.Step(jnp.array([at]), jnp.array([c]), jnp.arange(at, at + c)[None], capacity)
        part = slice(at, at + c)
        new = {"k": k[:, part, :, 0], "v": v[:, part, :, 0]}
        kept, parts = cache.append(kept, new, step, mask, read)
        z = cache.attend((q[:, part],), parts, 0.5)
        np.testing.assert_allclose(z, whole[:, part], atol=1e-6)
        at += c
    assert kept["k"].shape == (1, 2, 4, 4)


@pytest.mark.parametrize(("b", "k"), [(1, 4), (1, 1), (4, 2), (4, 1), (4, 4)])
@pytest.mark.parametrize("window", [0, 16])
def test_no_step_copies_the_cache(b, k, window):
    capacity = 64
    spec = dataclasses.replace(SPEC, length=capacity)
    built = build(model_of(n_kv_heads=k, window=window, positions="rope"), spec)
    params = built.init(jax.random.key(0))
    kept = built.init_cache(params, b, capacity)

    def one(params: Any, kept: Any, token_b1: jax.Array, length_b: jax.Array) -> Any:
        return built.extend(params, token_b1, kept, length_b, jnp.ones_like(length_b), capacity)

    args = params, kept, jnp.zeros((b, 1), jnp.int32), jnp.full(b, 5, jnp.int32)
    compiled = jax.jit(one, donate_argnums=1).lower(*args).compile()
    shape = ",".join(map(str, kept[0]["k"].shape))
    moved = rf"= f32\[{shape}\]\S* (copy|transpose|concatenate)\("
    assert not re.findall(moved, compiled.as_text())
    assert compiled.memory_analysis().alias_size_in_bytes == cache.nbytes(kept)


@functools.cache
def decoder(task: str = "text", **changes: Any) -> Decoder:
    params = {"length": 24} if task == "text" else {}
    spec = static(task, 4, 2, 4, model={"d_model": 16, "positions": "rope", **changes}, **params)
    program = train.Program.of(spec)
    state = program.model.init(jax.random.key(0))
    # Sharper than a fresh model, so that tokens differ.
    return Decoder(program, jax.tree.map(lambda x: 3 * x, state))


def naive(one: Decoder, prompt: list[int], n: int) -> list[int]:
    """Greedy, by a forward pass over everything for each token."""
    whole = whole_pass(one.program)
    for _ in range(n):
        padded = np.zeros((1, 24), np.int32)  # what follows is not seen
        padded[0, : len(prompt)] = prompt
        prompt = [*prompt, int(whole(one.params, padded)[0, len(prompt) - 1, 0].argmax())]
    return prompt[-n:]


@functools.cache
def whole_pass(program: train.Program) -> Any:
    return jax.jit(lambda params, inputs: program.model.apply(params, inputs)[0])


PROMPTS = ([104, 101, 108, 108, 111], [32], [60, 61, 62])


def test_greedy_tokens_are_those_of_whole_forward_passes():
    one = decoder()
    state = one.prefill(PROMPTS, 64)
    first, state = one.generate(state, 5)
    more, state = one.generate(state, 3)
    got = np.concatenate([first, more], axis=1)
    for row, prompt in enumerate(PROMPTS):
        assert got[row].tolist() == naive(one, list(prompt), 8)
    assert state.length_b.tolist() == [13, 9, 11] and got.dtype == np.int32


def test_a_prompt_says_what_its_tokens_say():
    one = decoder()
    whole = one.prefill([PROMPTS[0]], 64)
    out, _ = one.program.model.apply(one.params, jnp.asarray([PROMPTS[0]]))
    np.testing.assert_allclose(whole.logits_bv[0], out[0, -1, 0], atol=1e-4)


def test_tokens_may_be_given_between():
    one = decoder()
    _, state = one.generate(one.prefill(PROMPTS, 64), 4)
    more = ([7, 8, 9], [], [5])
    said = np.asarray(state.logits_bv)
    state = one.read(state, more)
    assert state.length_b.tolist() == [12, 5, 8]
    np.testing.assert_array_equal(state.logits_bv[1], said[1])
    for row, (prompt, given) in enumerate(zip(PROMPTS, more, strict=True)):
        tokens = [*prompt, *naive(one, list(prompt), 4), *given]
        out, _ = one.program.model.apply(one.params, jnp.asarray([tokens]))
        np.testing.assert_allclose(state.logits_bv[row], out[0, -1, 0], atol=1e-4)
    for wrong, says in (
        ([[1]], "there are 3 sequences, and tokens for 1"),
        ([[1] * 53, [], []], "65 tokens does not fit into 64"),
        ([[256], [], []], "below"),
    ):
        with pytest.raises(ValueError, match=says):
            one.read(state, wrong)


QUANTISED = {"kv_quant": "int8", "kv_group": 16, "kv_tail": 16}


@pytest.mark.parametrize("changes", [{}, {"window": 6}, {"window": 20}, QUANTISED], ids=str)
def test_a_cache_grows(changes):
    one = decoder(**changes)
    prompt = [list(range(40, 52))]
    whole, _ = one.generate(one.prefill(prompt, 64), 40)
    state = one.prefill(prompt, 16)
    parts = []
    for room, n in ((16, 4), (32, 9), (64, 27)):
        state = one.grown(state, room)
        assert cache.nbytes(state.kept) == one.cache_bytes(1, room)
        tokens, state = one.generate(state, n)
        parts.append(tokens)
    assert np.array_equal(np.concatenate(parts, axis=1), whole)
    with pytest.raises(ValueError, match="capacity=32 must be at least 64"):
        one.grown(state, 32)


def test_draws_go_by_seed_sequence_and_position():
    one, hot = decoder(), Sampling(temperature=1.5)

    def run(seed: int, cuts: tuple[int, ...], prompts: Any = PROMPTS) -> np.ndarray:
        state, parts = one.prefill(prompts, 64), []
        for n in cuts:
            tokens, state = one.generate(state, n, hot, seed=seed)
            parts.append(tokens)
        return np.concatenate(parts, axis=1)

    assert np.array_equal(run(1, (8,)), run(1, (3, 5)))
    assert not np.array_equal(run(1, (8,)), run(2, (8,)))
    assert np.array_equal(run(1, (8,))[:1], run(1, (8,), PROMPTS[:1]))


def test_every_position_has_a_draw_of_its_own():
    one = decoder()
    flat = Decoder(one.program, jax.tree.map(jnp.zeros_like, one.params))
    tokens, _ = flat.generate(flat.prefill(PROMPTS, 64), 50, Sampling(1.0))
    # 150 draws of 256 equal tokens: 113 different ones are expected
    assert len(np.unique(tokens)) > 90


def test_a_sequence_ends_at_its_stop_token():
    one = decoder()
    want = naive(one, list(PROMPTS[0]), 8)
    stop = want[2]
    end = want.index(stop)
    tokens, state = one.generate(one.prefill(PROMPTS[:1], 64), 8, stop=stop)
    assert tokens[0].tolist() == [*want[: end + 1], *[-1] * (7 - end)]
    assert state.length_b.tolist() == [len(PROMPTS[0]) + end + 1] and state.over_b.tolist() == [
        True
    ]
    again, state = one.generate(state, 2, stop=stop)
    assert again.tolist() == [[-1, -1]] and state.length_b.tolist() == [5 + end + 1]


def test_what_does_not_fit_is_refused_before():
    one = decoder()
    state = one.prefill(PROMPTS, 64)
    with pytest.raises(ValueError, match="n_new=60 does not fit: 5 of 64"):
        one.generate(state, 60)
    with pytest.raises(ValueError, match="n_new=0"):
        one.generate(state, 0)
    with pytest.raises(ValueError, match="stop=9999 is no token; they are 0 to 255"):
        one.generate(state, 1, stop=9999)
    with pytest.raises(TypeError, match="cannot be interpreted as an integer"):
        one.generate(state, 1.5)
    assert isinstance(one.generate(state, 59)[1], State)
    for use in (lambda: one.generate(state, 1), lambda: one.read(state, [[1], [], []])):
        with pytest.raises(ValueError, match="this state is used up"):
            use()
    for prompts, says in (
        ([], "no prompt"),
        ([[]], "t at least 1"),
        ([[1], []], "t at least 1"),
        ([[[1]]], "must be ids"),
        ([[1] * 65], "65 tokens does not fit into 64"),
        ([[256]], "below"),
        ([[-1]], "at least 0"),
        ([[1.5]], "integer ids, not float64"),
        ([[1], [True]], "integer ids, not bool"),
        ([[1, [2]]], "ids .t., and are nested"),
    ):
        with pytest.raises(ValueError, match=says):
            one.prefill(prompts, 64)


def test_room_is_a_power_of_two_or_what_has_been_learned():
    one = decoder()
    assert [one.capacity(n) for n in (1, 64, 65, 1000)] == [64, 64, 128, 1024]
    learned = decoder(positions="learned")
    assert learned.capacity(3) == 24
    with pytest.raises(ValueError, match="25 tokens, but the model has learned 24"):
        learned.capacity(25)


def test_the_bytes_are_those_of_the_arrays():
    one = decoder()
    state = one.prefill(PROMPTS, 64)
    assert one.cache_bytes(3, 64) == cache.nbytes(state.kept) == 3 * 64 * 2 * 2 * 4 * 4


@pytest.mark.parametrize(
    ("task", "says"),
    [("histogram", "does not predict its next token"), ("taps", "does not predict")],
)
def test_tasks_without_a_next_token_are_refused(task, says):
    with pytest.raises(ValueError, match=says):
        decoder(task, **({"qk_from": "content"} if task == "taps" else {}))


def test_models_that_need_later_tokens_are_refused():
    spec = dataclasses.replace(SPEC, mask="full")
    with pytest.raises(ValueError, match="only a causal task decodes"):
        built = build(model_of(), spec)
        built.init_cache(built.init(jax.random.key(0)), 1, 6)
    with pytest.raises(ValueError, match="only 6 positions are learned"):
        built = build(model_of(), SPEC)
        built.init_cache(built.init(jax.random.key(0)), 1, 7)
    with pytest.raises(ValueError, match="query token"):
        built = build(model_of(), dataclasses.replace(SPEC, query_token=True))
        built.init_cache(built.init(jax.random.key(0)), 1, 6)


LOGITS = jnp.log(jnp.array([[0.5, 0.25, 0.15, 0.06, 0.04]]))


@pytest.mark.parametrize(
    ("how", "kept"),
    [
        (Sampling(1.0), 5),
        (Sampling(1.0, top_k=2), 2),
        (Sampling(1.0, top_k=9), 5),
        (Sampling(1.0, top_p=0.5), 1),
        (Sampling(1.0, top_p=0.51), 2),
        (Sampling(1.0, top_p=0.9), 3),
        (Sampling(1.0, top_p=1e-9), 1),
        (Sampling(1.0, top_k=4, top_p=0.8), 3),
        (Sampling(9.0, top_p=0.5), 3),  # a higher temperature makes it flatter first
    ],
)
def test_what_may_be_drawn(how, kept):
    drawn = {int(how.draw(LOGITS, jax.random.key(i))[0]) for i in range(300)}
    assert drawn <= set(range(kept))
    shares = jax.nn.softmax(how.filtered(LOGITS))[0]
    assert int((shares > 0).sum()) == kept
    want = np.exp(np.asarray(LOGITS[0], np.float64) / how.temperature)
    want[kept:] = 0
    np.testing.assert_allclose(shares, want / want.sum(), atol=1e-6)


@pytest.mark.parametrize(
    ("how", "kept"), [(Sampling(1.0, top_k=1), [0]), (Sampling(1.0, top_p=0.41), [0, 1, 2])]
)
def test_of_equal_logits_the_first_are_the_likeliest(how, kept):
    drawn = {int(how.draw(jnp.zeros((1, 5)), jax.random.key(i))[0]) for i in range(100)}
    assert drawn == set(kept)


@pytest.mark.parametrize("temperature", [1e-45, 1e-38, 1e-30, 1e-3])
def test_a_temperature_near_0_is_greedy(temperature):
    # Over such a temperature 5 is infinite too, and stands before the largest.
    logits = jnp.array([[0.5, 5.0, 9.0, 4.0], [-7.0, -7.5, -9.0, -8.0]])
    assert Sampling(temperature).draw(logits, jax.random.key(0)).tolist() == [2, 0]


def test_draws_have_the_shares_of_the_softmax():
    n = 20_000
    drawn = Sampling(2.0).draw(jnp.repeat(LOGITS, n, axis=0), jax.random.key(0))
    want = np.sqrt([0.5, 0.25, 0.15, 0.06, 0.04])
    want /= want.sum()
    counts = np.bincount(drawn, minlength=5)
    # four standard deviations of each count
    assert (np.abs(counts - n * want) < 4 * np.sqrt(n * want * (1 - want))).all()
    assert Sampling().draw(jnp.zeros((2, 5)), jax.random.key(0)).tolist() == [0, 0]


@pytest.mark.parametrize(
    "wrong",
    [
        *({"temperature": x} for x in (-1.0, float("nan"), float("inf"))),
        *({"top_p": x} for x in (0.0, 1.5, float("nan"))),
        {"top_k": -1},
    ],
    ids=str,
)
def test_sampling_refuses(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Sampling(**wrong)

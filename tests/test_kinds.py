"""Latents, tied keys and values, few bits, sink logits and borrowed keys, against the equations of
their papers in numpy, float64, one head and one query at a time."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from shapes import model_of, spec_of

from mha_jax import mixers
from mha_jax.attention import core, fast
from mha_jax.attention.positions import BASE
from mha_jax.attention.quantised import Quantised
from mha_jax.attention.stops import Context
from mha_jax.model import build

B, T = 2, 19  # above fast.SHORT_LENGTH
ROPE = {"positions": "rope"}


def mixer(**changes: Any) -> tuple[Any, dict[str, np.ndarray], np.ndarray]:
    """A layer's mixer, its parameters as random numbers, and an input [b, t, d]."""
    model = model_of(**changes)
    made = mixers.module(model.layers[0].mixer).Mixer(model.layers[0], model, key=jax.random.key(0))
    rng, drawn = np.random.default_rng(0), {}
    for name, old in nnx.to_pure_dict(nnx.state(made, nnx.Param)).items():
        drawn[name] = rng.normal(size=old.shape) * (0.4 if old.ndim > 1 else 1.0)
        getattr(made, name)[...] = jnp.asarray(drawn[name], jnp.float32)
    return made, drawn, rng.normal(size=(B, T, model.d_model))


def rms(x: np.ndarray, scale: np.ndarray | None) -> np.ndarray:
    return x if scale is None else x / np.sqrt((x**2).mean() + 1e-6) * scale


def turned(x: np.ndarray, position: int) -> np.ndarray:
    """RoFormer's rotation of the pairs (i, i + h/2), as complex numbers."""
    half = len(x) // 2
    angle = position * BASE ** (-np.arange(half) / half)
    z = (x[:half] + 1j * x[half:]) * np.exp(1j * angle)
    return np.concatenate([z.real, z.imag])


def attended(q: Any, keys: Any, values: Any, scale: float, sink: float | None) -> np.ndarray:
    """Softmax with, for a sink, one more column, whose value is zero (Xiao et al. 2023)."""
    scores = [scale * q @ key for key in keys] + ([] if sink is None else [sink])
    weights = np.exp(np.array(scores) - max(scores))
    weights /= weights.sum()
    return sum(w * v for w, v in zip(weights, values, strict=False))


def seen(t: int, window: int, n_sinks: int) -> list[int]:
    return [s for s in range(t + 1) if not window or t - s < window or s < n_sinks]


def written(z: np.ndarray, x: np.ndarray, p: dict[str, np.ndarray]) -> np.ndarray:
    """The gate and the output map, of all heads of one token."""
    if "wg" in p:
        z = z / (1 + np.exp(-(x @ p["wg"] + p.get("bg", 0))))
    return z @ p["wo"] + p.get("bo", 0)


def by_hand_mla(p: dict[str, np.ndarray], x_btd: np.ndarray, like: Any) -> np.ndarray:
    """DeepSeek-V2, equations 9 to 19 and 37 to 47; with more latents than one GLA."""
    n, k, h, e = like.n_heads, like.n_kv_heads, like.d_head, like.d_rope
    out_btd = np.zeros((B, T, p["wo"].shape[1]))
    for b in range(B):
        latents, rotated = [], []
        for t in range(T):
            c_kc = (x_btd[b, t] @ p["wc"] + p.get("bc", 0)).reshape(k, -1)
            latents.append([rms(c, p.get("c_norm")) for c in c_kc])
            rotated.append(turned(x_btd[b, t] @ p["wkr"], t) if e else np.zeros(0))
        for t in range(T):
            from_q = x_btd[b, t]
            if "wcq" in p:
                from_q = rms(from_q @ p["wcq"], p.get("cq_norm"))
            z = []
            for i in range(n):
                of_i, j = slice(i * h, (i + 1) * h), i // (n // k)
                q = (from_q @ p["wq"] + p.get("bq", 0))[of_i]
                q_rope = turned((from_q @ p["wqr"])[i * e : (i + 1) * e], t) if e else []
                read = seen(t, like.mask.window, like.mask.n_sinks)
                keys = [
                    np.concatenate([latents[s][j] @ p["wuk"][:, of_i], rotated[s]]) for s in read
                ]
                values = [latents[s][j] @ p["wuv"][:, of_i] for s in read]
                sink = p["sink"][i] if "sink" in p else None
                scale = (h + e) ** -0.5
                z.append(attended(np.concatenate([q, q_rope]), keys, values, scale, sink))
            out_btd[b, t] = written(np.concatenate(z), x_btd[b, t], p)
    return out_btd


def by_hand_gta(p: dict[str, np.ndarray], x_btd: np.ndarray, like: Any) -> np.ndarray:
    """Zadouri et al. 2025, section 3.3: K = [KV[:h/2], RoPE(K_R)], V = KV."""
    n, k, h = like.n_heads, like.n_kv_heads, like.d_head
    turn = turned if like.rope else lambda x, t: x
    out_btd = np.zeros((B, T, p["wo"].shape[1]))
    for b in range(B):
        tied = [(x @ p["wkv"] + p.get("bkv", 0)).reshape(k, h) for x in x_btd[b]]
        shared = [turn(x @ p["wkr"] + p.get("bkr", 0), t) for t, x in enumerate(x_btd[b])]
        for t in range(T):
            z = []
            for i in range(n):
                q, j = (x_btd[b, t] @ p["wq"] + p.get("bq", 0))[i * h : (i + 1) * h], i // (n // k)
                q = np.concatenate([q[: h // 2], turn(q[h // 2 :], t)])
                read = seen(t, like.mask.window, like.mask.n_sinks)
                keys = [np.concatenate([tied[s][j][: h // 2], shared[s]]) for s in read]
                sink = p["sink"][i] if "sink" in p else None
                z.append(attended(q, keys, [tied[s][j] for s in read], h**-0.5, sink))
            out_btd[b, t] = written(np.concatenate(z), x_btd[b, t], p)
    return out_btd


def by_hand_grouped(p: dict[str, np.ndarray], x_btd: np.ndarray, like: Any) -> np.ndarray:
    n, k, h = like.n_heads, like.n_kv_heads, like.d_head
    out_btd = np.zeros((B, T, p["wo"].shape[1]))
    for b in range(B):
        for t in range(T):
            z, read = [], seen(t, like.mask.window, like.mask.n_sinks)
            for i in range(n):
                q, j = (x_btd[b, t] @ p["wq"])[i * h : (i + 1) * h], i // (n // k)
                keys, values = (
                    [(x_btd[b, s] @ p[w])[j * h : (j + 1) * h] for s in read] for w in ("wk", "wv")
                )
                sink = p["sink"][i] if "sink" in p else None
                z.append(attended(q, keys, values, h**-0.5, sink))
            out_btd[b, t] = written(np.concatenate(z), x_btd[b, t], p)
    return out_btd


MLA = {"mixer": "mla", "n_kv_heads": 1, "d_latent": 6}
TURNED = {**ROPE, "d_rope": 2}
ALL = {"qk_norm": True, "bias": True, "gate": True, "sink_logit": True}
CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "MLA": (by_hand_mla, {**MLA}),
    "MLA, rope": (by_hand_mla, {**MLA, **TURNED}),
    "MLA, query latent, all": (by_hand_mla, {**MLA, **TURNED, **ALL, "d_latent_q": 7}),
    "MLA, sinks and window": (by_hand_mla, {**MLA, **TURNED, "window": 4, "n_sinks": 2}),
    "GLA": (by_hand_mla, {**MLA, **TURNED, "n_kv_heads": 2}),
    "GLA, all": (by_hand_mla, {**MLA, **TURNED, **ALL, "n_kv_heads": 2, "d_latent_q": 7}),
    "GTA": (by_hand_gta, {"mixer": "gta", "n_kv_heads": 2}),
    "GTA, rope, all": (
        by_hand_gta,
        {"mixer": "gta", "n_kv_heads": 2, **ROPE, **ALL, "qk_norm": False, "window": 5},
    ),
    "GTA, one head": (by_hand_gta, {"mixer": "gta", "n_kv_heads": 1, **ROPE}),
    "sink, MHA": (by_hand_grouped, {"sink_logit": True}),
    "sink, GQA, window": (by_hand_grouped, {"sink_logit": True, "n_kv_heads": 2, "window": 3}),
}


@functools.cache
def both_forms(name: str) -> tuple[Any, dict[str, np.ndarray], np.ndarray, Any, Any, Any]:
    by_hand, changes = CASES[name]
    made, p, x = mixer(**changes)
    x32 = jnp.asarray(x, jnp.float32)
    plain, (looked, weights) = jax.jit(lambda x: (made(x), made(x, return_weights=True)))(x32)
    return made, p, x, by_hand(p, x, made), plain, (looked, weights)


@pytest.mark.parametrize("name", CASES)
def test_both_forms_are_the_equations_of_the_paper(name: str, assert_close: Any) -> None:
    made, p, _, expected, plain, (looked, weights_bnts) = both_forms(name)
    assert_close(plain, expected)  # MLA: the keys and values of every head
    assert_close(looked, expected)  # MLA: queries that read latents
    total_bnt = np.asarray(weights_bnts.sum(-1))
    if "sink" in p:
        assert (total_bnt < 1).all()
    else:
        assert_close(total_bnt, np.ones_like(total_bnt))


def test_a_short_sequence_has_the_sink_too(assert_close: Any) -> None:
    made, _, x, expected, _, _ = both_forms("sink, GQA, window")
    short = fast.SHORT_LENGTH - 3
    assert_close(made(jnp.asarray(x[:, :short], jnp.float32)), expected[:, :short])


def test_masks_of_kv_heads_are_masks_of_latents(assert_close: Any) -> None:
    made, _, x, *_ = both_forms("GLA, all")
    rows = jnp.asarray(x.reshape(B * T, -1), jnp.float32)
    context = Context(core.Mask(), kv_mask=jnp.array([0.3, 1.0]), head_mask=jnp.arange(4.0))
    looking = context._replace(wants_stops=True)

    def mixed(rows: jax.Array) -> Any:
        plain, _ = made.mix(rows, b=B, t=T, context=context)
        return plain, *made.mix(rows, b=B, t=T, context=looking)

    plain, looked, stops = jax.jit(mixed)(rows)
    assert_close(plain, looked)
    heads = stops["head_out_btnd"].sum(2).reshape(B * T, -1) + made.bo[...][None]
    assert_close(heads, looked)


# --- few bits ----------------------------------------------------------------------------------


def in_few_bits(x: np.ndarray, bits: int) -> np.ndarray:
    """One set of numbers, KIVI's equation 1: round((x - min) / step) * step + min."""
    step = (x.max() - x.min()) / (2**bits - 1)
    return x if step == 0 else np.round((x - x.min()) / step) * step + x.min()


def kivi(q_tnh: Any, k_skh: Any, v_skh: Any, how: Quantised, scale: float) -> np.ndarray:
    """z [t, n, h] of one sequence: each query as decoding finds the cache when it stands there."""
    t, n, _ = q_tnh.shape
    z = np.zeros_like(q_tnh)
    for at in range(t):
        old = max(at + 1 - how.tail, 0) // how.group * how.group
        keys, values = k_skh[: at + 1].copy(), v_skh[: at + 1].copy()
        for start in range(0, old, how.group):
            tokens = slice(start, start + how.group)
            for head, channel in np.ndindex(keys.shape[1:]):
                keys[tokens, head, channel] = in_few_bits(keys[tokens, head, channel], how.bits)
        for token, head in np.ndindex(old, values.shape[1]):
            values[token, head] = in_few_bits(values[token, head], how.bits)
        for i in range(n):
            j = i // (n // keys.shape[1])
            z[at, i] = attended(q_tnh[at, i], keys[:, j], values[:, j], scale, None)
    return z


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize(("group", "tail"), [(4, 4), (3, 0), (1, 2), (5, 20)])
def test_few_bits_are_those_of_kivi(bits: int, group: int, tail: int, assert_close: Any) -> None:
    how, rng = Quantised(bits, group, tail), np.random.default_rng(0)
    q, k, v = (rng.normal(size=size) for size in ((T, 4, 6), (T, 2, 6), (T, 2, 6)))
    arrays = [jnp.asarray(x[None], jnp.float32) for x in (q.reshape(T, 2, 2, 6), k, v)]
    mask = core.Mask()

    def both(q: jax.Array, k: jax.Array, v: jax.Array) -> Any:
        found = how.reference(q, k, v, mask, 0.5, lambda _, x: x, None)
        return found.z_btkgh, core.reference(q, k, v, mask, 0.5).z_btkgh

    found_btkgh, plain_btkgh = jax.jit(both)(*arrays)
    assert_close(found_btkgh[0].reshape(T, 4, 6), kivi(q, k, v, how, 0.5))
    if tail < T:  # it is seen at all, and ends where the tail begins
        assert np.abs(found_btkgh - plain_btkgh).max() > 1e-4
    n_same = tail + group - 1
    assert_close(found_btkgh[:, :n_same], plain_btkgh[:, :n_same])


def test_numbers_of_a_set_are_off_by_half_a_step_at_most(assert_close: Any) -> None:
    x = jnp.asarray(np.random.default_rng(0).normal(size=(3, 8, 5)), jnp.float32)
    for bits in (8, 4):
        how = Quantised(bits, 8, 0)
        number, step, low = how.codes(x, 1)
        assert number.dtype == jnp.uint8 and step.shape == low.shape == (3, 1, 5)
        assert (number.min(), number.max()) == (0, 2**bits - 1)
        assert (jnp.abs(how.seen_as(x, 1) - x) <= step / 2 + 1e-6).all()
        ends = jnp.sort(how.seen_as(x, 1), axis=1)[:, [0, -1]]
        assert_close(ends, jnp.sort(x, axis=1)[:, [0, -1]])
        assert_close(how.seen_as(jnp.full((3, 8, 5), 0.7), 1), jnp.full((3, 8, 5), 0.7))


def test_rounding_passes_gradients_on_unchanged(assert_close: Any) -> None:
    """Of the loss they are what they would be at the numbers that are seen."""
    how, rng = Quantised(4, 4, 0), np.random.default_rng(0)
    x, w = (jnp.asarray(rng.normal(size=(2, 8, 3)), jnp.float32) for _ in range(2))

    def loss(seen: jax.Array) -> jax.Array:
        return (w * jnp.sin(seen)).sum()

    found = jax.grad(lambda x: loss(how.seen_as(x, 1)))(x)
    assert_close(found, jax.grad(loss)(how.seen_as(x, 1)))
    q, k, v = (jnp.asarray(rng.normal(size=(1, 12, 2, 4)), jnp.float32) for _ in range(3))

    def attention(k: jax.Array, v: jax.Array) -> jax.Array:
        z = how.reference(q[:, :, :, None], k, v, core.Mask(), 0.5, lambda _, x: x, None).z_btkgh
        return jnp.square(z).sum()

    # None of it is cut off: also the oldest key and value get some.
    for gradient in jax.jit(jax.grad(attention, argnums=(0, 1)))(k, v):
        assert (jnp.abs(gradient).max(axis=(0, 2, 3)) > 1e-4).all()


# --- keys and values of another layer ------------------------------------------------------------


@functools.cache
def lending() -> tuple[Any, Any, jax.Array]:
    spec = model_of(2, n_kv_heads=2, residual=True, norm="rms", **ROPE)
    first, second = spec.layers
    spec = dataclasses.replace(spec, layers=(first, dataclasses.replace(second, kv_from=0)))
    built = build(spec, spec_of(length=T))
    inputs = jax.random.randint(jax.random.key(1), (B, T), 0, 11)
    return built, built.init(jax.random.key(0)), inputs


def test_a_layer_reads_the_keys_and_values_of_its_lender(assert_close: Any) -> None:
    built, params, inputs = lending()
    assert set(params["layers"]["1"]["mixer"]) == {"wq", "wo"}
    outputs, (lender, borrower) = jax.jit(
        lambda params, inputs: built.apply(params, inputs, probe=lambda stops: stops)
    )(params, inputs)
    x_btd = np.asarray(borrower["resid_btd"], np.float64)
    p = {name: np.asarray(w, np.float64) for name, w in params["layers"]["1"]["mixer"].items()}
    keys, values = (np.asarray(lender[stop], np.float64) for stop in ("k_bskh", "v_bskh"))
    after = x_btd.copy()
    for b, t in np.ndindex(B, T):
        normed = rms(x_btd[b, t], np.ones(16))
        q_nh = (normed @ p["wq"]).reshape(4, 4)
        z = [
            attended(turned(q_nh[i], t), keys[b, : t + 1, i // 2], values[b, :, i // 2], 0.5, None)
            for i in range(4)
        ]
        after[b, t] += np.concatenate(z) @ p["wo"]
    final = after / np.sqrt((after**2).mean(-1, keepdims=True) + 1e-6)
    expected = final @ np.asarray(params["readout"]["out"]["w"], np.float64)
    assert_close(outputs.reshape(B, T, -1), expected)


def test_the_lender_learns_from_the_borrower(assert_close: Any) -> None:
    """With the lender's own output at zero its keys and values matter to the borrower alone."""
    built, params, inputs = lending()
    layers = params["layers"]
    silent = {**layers["0"]["mixer"], "wo": jnp.zeros_like(layers["0"]["mixer"]["wo"])}

    @jax.jit
    def loss(kv: dict[str, jax.Array]) -> jax.Array:
        mixer = {**silent, **kv}
        tree = {**params, "layers": {**layers, "0": {**layers["0"], "mixer": mixer}}}
        return jnp.square(built.apply(tree, inputs)[0]).mean()

    kv = {name: silent[name] for name in ("wk", "wv")}
    gradient = jax.jit(jax.grad(loss))(kv)
    for name, x in gradient.items():
        direction = x / jnp.linalg.norm(x)
        ends = [loss({**kv, name: kv[name] + e * direction}) for e in (1e-2, -1e-2)]
        # A difference quotient in float32: two to three digits.
        slope = float(jnp.linalg.norm(x))
        assert float(ends[0] - ends[1]) / 2e-2 == pytest.approx(slope, rel=2e-2)
        assert slope > 1e-3

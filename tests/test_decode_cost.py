"""The cost of decoding against published tables, counts by hand, real arrays and programs."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import sys
import types
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from shapes import SPEC, model_of, spec_of

from mha_jax import budget, cost, decode_cost, train
from mha_jax.accelerators import ACCELERATORS
from mha_jax.attention.cache import nbytes
from mha_jax.config import ModelSpec
from mha_jax.decode import Decoder
from mha_jax.decode_cost import Experts, LanguageModel
from mha_jax.layer_cost import decode_flops_per_key, mixer_cost
from mha_jax.model import build
from tests.synthetic import static

BF16 = {"positions": "rope", "cache_dtype": "bfloat16"}


def per_token(model: ModelSpec, context: int = 4096) -> float:
    return cost.kv_bytes_per_token(model, context)


def clustered(n_layers: int, f: int, **changes: Any) -> ModelSpec:
    """Every f layers share the keys and values of their first one."""
    model = model_of(n_layers, **BF16, **changes)
    layers = [
        dataclasses.replace(layer, kv_from=None if i % f == 0 else i // f * f)
        for i, layer in enumerate(model.layers)
    ]
    return dataclasses.replace(model, layers=tuple(layers))


# Brandon et al. 2024 (arXiv:2405.12981), models of 1B, 20 layers: d_head, heads, kv heads, layers
# that share keys and values, bytes a token at 16 bits.
CLA = [
    (128, 16, 16, 1, 163840),
    (128, 16, 4, 1, 40960),
    (128, 16, 2, 1, 20480),
    (128, 16, 1, 1, 10240),
    (64, 32, 1, 1, 5120),
    (46, 45, 1, 1, 3680),
    (32, 64, 1, 1, 2560),
    (512, 4, 1, 2, 20480),
    (256, 8, 1, 2, 10240),
    (128, 16, 1, 2, 5120),
    (90, 22, 1, 2, 3600),
    (64, 32, 1, 2, 2560),
    (256, 8, 4, 2, 40960),
    (128, 16, 4, 2, 20480),
    (128, 16, 2, 2, 10240),
    (128, 16, 1, 3, 3584),
    (128, 16, 1, 4, 2560),
]


@pytest.mark.parametrize(("h", "n", "k", "f", "published"), CLA)
def test_bytes_a_token_of_brandon_2024(h: int, n: int, k: int, f: int, published: int) -> None:
    model = clustered(20, f, d_model=2048, n_heads=n, n_kv_heads=k, d_head=h)
    assert per_token(model) == published
    # Each layer reads, whether it keeps or borrows.
    assert cost.kv_bytes_read(model, 4096) == 4096 * 20 * 2 * k * h * 2


LATENT = {"mixer": "mla", "d_rope": 64}
# Zadouri, Strauss and Dao 2025 (arXiv:2505.21487): bytes a token and layer on each of one and of
# two devices; 16 heads of 128.
GLA: list[tuple[dict[str, Any], int, int]] = [
    ({"n_kv_heads": 16}, 8192, 4096),
    ({"n_kv_heads": 4}, 2048, 1024),
    ({"n_kv_heads": 1, "d_latent": 512, **LATENT}, 1152, 1152),
    ({"n_kv_heads": 2, "d_latent": 256, **LATENT}, 1152, 640),
    ({"n_kv_heads": 4, "mixer": "gta"}, 1152, 640),
]


@pytest.mark.parametrize(("changes", "alone", "of_two"), GLA)
def test_bytes_a_token_and_layer_of_zadouri_2025(
    changes: dict[str, Any], alone: int, of_two: int
) -> None:
    model = model_of(1, **BF16, d_model=2048, n_heads=16, d_head=128, **changes)
    assert decode_cost.shard(model, 1) == model
    assert per_token(model) == alone
    assert per_token(decode_cost.shard(model, 2)) == of_two


def test_devices_copy_kv_heads_where_there_are_too_few() -> None:
    model = model_of(1, n_heads=12, n_kv_heads=4)
    shared = decode_cost.shard(model, 2).layers[0], decode_cost.shard(model, 12).layers[0]
    assert [(x.n_heads, x.n_kv_heads) for x in shared] == [(6, 2), (1, 1)]
    for n, says in ((5, "12 heads"), (6, "4 kv heads"), (24, "24 devices")):
        with pytest.raises(ValueError, match=says):
            decode_cost.shard(model, n)


# DeepSeek-AI 2024 (arXiv:2405.04434), table 9: numbers a token, given there as 110.6K and 15.6K
# (27 layers, 16 heads of 128), 860.2K (60 layers; 56 heads of 128 give that) and 34.6K.
@pytest.mark.parametrize(
    ("n_layers", "changes", "numbers"),
    [
        (27, {"n_heads": 16, "n_kv_heads": 16}, 110592),
        (27, {"n_heads": 16, "n_kv_heads": 1, "d_latent": 512, **LATENT}, 15552),
        (60, {"n_heads": 56, "n_kv_heads": 56}, 860160),
        (60, {"n_heads": 128, "n_kv_heads": 1, "d_latent": 512, **LATENT}, 34560),
    ],
)
def test_numbers_a_token_of_deepseek_v2(
    n_layers: int, changes: dict[str, Any], numbers: int
) -> None:
    assert per_token(model_of(n_layers, **BF16, d_head=128, **changes)) == 2 * numbers


# Bytes a token and layer at 16 bits of the ways to shrink a cache: 32 heads of 128, 8 kv heads
# where they are shared, 4096 tokens. By hand.
WAYS: list[tuple[str, dict[str, Any], float, float]] = [
    ("MHA", {"n_kv_heads": 32}, 16384, 1),
    ("MQA", {"n_kv_heads": 1}, 512, 1 / 32),
    ("GQA", {}, 4096, 1 / 4),
    ("shared K=V", {"share": "kv"}, 2048, 1 / 8),
    ("MLA", {"n_kv_heads": 1, "d_latent": 512, **LATENT}, 1152, 9 / 128),
    ("GLA-2", {"n_kv_heads": 2, "d_latent": 256, **LATENT}, 1152, 9 / 128),
    ("GTA", {"mixer": "gta"}, 2176, 17 / 128),
    ("window", {"window": 1024}, 1024, 1 / 16),
    ("sinks and window", {"window": 1024, "n_sinks": 4}, 1028, 257 / 4096),
    # 4096 tokens in 4 bits 1024, steps and smallest values 32 + 32, 128 tokens as they are 128.
    ("int4", {"kv_quant": "int4", "kv_group": 128, "kv_tail": 0}, 1216, 19 / 256),
    ("int8", {"kv_quant": "int8", "kv_group": 128, "kv_tail": 0}, 2240, 35 / 256),
    ("gate, sink logit", {"gate": True, "sink_logit": True}, 4096, 1 / 4),
]


@pytest.mark.parametrize(
    ("changes", "size", "ratio"), [x[1:] for x in WAYS], ids=[x[0] for x in WAYS]
)
def test_bytes_of_each_way_to_shrink_the_cache(
    changes: dict[str, Any], size: float, ratio: float
) -> None:
    common = {"d_model": 4096, "n_heads": 32, "n_kv_heads": 8, "d_head": 128, **BF16}
    model = model_of(1, **{**common, **changes})
    assert per_token(model) == size
    assert decode_cost.ratio_to_mha(model, 4096) == ratio


def test_bytes_of_layers_that_differ() -> None:
    common = {"n_heads": 32, "d_head": 128, **BF16}

    def layers(*changed: dict[str, Any]) -> ModelSpec:
        each = tuple(model_of(1, **common, **changes).layers[0] for changes in changed)
        return dataclasses.replace(model_of(1, **common), layers=each)

    local, whole = {"n_kv_heads": 8, "window": 1024}, {"n_kv_heads": 8}
    assert per_token(layers({"n_kv_heads": 8}, {"n_kv_heads": 4}, {"n_kv_heads": 2})) == 512 * 14
    assert per_token(layers(local, local, local, whole)) == 3 * 1024 + 4096
    # Trailing layers that share, and YOCO: the upper half reads one layer.
    assert per_token(layers(whole, whole, {**whole, "kv_from": 1}, {**whole, "kv_from": 1})) == 8192
    yoco = layers(local, local, whole, {**whole, "kv_from": 2})
    assert per_token(yoco) == 2 * 1024 + 4096
    assert cost.kv_bytes_read(yoco, 4096) == (2 * 1024 + 2 * 4096) * 4096


NEXT = dataclasses.replace(SPEC, outputs=("next",), output_size=11, autoregressive=True)
PLAIN = {"d_model": 16, "n_heads": 4, "d_head": 4, "d_ff": 24, "positions": "rope"}


def by_hand(changes: dict[str, Any], t: int) -> tuple[int, list[int]]:
    """Operations of a prompt of t tokens, and of each one after a cache: one product at a time."""
    n, k, h, d, f = 4, changes.get("n_kv_heads", 4), 4, 16, 24
    window, sinks = changes.get("window", 0), changes.get("n_sinks", 0)
    weights = 0
    for rows, columns in ((d, n * h), (d, k * h), (d, k * h), (n * h, d), (d, f), (f, d)):
        weights += 2 * rows * columns
    steps = []
    for query in range(t):
        total = 2 * 2 * weights + 2 * d * 11  # an addition beside each product; two layers
        for key in range(query + 1):
            if not window or query - key < window or key < sinks:
                total += 2 * n * (2 * h + 2 * h)  # score, weighted value
        steps.append(total - 2 * weights)
    return sum(steps), steps


@pytest.mark.parametrize("t", [1, 5, 12])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"n_kv_heads": 1},
        {"window": 3},
        {"window": 3, "n_sinks": 2},
        {"window": 1, "n_sinks": 9},
    ],
    ids=str,
)
def test_operations_are_those_of_a_slow_count(changes: dict[str, Any], t: int) -> None:
    one = LanguageModel(model_of(2, **PLAIN, **changes), NEXT)
    prompt, steps = by_hand(changes, t)
    assert decode_cost.prefill_flops(one, t) == prompt
    assert [decode_cost.decode_flops(one, i + 1) for i in range(t)] == steps


def test_latents_are_read_as_they_are() -> None:
    """A key costs 2 (c + e) for the score and 2 c for the value in a step, and 2 (h + e) and 2 h
    over a whole prompt, where every head has keys of its own (DeepSeek-V2, section 2.1.2)."""
    changes = {"mixer": "mla", "n_kv_heads": 1, "d_latent": 8, "d_rope": 2, "d_latent_q": 6}
    model = model_of(1, **PLAIN, **changes)
    (layer,) = model.layers
    assert decode_flops_per_key(layer, model) == 4 * (2 * (8 + 2) + 2 * 8)
    assert mixer_cost(layer, model).flops_per_key == 4 * (2 * (4 + 2) + 2 * 4)
    one = LanguageModel(model, NEXT)
    steps = [decode_cost.decode_flops(one, context) for context in (5, 6)]
    assert steps[1] - steps[0] == decode_flops_per_key(layer, model)
    # wcq, wq and wqr; wc and wkr; wuk and wuv; wo; the MLP; the read-out
    matrices = 16 * 6 + 6 * 16 + 6 * 8 + 16 * 8 + 16 * 2 + 2 * 8 * 16 + 16 * 16 + 2 * 16 * 24 + 176
    assert steps[0] == 2 * matrices + 5 * decode_flops_per_key(layer, model)
    pairs = 1 + 2 + 3
    assert decode_cost.prefill_flops(one, 3) == 2 * matrices * 3 + pairs * 4 * 20


@pytest.mark.parametrize(
    "changes", [{"n_kv_heads": 2}, {"mixer": "mla", "n_kv_heads": 1, "d_latent": 8, "d_rope": 2}]
)
def test_operations_are_about_those_of_the_compiled_programs(changes: dict[str, Any]) -> None:
    """XLA counts norms, activations and softmax too, and scores of keys that no query sees: up to
    half as much again at this size."""
    b, t = 4, 16
    spec = dataclasses.replace(NEXT, length=t)
    common = {"d_model": 64, "d_ff": 128, "n_heads": 4, "d_head": 16, "positions": "rope"}
    model = model_of(2, **common, norm="rms", residual=True, kernel="reference", **changes)
    built, one = build(model, spec), LanguageModel(model, spec)
    params = jax.eval_shape(built.init, jax.random.key(0))
    kept = jax.eval_shape(lambda p: built.init_cache(p, b, t), params)
    ids, token = jax.ShapeDtypeStruct((b, t), jnp.int32), jax.ShapeDtypeStruct((b, 1), jnp.int32)
    length_b = jax.ShapeDtypeStruct((b,), jnp.int32)

    def whole(params: Any, ids: Any) -> Any:
        return built.apply(params, ids)[0]

    def step(params: Any, token: Any, kept: Any, length_b: Any) -> Any:
        return built.extend(params, token, kept, length_b, jnp.ones_like(length_b), t)

    for function, args, told in (
        (whole, (params, ids), b * decode_cost.prefill_flops(one, t)),
        (step, (params, token, kept, length_b), b * decode_cost.decode_flops(one, t)),
    ):
        measured = jax.jit(function).lower(*args).compile().cost_analysis()["flops"]
        assert told <= measured <= 1.5 * told


@functools.cache
def decoder(changes: tuple[tuple[str, Any], ...]) -> Decoder:
    spec = static("copy", 4, 2, 4, model={"d_model": 16, "positions": "rope", **dict(changes)})
    program = train.Program.of(spec)
    return Decoder(program, program.model.init(jax.random.key(0)))


READS: list[dict[str, Any]] = [
    {},
    {"positions": "learned"},
    {"bias": True, "norm": "layer", "gate": True, "sink_logit": True, "qk_norm": True},
    {"share": "kv"},
    {"kv_quant": "int4", "kv_group": 4, "kv_tail": 4},
    {"cache_dtype": "bfloat16"},
]


@pytest.mark.parametrize("changes", READS, ids=str)
def test_bytes_read_are_those_of_the_arrays(changes: dict[str, Any]) -> None:
    one = decoder(tuple(changes.items()))
    params = dict(one.params)
    tables = [params["encoder"]["embed"], params.get("positions")]
    want = nbytes(params) - nbytes(tables) + one.cache_bytes(3, 16)
    assert one.bytes_read_per_step(3, 16) == want
    described = LanguageModel(one.program.static.model, one.program.spec)
    assert decode_cost.weight_bytes(described, "float32") == nbytes(params)


def test_a_borrowed_cache_is_read_anew() -> None:
    model = model_of(2, **PLAIN)
    layers = model.layers[0], dataclasses.replace(model.layers[1], kv_from=0)
    one = LanguageModel(dataclasses.replace(model, layers=layers), NEXT)
    assert cost.kv_bytes_resident(one.model, 10) == 10 * 2 * 16 * 4
    weights = decode_cost.weight_bytes_read(one, 3, "float32")
    assert decode_cost.bytes_read(one, 3, 10, "float32") == weights + 3 * 2 * 10 * 2 * 16 * 4


def test_the_table_of_tokens_is_read_where_it_is_the_read_out() -> None:
    apart = LanguageModel(model_of(1, **PLAIN), NEXT)
    tied = dataclasses.replace(apart, tied=True)
    assert decode_cost.n_params(apart) - decode_cost.n_params(tied) == 11 * 16
    assert decode_cost.params_read(apart, 1) == decode_cost.params_read(tied, 1)
    assert decode_cost.params_read(tied, 1) == decode_cost.n_params(tied)
    more = dataclasses.replace(tied, more=7)
    assert decode_cost.params_read(more, 9) == decode_cost.params_read(tied, 1) + 7
    assert decode_cost.decode_flops(more, 3) == decode_cost.decode_flops(tied, 3)


def test_experts_that_a_batch_reads() -> None:
    """8 experts of 1000 weights, of which a token passes 2, and 500 that all pass."""
    model = model_of(1, **{**PLAIN, "d_ff": 0})
    plain, table = LanguageModel(model, NEXT), 11 * 16
    one = dataclasses.replace(plain, experts=Experts(always=500, each=1000, n=8, sent=2))
    assert decode_cost.n_params(one) == decode_cost.n_params(plain) + 500 + 8000
    assert decode_cost.n_params_active(one) == decode_cost.n_params(plain) + 500 + 2000
    rest = decode_cost.n_params(plain) - table + 500
    pairs = list(itertools.combinations(range(8), 2))
    for b in (1, 2, 3):
        touched = [len(set().union(*chosen)) for chosen in itertools.product(pairs, repeat=b)]
        assert decode_cost.params_read(one, b) == round(rest + 1000 * np.mean(touched))
    assert decode_cost.params_read(one, 1000) == rest + 8000
    for count in (decode_cost.decode_flops, decode_cost.prefill_flops):
        assert count(one, 1) == count(plain, 1) + 2 * (500 + 2000)


def test_a_batch_shares_the_weights_and_not_the_caches() -> None:
    one = LanguageModel(model_of(2, **PLAIN), NEXT)
    read = [decode_cost.bytes_read(one, b, 100, "bfloat16") for b in (1, 2, 3)]
    assert read[2] - read[1] == read[1] - read[0] == cost.kv_bytes_read(one.model, 100)
    assert read[0] - cost.kv_bytes_read(one.model, 100) == 2 * decode_cost.params_read(one, 1)
    flops = decode_cost.decode_flops(one, 100)
    assert decode_cost.intensity(one, 3, 100, "bfloat16") == 3 * flops / read[2]
    # Without a cache to speak of a step has 2 operations for each parameter of 2 bytes, b times.
    wide = LanguageModel(model_of(1, d_model=512, d_head=128, d_ff=4096, **BF16), NEXT)
    assert decode_cost.intensity(wide, 5, 1, "bfloat16") == pytest.approx(5, rel=0.01)


def test_a_mixer_that_keeps_nothing_fits_at_any_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    told = {"params": 8, "cache_elements": 0, "state_elements": 0, "flops": 2, "flops_per_key": 0}
    mine = types.SimpleNamespace(cost=lambda layer, model: told)
    monkeypatch.setitem(sys.modules, "mha_jax.attention.mine", mine)
    load = budget.Load(64, 2, "bfloat16", 1, ("h200", ACCELERATORS["h200"]))
    row = budget.row("mine", "", LanguageModel(model_of(1, mixer="mine"), spec_of(length=64)), load)
    assert (row["fits"], row["largest_batch"], row["kv_bytes_resident"]) == (True, None, 0)
    assert " any " in budget.to_text([row], load)

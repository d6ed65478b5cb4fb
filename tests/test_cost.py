"""Costs by arithmetic against the real model, against XLA, and against the papers."""

import dataclasses
import random
import sys
import types
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import config_of, run_of

from mha_jax import cost, evaluate, examine, match, schema, tasks, train
from mha_jax.analysis import ablation
from mha_jax.attention import fast
from mha_jax.config import LayerSpec, ModelSpec
from mha_jax.model import build

TEXT = {"task.name": "text", "task.text.length": 12, "model.residual": True, "model.d_ff": 48}
D_RETRIEVAL = {"task.name": "d_retrieval"}
MLA = {
    **{"model.mixer": "mla", "model.n_kv_heads": 1, "model.d_latent": 20},
    **{"model.positions": "rope", "model.d_rope": 6},
}
TAPS = {"task.name": "taps", "task.taps.n_channels": 5}
# Every switch that adds or takes parameters, on every kind of input, encoder and read-out.
GRID: list[dict[str, Any]] = [
    {},
    {"model.n_heads": 8, "model.n_kv_heads": 1},
    {"model.n_heads": 8, "model.n_kv_heads": 2, "model.d_head": 5},
    {"model.bias": True, "model.norm": "layer"},
    {"model.gate": True, "model.bias": True},
    {"model.qk_norm": True, "model.norm": "rms", "model.positions": "rope"},
    {"model.use_wo": False, "model.d_head": 7},
    {"model.use_wo": False, "model.bias": True, "model.norm": "layer", "model.d_head": 7},
    {"model.use_wo": False, "model.d_ff": 24, "model.norm": "rms"},
    {"model.share": "qk"},
    {"model.share": "kv", "model.n_kv_heads": 2, "model.bias": True},
    {"model.share": "qkv", "model.gate": True},
    {"model.n_layers": 3, "model.n_kv_heads": "4,2,1", "model.d_ff": "0,32,16"},
    {"model.positions": "none", "model.d_model": 12, "model.n_heads": 3},
    TEXT,
    {**TEXT, "model.activation": "swiglu", "model.bias": True, "model.norm": "layer"},
    {**TEXT, "model.n_layers": 2, "model.norm": "rms", "model.n_kv_heads": 2},
    TAPS,
    {**TAPS, "model.bias": True},
    D_RETRIEVAL,
    {**D_RETRIEVAL, "model.bias": True, "model.norm": "rms"},
    {"task.name": "attr", "model.bias": True},
    {"task.name": "copy"},
    {"task.name": "histogram", "model.d_ff": 32},
    {"model.mixer": "gta", "model.n_kv_heads": 2, "model.bias": True, "model.sink_logit": True},
    {"model.mixer": "gta", "model.use_wo": False, "model.d_head": 8, "model.norm": "rms"},
    {"model.n_layers": 2, "model.kv_from": 0, "model.qk_norm": True, "model.bias": True},
    MLA,
    {**MLA, "model.d_latent_q": 12, "model.qk_norm": True, "model.bias": True, "model.gate": True},
    {**MLA, "model.n_kv_heads": 2, "model.use_wo": False, "model.d_head": 8, "model.norm": "rms"},
]


def model_of(run: Any) -> tuple[Any, Any]:
    spec = run.static.task.spec
    return build(run.static.model, spec), spec


def name(overrides: dict[str, Any]) -> str:
    return ",".join(f"{k.split('.')[-1]}={v}" for k, v in overrides.items()) or "default"


@pytest.mark.parametrize("overrides", GRID, ids=name)
def test_n_params_is_that_of_the_model(overrides: dict[str, Any]) -> None:
    run = run_of(overrides)
    params = jax.eval_shape(model_of(run)[0].init, jax.random.key(0))
    assert cost.n_params(run.static) == sum(x.size for x in jax.tree.leaves(params))


def products(jaxpr: Any) -> int:
    """Operations of all matrix products of a jaxpr: 2 m k n each."""
    total = 0
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            k = [equation.invars[0].aval.shape[axis] for axis in contracted]
            total += 2 * int(jnp.prod(jnp.array(k))) * equation.outvars[0].aval.size
        for value in equation.params.values():
            inner = getattr(value, "jaxpr", value)
            total += products(inner) if hasattr(inner, "eqns") else 0
    return total


@pytest.mark.parametrize("kernel", ["reference", "fast"])
@pytest.mark.parametrize("overrides", GRID, ids=name)
def test_flops_are_the_products_of_the_program(overrides: dict[str, Any], kernel: str) -> None:
    if kernel == "reference" and overrides.get("model.mixer") == "mla":
        pytest.skip("queries read latents there, which is more to multiply")
    run = run_of({**overrides, "model.kernel": kernel})
    model, spec = model_of(run)
    b = 2
    params = jax.eval_shape(model.init, jax.random.key(0))
    shape = {
        "tokens": (b, spec.length - spec.query_token),
        "fields": (b, spec.length - spec.query_token, len(spec.input_sizes)),
        "vectors": (b, spec.length - spec.query_token, spec.input_sizes[0]),
    }[spec.inputs]
    dtype = jnp.float32 if spec.inputs == "vectors" else jnp.int32
    inputs = jax.ShapeDtypeStruct(shape, dtype)
    jaxpr = jax.make_jaxpr(lambda p, x: model.apply(p, x)[0])(params, inputs)
    measured = products(jaxpr.jaxpr) / (b * spec.length)
    if kernel == "reference":
        assert cost.flops_per_token(run.static) == int(measured)
    else:  # it skips keys that no query of a chunk sees, and never does more
        assert int(measured) <= cost.flops_per_token(run.static) <= 1.25 * measured


@pytest.mark.parametrize("d", [64, 96])
def test_attention_has_4_d_squared_parameters_for_every_head_count(d: int) -> None:
    for n in (n for n in range(1, d + 1) if d % n == 0):
        model = run_of({"model.d_model": d, "model.n_heads": n}).static.model
        assert cost.attention_params(model.layers[0], model) == 4 * d * d


def test_fewer_kv_heads_save_2_n_minus_k_h_d() -> None:
    def params(k: int) -> int:
        model = run_of({"model.n_heads": 8, "model.n_kv_heads": k}).static.model
        return cost.attention_params(model.layers[0], model)

    for k in (1, 2, 4, 8):
        assert params(8) - params(k) == 2 * (8 - k) * 8 * 64


def test_flops_do_not_depend_on_the_head_count() -> None:
    flops = {cost.flops_per_token(run_of({"model.n_heads": n}).static) for n in (1, 2, 4, 8, 16)}
    assert len(flops) == 1


def test_mlp_widening_of_shazeer_2019() -> None:
    """4096 -> 5440 for MQA, and 6784 for one head: 18 attention layers give back to 12 MLPs.

    Table 1 there: d_model 1024, d_k = d_v = 128; six layers on each side, of which the decoder's
    have two attentions.
    """
    base = {"model.d_model": 1024, "model.d_head": 128, "model.n_heads": 8}

    def attention(overrides: dict[str, Any]) -> int:
        model = run_of({**base, "model.n_kv_heads": None, **overrides}).static.model
        return cost.attention_params(model.layers[0], model)

    mha, mqa = attention({}), attention({"model.n_kv_heads": 1})
    assert mha - mqa == 2 * (8 - 1) * 128 * 1024
    assert 4096 + 18 * (mha - mqa) / (12 * 2 * 1024) == 5440
    assert 4096 + 18 * (mha - attention({"model.n_heads": 1})) / (12 * 2 * 1024) == 6784


def test_cache_bytes() -> None:
    def cache(overrides: dict[str, Any]) -> int:
        return cost.kv_bytes_per_token(run_of(overrides).static.model, 16)

    assert cache({}) == 2 * 4 * 16 * 4  # MHA: 2 d numbers, 4 bytes each
    assert {cache({"model.n_heads": n}) for n in (1, 2, 4, 8)} == {2 * 64 * 4}
    assert cache({"model.n_heads": 8, "model.n_kv_heads": 2}) == 2 * 2 * 8 * 4
    assert cache({"model.n_layers": 3, "model.n_kv_heads": "4,2,1"}) == 2 * (4 + 2 + 1) * 16 * 4
    assert cache({"model.share": "qk"}) == cache({})
    for share in ("kv", "qkv"):  # keys are made of the values
        assert cache({"model.share": share}) == cache({}) / 2


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ({}, "MHA"),
        ({"model.n_heads": 1}, "MHA"),
        ({"model.n_kv_heads": 1}, "MQA"),
        ({"model.n_kv_heads": 2}, "GQA-2"),
        ({"model.n_layers": 2, "model.n_heads": "4,2", "model.n_kv_heads": "4,2"}, "MHA"),
        ({"model.n_layers": 3, "model.n_kv_heads": "4,4,2"}, "GQA-4/4/2"),
        ({"model.mixer": "mla", "model.n_kv_heads": 1, "model.d_latent": 8}, "MLA"),
        ({"model.mixer": "mla", "model.n_kv_heads": 2, "model.d_latent": 8}, "GLA-2"),
        ({"model.mixer": "gta", "model.n_kv_heads": 2}, "GTA-2"),
        ({"model.n_layers": 4, "model.kv_from": "0,0,2,2"}, "MHA, CLA-2"),
        ({"model.n_layers": 4, "model.kv_from": "0,1,1,1"}, "MHA, kv of 0/1/1/1"),
        ({"task.name": "copy", "model.n_kv_heads": 2, "model.kv_quant": "int4"}, "GQA-2, int4"),
        ({"model.n_layers": 2, "model.mixer": "mla,grouped", "model.d_latent": 8}, "mla+grouped"),
    ],
)
def test_variant(overrides: dict[str, Any], expected: str) -> None:
    assert cost.variant(run_of(overrides).static.model) == expected


def test_a_mixer_of_the_users_own_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    def told(layer: LayerSpec, model: ModelSpec) -> dict[str, int]:
        told = {"params": 7, "cache_elements": 3, "state_elements": 5}
        return {**told, "flops": 11, "flops_per_key": 2}

    monkeypatch.setitem(sys.modules, "mha_jax.attention.mine", types.SimpleNamespace(cost=told))
    static = run_of().static
    grouped = cost.n_params(static), cost.flops_per_token(static)
    layer, model = static.model.layers[0], static.model
    mine = dataclasses.replace(model, layers=(dataclasses.replace(layer, mixer="mine"),))
    static = dataclasses.replace(static, model=mine)
    assert cost.variant(mine) == "mine"
    assert cost.kv_bytes_per_token(mine, 16) == 3 * 4
    assert (cost.state_bytes(mine), cost.state_bytes(model)) == (5 * 4, 0)
    assert cost.n_params(static) == grouped[0] - 4 * 64 * 64 + 7
    assert cost.flops_per_token(static) == grouped[1] - 8 * 64 * 64 + 11 - (4 * 64 - 2) * 13


def test_it_knows_the_sizes_that_the_programs_work_in() -> None:
    assert cost._DIRECT_LENGTH == fast.DIRECT_LENGTH
    for length in (513, 5000):
        chunk = fast.chunk_length(np.ones((length, length), bool))
        assert cost._chunk_length(length) == chunk
    assert evaluate._EVAL_BATCH == cost._EVAL_BATCH
    assert (examine._PROBE_BATCH, examine._PROBE_FLOATS) == (cost._PROBE_BATCH, cost._PROBE_FLOATS)
    assert ablation._TOGETHER == cost._TOGETHER


@pytest.mark.parametrize(
    "overrides",
    [
        {"train.batch_size": 256},
        {"task.name": "text", "model.n_layers": 2, "model.d_ff": 256, "model.residual": True},
    ],
    ids=["relations", "text"],
)
def test_memory_is_estimated_from_above(overrides: dict[str, Any]) -> None:
    static = run_of(overrides).static
    program = train.Program.of(static)
    hypers = train.HyperArrays(jnp.uint32(0), jnp.uint32(0), jnp.float32(1e-3), jnp.float32(0))
    constants = static.task.constants("train")
    state = jax.eval_shape(lambda: train.init(program, hypers))
    used = []
    for function, tree in (
        (lambda s, c: train.train_chunk(program, s, hypers, c, jnp.int32(2)), state),
        (lambda p, c: evaluate.evaluate(program, p, c, jax.random.key(0), 2), state.params),
        (lambda p, c: examine.look(program, p, c, 0), state.params),
        (lambda p, c: examine.compare(program, p, c, 0), state.params),
    ):
        told = jax.jit(function).lower(tree, constants).compile().memory_analysis()
        used.append(told.temp_size_in_bytes + told.argument_size_in_bytes)
    # From above, and by no more than the factor of 4 that the docstring admits.
    assert max(used) <= cost.memory_bytes(static) <= 4 * max(used)


def test_memory_grows_with_every_size() -> None:
    small = cost.memory_bytes(run_of(TEXT).static)
    for key, value in {
        "task.text.length": 200,
        "model.d_model": 640,
        "model.n_layers": 40,
        "model.n_heads": 64,
        "model.d_ff": 4800,
        "train.batch_size": 640,
    }.items():
        assert cost.memory_bytes(run_of({**TEXT, key: value}).static) > small, key


CHOICES: dict[str, list[Any]] = {
    "task.name": [*tasks.NAMES],
    "model.d_model": [12, 16, 24, 60],
    "model.n_layers": [1, 2, 3],
    "model.n_heads": [1, 2, 3, 4, 6],
    "model.n_kv_heads": [None, 1, 2, 3],
    "model.d_head": [None, None, 4, 5],
    "model.d_ff": [0, 0, 8, 17],
    "model.window": [0, 0, 3],
    "model.positions": ["rope", "learned", "none"],
    "model.norm": ["none", "layer", "rms"],
    "model.residual": [True, False],
    "model.bias": [True, False],
    "model.activation": ["gelu", "swiglu"],
    "model.use_wo": [True, False],
    "model.share": ["none", "none", "qk", "kv", "qkv"],
    "model.qk_norm": [True, False],
    "model.gate": [True, False],
    "model.sink_logit": [True, False],
    "model.mixer": ["grouped", "grouped", "gta", "mla"],
    "model.d_latent": [0, 6],
    "model.d_latent_q": [0, 0, 5],
    "model.d_rope": [0, 4],
    "model.kv_from": [None, None, 0],
    "match.policy": ["none", "d_ff", "d_model", "n_layers"],
    "match.to": ["", "d_ff=31", "n_kv_heads=1", "d_model=24"],
}


def test_whatever_the_schema_accepts_can_be_built_and_is_counted() -> None:
    draw, built = random.Random(0), 0
    while built < 40:
        config = config_of({key: draw.choice(values) for key, values in CHOICES.items()})
        run, _ = schema.resolve(config)
        if run is None:
            continue
        result = match.match(config, run)
        static = run.static if result.problems else result.run.static
        model = build(static.model, static.task.spec)
        params = jax.eval_shape(model.init, jax.random.key(0))
        assert cost.n_params(static) == sum(x.size for x in jax.tree.leaves(params)), config
        built += 1

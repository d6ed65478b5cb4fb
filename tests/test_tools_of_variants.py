"""What looks into a model, on models that store something else than keys and values: right, or
refused in one line."""

from __future__ import annotations

import dataclasses
import functools
import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from shapes import model_of

from mha_jax import convert, examine, gating, heads_text, mixers, prune, redundancy, store
from mha_jax.analysis import circuits, cka, conversion, removal, sharing
from mha_jax.attention.positions import rope
from mha_jax.attention.stops import Context
from mha_jax.config import LayerSpec, ModelSpec
from mha_jax.run import LoadedRun
from tests.saved import saved
from tests.synthetic import static

ROPE = {"positions": "rope"}
MLA = {"mixer": "mla", "n_kv_heads": 1, "d_latent": 6}
GLA = {**MLA, "n_kv_heads": 2, "d_latent_q": 5}
SMALL = {"d_model": 16, "residual": True}
LAYER = LayerSpec("grouped", 4, 2, 4, d_ff=0, window=0, n_sinks=0, kv_from=None)


def layers(*changes: dict[str, Any]) -> dict[str, Any]:
    return {"layers": tuple(dataclasses.replace(LAYER, **change) for change in changes)}


MODELS: dict[str, dict[str, Any]] = {
    "MLA": {**layers({"mixer": "mla", "n_kv_heads": 1}), "d_latent": 6, "d_rope": 2, **ROPE},
    "GLA": {**layers({"mixer": "mla"}), "d_latent": 5, "d_latent_q": 7},
    "GTA": {**layers({"mixer": "gta"}, {}), **ROPE, "bias": True},
    "shared": {**layers({}, {"kv_from": 0}, {"n_heads": 2}), **ROPE},
    "shared, K=V": {**layers({}, {"kv_from": 0}), "share": "kv"},
    "int4, sink": {**layers({}), "kv_quant": "int4", "kv_group": 2, "sink_logit": True},
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, LoadedRun]:
    root = tmp_path_factory.mktemp("variants")
    made = {}
    for name, model in MODELS.items():
        spec = static("copy", 4, 2, 4, model={**SMALL, **model}, length=4)
        # One batch of the probe draw, which keeps the programs small.
        spec = dataclasses.replace(spec, train=dataclasses.replace(spec.train, n_probe=8))
        made[name] = saved(root / name.replace(" ", "-"), spec, steps=(10,))
    return made


@pytest.fixture(scope="module")
def told(runs: dict[str, LoadedRun]) -> Any:
    """What is told of the heads of a model, by its name; once for each."""
    return functools.cache(lambda name: heads_text.examine(runs[name]))


def stops_of(run: LoadedRun) -> list[dict[str, Any]]:
    batch = examine.probe_batch(run.program, run.probe_constants(), 0)
    model = run.program.model
    look = jax.jit(lambda params, inputs: model.apply(params, inputs, probe=lambda stops: stops)[1])
    return look(run.params(), batch.inputs)


# --- circuits ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        {**MLA, **ROPE, "d_rope": 2},
        {**GLA, **ROPE, "d_rope": 2},
        GLA,
        {"mixer": "gta", "n_kv_heads": 2, **ROPE},
        {"n_kv_heads": 2, **ROPE},
        {"share": "kv", "n_kv_heads": 1},
    ],
    ids=str,
)
def test_circuits_are_what_heads_score_and_write(
    changes: dict[str, Any], assert_close: Any
) -> None:
    """Of two tokens at the first position, where rotation does nothing."""
    model: ModelSpec = model_of(**changes)
    (layer,) = model.layers
    made = mixers.module(layer.mixer).Mixer(layer, model, key=jax.random.key(0))
    params = nnx.to_pure_dict(nnx.state(made, nnx.Param))
    heads = circuits.per_head(params, layer.n_heads, layer.n_kv_heads)
    x_d = np.random.default_rng(0).normal(size=16)
    y, weights = made(jnp.asarray(x_d[None, None], jnp.float32), return_weights=True)
    assert_close(weights, np.ones((1, 4, 1, 1)))
    written = np.einsum("d,ndh,nhe->e", x_d, heads.wv_ndh, heads.wo_nhd)
    assert_close(y[0, 0], written)
    context = Context(wants_stops=True)
    _, stops = made.mix(jnp.asarray(x_d[None], jnp.float32), b=1, t=1, context=context)
    scores_n = made.scale * np.einsum("d,ndh,neh,e->n", x_d, heads.wq_ndh, heads.wk_ndh, x_d)
    assert_close(stops["scores_bkgts"].reshape(4), scores_n)


def test_a_borrower_has_the_circuits_of_its_lenders_keys(
    runs: dict[str, LoadedRun], told: Any, assert_close: Any
) -> None:
    run = runs["shared"]
    params = [run.params()["layers"][str(i)]["mixer"] for i in range(3)]
    lent = {name: params[0][name] for name in ("wk", "wv")}
    heads = [
        circuits.per_head(params[0], 4, 2),
        circuits.per_head({**params[1], **lent}, 4, 2),
        circuits.per_head(params[2], 2, 2),
    ]
    found = told("shared").redundancy.composition
    assert set(found[0, 1]) == {"q"}  # its keys and values are of before layer 0 wrote
    assert set(found[0, 2]) == set(found[1, 2]) == {"q", "k", "v"}
    for (i, j), of in found.items():
        expected = circuits.composition(heads[i], heads[j])
        for name, matrix in of.items():
            assert_close(matrix, expected[name])


def test_a_borrower_that_shares_one_matrix_too(
    runs: dict[str, LoadedRun], assert_close: Any
) -> None:
    run = runs["shared, K=V"]
    lender, borrower = (run.params()["layers"][str(i)]["mixer"] for i in range(2))
    assert "wv" not in lender and "wk" not in borrower
    heads = redundancy._circuits([lender, borrower], run.run.static.model.layers, 1)
    expected = circuits.per_head({**borrower, "wk": lender["wk"], "wv": lender["wk"]}, 4, 2)
    assert_close(heads._asdict(), expected._asdict())


# --- likeness ------------------------------------------------------------------------------------


def test_keys_are_compared_before_the_part_that_rotates_did(assert_close: Any) -> None:
    k_bskh = jax.random.normal(jax.random.key(0), (2, 5, 3, 10))
    for n in (0, 4, 10):
        turned = jnp.concatenate([k_bskh[..., : 10 - n], rope(k_bskh[..., 10 - n :])], axis=-1)
        assert_close(sharing.before_rotation(turned, n), k_bskh)
    assert_close(sharing.before_rotation(rope(k_bskh)), k_bskh)


@pytest.mark.parametrize("name", ["MLA", "GLA", "GTA", "int4, sink"])
def test_likeness_is_that_of_what_heads_write_and_of_unrotated_keys(
    name: str, runs: dict[str, LoadedRun], told: Any, assert_close: Any
) -> None:
    run = runs[name]
    found, stops = told(name).redundancy.layers[0], stops_of(run)[0]
    written = cka.linear_cka(jax.device_get(cka.cross_sums(stops["head_out_btnd"])))
    # Sums of squares over rows in float32, of z and a map or of what is written.
    assert_close(found.output_cka_nn, written, 1e-4)
    params, model = run.params()["layers"]["0"]["mixer"], run.run.static.model
    if name == "GTA":
        x_btd = stops["resid_btd"]
        kv_bskh = (x_btd @ params["wkv"] + params["bkv"][None, None]).reshape(
            *x_btd.shape[:2], 2, 4
        )
        shared = (x_btd @ params["wkr"] + params["bkr"][None, None])[:, :, None]
        shared = jnp.broadcast_to(shared, (*kv_bskh.shape[:3], 2))
        keys = jnp.concatenate([kv_bskh[..., :2], shared], axis=-1)
        assert_close(found.key_cka_kk, cka.linear_cka(jax.device_get(cka.cross_sums(keys))), 1e-4)
    assert found.key_cka_kk.shape == (model.layers[0].n_kv_heads,) * 2


@pytest.mark.parametrize("name", MODELS)
def test_heads_are_told_of(name: str, runs: dict[str, LoadedRun], told: Any) -> None:
    text, body = heads_text.to_text(told(name)), heads_text.to_json(told(name))
    json.dumps(body, allow_nan=False)
    assert "nan" not in text
    counts = [layer.n_heads for layer in runs[name].run.static.model.layers]
    assert sum(head.kind == "n" for head in told(name).heads) == sum(counts)


# --- interventions -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["GLA", "GTA", "shared", "int4, sink"])
def test_a_head_without_z_is_a_masked_head(
    name: str, runs: dict[str, LoadedRun], assert_close: Any
) -> None:
    run = runs[name]
    batch = run.probe_batch()
    model = run.run.static.model
    masks = [jnp.ones(layer.n_heads) for layer in model.layers]
    masks[0] = masks[0].at[1].set(0)
    apply = jax.jit(
        lambda params, inputs, **masks: run.program.model.apply(params, inputs, **masks)[0]
    )
    expected = apply(run.params(), batch.inputs, head_mask=masks)
    assert_close(run.apply(batch, replace={"l0.n1.z": 0.0}), expected)
    silent = run.apply(batch, replace={"l0.k0.v": 0.0})
    kv_masks = [jnp.ones(layer.n_kv_heads) for layer in model.layers]
    kv_masks[0] = kv_masks[0].at[0].set(0)
    expected = apply(run.params(), batch.inputs, kv_mask=kv_masks)
    assert_close(silent, expected)
    assert np.abs(silent - run.apply(batch)).max() > 1e-4
    _, picked = run.apply(batch, want=["l0.n0.scores", "l0.n0.weights"])
    whole = run.apply(batch, replace={"l0.n0.scores": picked["l0.n0.scores"]})
    assert_close(whole, run.apply(batch))


def test_patched_keys_of_a_lender_reach_its_borrower(
    runs: dict[str, LoadedRun], assert_close: Any
) -> None:
    run = runs["shared"]
    batch = run.probe_batch()
    _, found = run.apply(batch, want=["l0.k1.k", "l1.k1.k", "l0.k1.v", "l1.k1.v"])
    assert_close(found["l0.k1.k"], found["l1.k1.k"])
    assert_close(found["l0.k1.v"], found["l1.k1.v"])
    _, patched = run.apply(batch, want=["l1.k1.v"], replace={"l0.k1.v": 2.0})
    assert (patched["l1.k1.v"] == 2).all()


# --- heads that go, and merge --------------------------------------------------------------------


def test_latents_and_tied_keys_have_gates() -> None:
    kinds = [
        dataclasses.replace(LAYER, mixer=name) for name in ("grouped", "mla", "gta", "mine.py@0")
    ]
    assert gating.n_gates(kinds, "n") == [4, 4, 4, 0]
    assert gating.n_gates(kinds, "k") == [2, 2, 2, 0]


def test_what_cannot_lose_or_merge_heads_is_refused(runs: dict[str, LoadedRun]) -> None:
    shared = runs["shared"]
    model, params = shared.run.static.model, shared.params()
    with pytest.raises(ValueError, match=r"layer 0: layers share keys and values \(kv_from\)"):
        removal.remove(params, model, [[0, 1], [0, 1, 2, 3], [0, 1]])
    same, _ = removal.remove(params, model, [[0, 1, 2, 3], [0, 1, 2, 3], [0, 1]])
    assert jax.tree.structure(same) == jax.tree.structure(params)
    with pytest.raises(ValueError, match=r"layers share keys and values \(kv_from\)"):
        conversion.convert(params, model, [1, 1, 2])
    with pytest.raises(ValueError, match="the mixer 'mla' cannot go"):
        removal.remove(runs["MLA"].params(), runs["MLA"].run.static.model, [[0]])
    with pytest.raises(ValueError, match="only the mixer 'grouped' converts, not 'gta'"):
        conversion.convert(runs["GTA"].params(), runs["GTA"].run.static.model, [1, 2])
    for name, says in (
        ("shared", "layer 1 has the keys and values of 0"),
        ("MLA", "layer 0 has the mixer 'mla'"),
        ("GTA", "layer 0 has the mixer 'gta'"),
    ):
        with pytest.raises(ValueError, match=says):
            prune.prune(runs[name], prune.Plan())


@pytest.mark.parametrize("name", ["shared", "GTA"])
def test_scripts_refuse_to_convert_them(name: str, runs: dict[str, LoadedRun]) -> None:
    stored = store.read_run(Path(runs[name].directory))
    with pytest.raises(ValueError) as refused:
        convert.plan(stored, [1], merge="mean", align=False, alpha=0.1, lr=None)
    assert "grouped" in str(refused.value) and "\n" not in str(refused.value)

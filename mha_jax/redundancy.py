"""How alike the heads of a trained model are, and what sharing their keys and values would cost.

On the probe draw, and from the weights; definitions in docs/scores.md. Matrices are symmetric, with
one row for each query head, n, or kv head, k.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from mha_jax import examine, loss
from mha_jax.analysis import circuits, cka, sharing, similarity
from mha_jax.attention.stops import on_one_axis
from mha_jax.config import LayerSpec, ModelSpec
from mha_jax.run import LoadedRun


class Layer(NamedTuple):
    """The heads of one layer beside each other."""

    layer: int
    js_nn: np.ndarray  # Jensen-Shannon divergence of attention, nats
    output_cka_nn: np.ndarray  # linear CKA of what the heads write
    key_cka_kk: np.ndarray  # linear CKA of keys, before their rotation
    value_cka_kk: np.ndarray
    agreement: similarity.Agreement
    disagreement: dict[str, float]
    # Neighbours pooled into fewer kv heads: their number -> weight-sharing error of keys and of
    # values, as shares of the weights.
    sharing: dict[int, tuple[float, float]]
    copying_n: np.ndarray | None  # OV copying score; None unless the model predicts its own tokens


class Redundancy(NamedTuple):
    """What is said of a model."""

    layers: list[Layer]
    # kv heads of every layer -> rise of the loss per answer when neighbours are pooled, untrained.
    pooled: dict[int, float]
    # (earlier layer, later layer) -> Q-, K- and V-composition, each [n of the later, n of the
    # earlier]; without K and V where the later one reads keys and values of before the earlier one.
    composition: dict[tuple[int, int], dict[str, np.ndarray]]


def redundancy(run: LoadedRun, at: str | int = "last") -> Redundancy:
    """Of every layer with attention weights.

    Args:
      run: a trained run.
      at: which checkpoint, as `LoadedRun` says.

    Raises:
      ValueError: no checkpoint, or the corpus of the task has changed.
    """
    params, found = run.params(at), _summed(run, at)
    model, mixers = run.run.static.model, _mixers(run.params(at))
    layers = [
        _layer(run, number, spec, params, mixers, sums)
        for number, (spec, sums) in enumerate(zip(model.layers, found, strict=True))
        if sums is not None
    ]
    able = [one.layer for one in layers if "wo" in mixers[one.layer]]
    heads = {i: _circuits(mixers, model.layers, i) for i in able}
    return Redundancy(
        layers,
        _pooled(run, params),
        {
            (i, j): {
                name: found
                for name, found in circuits.composition(heads[i], heads[j]).items()
                if name == "q" or i < _lender(model.layers, j)
            }
            for i in able
            for j in able
            if i < j
        },
    )


def _lender(layers: Sequence[LayerSpec], i: int) -> int:
    """The layer whose keys and values layer i reads."""
    lender = layers[i].kv_from
    return i if lender is None else lender


def _circuits(
    mixers: Sequence[dict[str, Any]], layers: Sequence[LayerSpec], i: int
) -> circuits.Heads:
    """The heads of layer i, with the keys and values that it reads."""
    lent = {name: w for name, w in mixers[_lender(layers, i)].items() if name in ("wk", "wv")}
    return circuits.per_head({**lent, **mixers[i]}, layers[i].n_heads, layers[i].n_kv_heads)


def _layer(
    run: LoadedRun,
    number: int,
    spec: LayerSpec,
    params: Any,
    mixers: Sequence[dict[str, Any]],
    sums: dict[str, Any],
) -> Layer:
    js_nn = similarity.js_matrix(sums["js"])
    k, wo_nhd, mixer = spec.n_kv_heads, None, mixers[number]
    errors: dict[int, tuple[float, float]] = {}
    if {"wk", "wv"} <= mixer.keys():
        for fewer in _fewer(k):
            groups = sharing.contiguous(k, fewer)
            key, value = (sharing.weight_sharing_error(mixer[w], k, groups) for w in ("wk", "wv"))
            errors[fewer] = (key.share, value.share)
    if "wo" in mixer and _writes_z(spec, run.run.static.model):
        wo_nhd = np.asarray(mixer["wo"]).reshape(spec.n_heads, spec.d_head, -1)
    return Layer(
        number,
        js_nn,
        cka.linear_cka(sums["out"], wo_nhd),
        cka.linear_cka(sums["k"]),
        cka.linear_cka(sums["v"]),
        similarity.agreement(js_nn, k),
        similarity.disagreement(sums["disagreement"]),
        errors,
        _copying(run, params, mixers, number),
    )


def _summed(run: LoadedRun, at: str | int) -> list[dict[str, Any] | None]:
    """Sums over the probe draw, layer by layer; None for a layer without attention weights."""
    program, params, constants = run.program, run.params(at), run.probe_constants()
    model = run.run.static.model
    tables = examine.visible(run.run.static)

    def of_batch(params: Any, constants: Any, i: Any) -> list[dict[str, Any] | None]:
        batch = examine.probe_batch(program, constants, i)
        _, layers = program.model.apply(params, batch.inputs, probe=lambda stops: stops)
        out: list[dict[str, Any] | None] = []
        for spec, stops, visible_ts in zip(model.layers, layers, tables, strict=True):
            weights = stops.get("weights_bkgts")
            if weights is None:
                out.append(None)
                continue
            weights_bnts = on_one_axis("weights_bkgts", weights)
            z_btnh = on_one_axis("z_btkgh", stops["z_btkgh"])
            written = z_btnh if _writes_z(spec, model) else stops["head_out_btnd"]
            k_bskh, v_bskh = stops["k_bskh"], stops["v_bskh"]
            if model.positions == "rope":
                k_bskh = sharing.before_rotation(k_bskh, _n_rotated(spec, model))
            out.append(
                {
                    "js": similarity.js_sums(weights_bnts, visible_ts),
                    "disagreement": similarity.disagreement_sums(weights_bnts, v_bskh, z_btnh),
                    "out": cka.cross_sums(written),
                    "k": cka.cross_sums(k_bskh),
                    "v": cka.cross_sums(v_bskh),
                }
            )
        return out

    compiled = jax.jit(of_batch)
    batches = [
        jax.device_get(compiled(params, constants, np.int32(i)))
        for i in range(examine.n_batches(program))
    ]
    joined = []
    for layers in zip(*batches, strict=True):
        first = layers[0]
        joined.append(
            None
            if first is None
            else {
                name: jax.tree.map(
                    # Sums of CKA are of the batch, the others of each sequence.
                    (lambda *x: np.sum(x, axis=0))
                    if name in ("out", "k", "v")
                    else (lambda *x: np.concatenate(x)),
                    *[layer[name] for layer in layers],
                )
                for name in first
            }
        )
    return joined


def _pooled(run: LoadedRun, params: Any) -> dict[int, float]:
    """Loss rises for the numbers of kv heads that divide those of every layer."""
    model, program = run.run.static.model, run.program
    counts = [set(_fewer(layer.n_kv_heads)) for layer in model.layers]
    common = sorted(set.intersection(*counts), reverse=True)
    mixers = _mixers(params)
    if not common or any("wk" not in mixer or "wv" not in mixer for mixer in mixers):
        return {}
    constants = run.probe_constants()

    @jax.jit
    def sums(params: Any, i: Any) -> Any:
        batch = examine.probe_batch(program, constants, i)
        outputs, _ = program.model.apply(params, batch.inputs)
        return loss.sums(outputs, batch, program.spec)

    def mean_loss(params: Any) -> float:
        batches = [sums(params, np.int32(i)) for i in range(examine.n_batches(program))]
        return float(loss.mean_loss(jax.tree.map(lambda *x: sum(x), *batches)))

    whole, out = mean_loss(params), {}
    for fewer in common:
        tied = {**params, "layers": dict(params["layers"])}
        for i, (layer, mixer) in enumerate(zip(model.layers, mixers, strict=True)):
            groups = sharing.contiguous(layer.n_kv_heads, fewer)
            mixer = sharing.tie_heads(mixer, layer.n_kv_heads, groups)
            tied["layers"][str(i)] = {**params["layers"][str(i)], "mixer": mixer}
        out[fewer] = mean_loss(tied) - whole
    return out


def _writes_z(layer: LayerSpec, model: ModelSpec) -> bool:
    """Whether a head writes its z times its rows of wo: without a gate or a latent between."""
    return not model.gate and layer.mixer != "mla"


def _n_rotated(layer: LayerSpec, model: ModelSpec) -> int | None:
    """Columns of a key that rotate, the last ones; None: all."""
    return {"mla": model.d_rope, "gta": layer.d_head // 2}.get(layer.mixer)


def _copying(
    run: LoadedRun, params: Any, mixers: Sequence[dict[str, Any]], i: int
) -> np.ndarray | None:
    """The OV copying score of heads that write to the read-out of the tokens they read."""
    task = run.spec
    own = task.autoregressive and task.inputs == "tokens" and len(task.outputs) == 1
    linear = task.encoder == task.readout == "linear"
    model = run.run.static.model
    able = own and linear and "wo" in mixers[i] and task.output_size == task.input_sizes[0]
    if model.gate or not able:  # a gate stands between the two matrices of the circuit
        return None
    embed = np.asarray(params["encoder"]["embed"]["0"])
    unembed = np.asarray(params["readout"]["out"]["w"])
    return circuits.copying(_circuits(mixers, model.layers, i), embed, unembed)


def _mixers(params: Any) -> list[dict[str, Any]]:
    layers = params["layers"]
    return [layers[str(i)]["mixer"] for i in range(len(layers))]


def _fewer(n_kv_heads: int) -> list[int]:
    """Smaller numbers of kv heads that divide this one, most first."""
    return [k for k in range(n_kv_heads - 1, 0, -1) if n_kv_heads % k == 0]

"""The numbers of a model at one checkpoint for one sequence, as the page needs them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from mha_jax import mixers
from mha_jax.attention.core import Mask
from mha_jax.config import LayerSpec, ModelSpec, StaticConfig
from mha_jax.page import arithmetic

MOST_TOKENS = 512


class Looked(NamedTuple):
    """What a model computed for one sequence."""

    static: StaticConfig
    step: int  # updates behind its parameters
    tokens: list[str]  # how the t positions are written
    layers: Sequence[Mapping[str, np.ndarray]]  # the stops of each layer, [1, ...] (`stops.py`)
    mixers: Sequence[Mapping[str, Any]]  # the parameters of each layer's mixer


def view(looked: Looked) -> dict[str, Any]:
    """What the page is sent of it; arrays stay arrays, `html.packed` writes them.

    Raises:
      ValueError: more positions than the page shows, or a layer without attention weights.
    """
    if len(looked.tokens) > MOST_TOKENS:
        raise ValueError(
            f"{len(looked.tokens)} tokens: the page shows {MOST_TOKENS}; give a shorter sequence"
        )
    spec, model = looked.static.task.spec, looked.static.model
    layers = []
    for i, layer in enumerate(model.layers):
        if "weights_bkgts" not in looked.layers[i]:
            name = mixers.short(layer.mixer)
            raise ValueError(f"layer {i}: mixer {name!r} has no attention weights to show")
        mask = Mask(spec.mask, spec.n_context, layer.window, layer.n_sinks)
        layers.append(_layer(layer, model, mask, looked.layers[i], looked.mixers[i]))
    return {"step": looked.step, "layers": layers}


def _layer(
    layer: LayerSpec,
    model: ModelSpec,
    mask: Mask,
    stops: Mapping[str, np.ndarray],
    params: Mapping[str, Any],
) -> dict[str, Any]:
    told: dict[str, Any] = {
        "n": layer.n_heads,
        "kv": [head // layer.queries_per_kv for head in range(layer.n_heads)],
        "mask": mask._asdict(),
        "scaled": model.scale,
    }
    weights_nts = _heads_first(stops["weights_bkgts"])
    scale = float((layer.d_head + model.d_rope) ** -0.5)  # d_rope: of `mla`, else 0
    given = _plain_attention(scale if model.scale else 1.0, mask, stops, params)
    if given is None:
        why = _why_not(layer, model)
        return told | {"weights": _f32(weights_nts), "why": why, "output_why": why}
    arrays, ours, theirs = given
    told |= arrays | {"scale": scale, "why": ""}
    visible_ts = mask.table(weights_nts.shape[-1])
    for found in (ours, theirs):  # what is hidden is not shown as a number
        found["scores"] = np.where(visible_ts, found["scores"], 0.0)
    told |= _output(model, stops, params, ours, theirs)
    return told | {"patches": arithmetic.patches(ours, theirs)}


def _plain_attention(
    scale: float, mask: Mask, stops: Mapping[str, np.ndarray], params: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, np.ndarray], dict[str, np.ndarray]] | None:
    """What the page computes with, its scores, weights and z, and the model's; None where the
    layer's are something else."""
    if not {"q_btkgh", "k_bskh", "v_bskh", "scores_bkgts", "z_btkgh"} <= stops.keys():
        return None
    q_tnh = _flat(stops["q_btkgh"], 2)
    k_skh, v_skh = (np.asarray(stops[name][0], np.float32) for name in ("k_bskh", "v_bskh"))
    sink_n = np.asarray(params["sink"], np.float32) if params.get("sink") is not None else None
    ours = arithmetic.recomputed(q_tnh, k_skh, v_skh, mask, scale, sink_n)
    theirs = {
        "scores": _heads_first(stops["scores_bkgts"]),
        "weights": _heads_first(stops["weights_bkgts"]),
        "z": _flat(stops["z_btkgh"], 2),
    }
    if not all(arithmetic.agrees(ours[name], theirs[name]) for name in theirs):
        return None
    arrays = {
        "k": k_skh.shape[1],
        "h": q_tnh.shape[2],
        "hv": v_skh.shape[2],
        "query": _f32(q_tnh),
        "key": _f32(k_skh),
        "value": _f32(v_skh),
        "sink": sink_n,
    }
    return arrays, ours, theirs


def _output(
    model: ModelSpec,
    stops: Mapping[str, np.ndarray],
    params: Mapping[str, Any],
    ours: dict[str, np.ndarray],
    theirs: dict[str, np.ndarray],
) -> dict[str, Any]:
    """W_O and its bias, or why the page stops at z; adds the heads' outputs to what is compared."""
    wo, bo = params.get("wo"), params.get("bo")
    told: dict[str, Any] = {"wo": None, "bo": None, "output_why": ""}
    if model.gate:
        return told | {"output_why": "a learned gate multiplies z before W_O; the page stops at z"}
    if wo is None:
        return told
    wo_nhd, z_tnh = np.asarray(wo, np.float32), ours["z"]
    head_out_tnd = np.asarray(stops["head_out_btnd"][0], np.float64)
    if len(wo_nhd) != z_tnh.shape[1] * z_tnh.shape[2]:
        return told | {"output_why": "the mixer maps z to wider heads first; the page stops at z"}
    out_tnd = arithmetic.head_outputs(z_tnh, wo_nhd)
    if not arithmetic.agrees(out_tnd, head_out_tnd):
        return told | {"output_why": "heads are changed before W_O; the page stops at z"}
    ours["out"], theirs["out"] = out_tnd, head_out_tnd
    return told | {
        "wo": _f32(wo_nhd),
        "bo": None if bo is None else np.asarray(bo, np.float32),
    }


def _why_not(layer: LayerSpec, model: ModelSpec) -> str:
    """Why a layer's arithmetic is not the page's."""
    if layer.mixer not in mixers.own():
        what = f"the mixer {mixers.short(layer.mixer)} is your own"
    elif model.kv_quant != "none":
        what = f"keys and values are stored as {model.kv_quant}"
    elif model.compute_dtype != "float32":
        what = f"the model computes in {model.compute_dtype}"
    else:
        what = f"the mixer {layer.mixer} makes its weights in another way"
    return f"{what}: the weights are the model's, and the page does not compute them anew"


def _flat(array_b: np.ndarray, axis: int) -> np.ndarray:
    """The one sequence of a stop, [t, k, g, h], with its query heads on one axis, [t, n, h]."""
    array = np.asarray(array_b[0], np.float32)
    k, g = array.shape[axis - 1 : axis + 1]
    return array.reshape(*array.shape[: axis - 1], k * g, *array.shape[axis + 1 :])


def _heads_first(array_bkgts: np.ndarray) -> np.ndarray:
    """The one sequence of scores or weights, [n, t, s]."""
    return np.asarray(array_bkgts[0], np.float32).reshape(-1, *array_bkgts.shape[3:])


def _f32(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array, np.float32)

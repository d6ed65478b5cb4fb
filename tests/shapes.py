"""Small model and task descriptions for tests, changed by keyword."""

import dataclasses
from typing import Any

import numpy as np

from mha_jax.analysis import bootstrap, scores, targets
from mha_jax.config import LayerSpec, ModelSpec
from mha_jax.tasks import TaskSpec

LAYER = LayerSpec("grouped", 4, 4, 4, d_ff=0, window=0, n_sinks=0, kv_from=None)
MODEL = ModelSpec(
    d_model=16,
    layers=(LAYER,),
    positions="learned",
    qk_from="content",
    norm="none",
    residual=False,
    bias=False,
    activation="gelu",
    scale=True,
    use_wo=True,
    share="none",
    qk_norm=False,
    gate=False,
    sink_logit=False,
    d_latent=0,
    d_latent_q=0,
    d_rope=0,
    kv_quant="none",
    kv_group=2,
    kv_tail=2,
    kv_init="mean",
    kernel="auto",
    compute_dtype="float32",
    cache_dtype="float32",
)
SPEC = TaskSpec(
    inputs="tokens",
    input_sizes=(11,),
    length=6,
    query_token=False,
    encoder="linear",
    d_encoder=0,
    readout="linear",
    d_readout=0,
    mask="causal",
    n_context=0,
    outputs=("left", "right"),
    output_size=5,
    kind="class",
    metric="accuracy",
    direction="max",
    chance=0.2,
    solved_at=None,
    roles=(),
    autoregressive=False,
)
LAYER_FIELDS = {field.name for field in dataclasses.fields(LayerSpec)}


def model_of(n_layers: int = 1, **changes: Any) -> ModelSpec:
    """`MODEL` with changed fields, those of LayerSpec in every layer."""
    in_layer = {name: value for name, value in changes.items() if name in LAYER_FIELDS}
    in_model = {name: value for name, value in changes.items() if name not in LAYER_FIELDS}
    layer = dataclasses.replace(LAYER, **in_layer)
    return dataclasses.replace(MODEL, layers=(layer,) * n_layers, **in_model)


def spec_of(**changes: Any) -> TaskSpec:
    """`SPEC` with changed fields."""
    return dataclasses.replace(SPEC, **changes)


def role_scores(weights_bnts: Any, pointers: dict[str, Any], visible_ts: Any) -> dict[str, Any]:
    """`mass` and `corrected` [n, R] and `n_rows` [R], roles in the order of their names."""
    found = [
        bootstrap.finish(scores.mass(weights_bnts, targets.pointer(pointers[role]), visible_ts))
        for role in sorted(pointers)
    ]
    return {
        "mass": np.stack([score.value for score in found], axis=1),
        "corrected": np.stack([score.corrected for score in found], axis=1),
        "n_rows": np.array([score.n_rows for score in found]),
    }

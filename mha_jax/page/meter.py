"""What the page's cache meter computes with: numbers that a layer keeps, and for how many tokens.

The page multiplies them with a context, a batch and a dtype of the reader's; the rule is that of
`layer_cost.cache_bytes`.
"""

from __future__ import annotations

from typing import Any

from mha_jax import mixers
from mha_jax.config import KV_BITS, LayerSpec, ModelSpec
from mha_jax.layer_cost import DTYPE_BYTES, mixer_cost


def meter(model: ModelSpec) -> dict[str, Any]:
    """For MHA with the same heads, this model and MQA one entry a layer, and the bytes of dtypes.

    MHA and MQA keep 2 k h numbers of every token and layer, k = n and k = 1, as `decode_cost`
    compares with.
    """
    return {
        "dtype": model.cache_dtype,
        "bytes": DTYPE_BYTES,
        "models": {
            "MHA": [_plain(2 * layer.n_heads * layer.d_head) for layer in model.layers],
            "this model": [_kept(layer, model) for layer in model.layers],
            "MQA": [_plain(2 * layer.d_head) for layer in model.layers],
        },
    }


def _plain(per_token: int) -> dict[str, Any]:
    return {"per_token": per_token, "state": 0, "slots": 0}


def _kept(layer: LayerSpec, model: ModelSpec) -> dict[str, Any]:
    """Numbers of a token; of a sequence, however long; the most tokens kept, 0: all of them; and
    where they are quantised by what."""
    cost = mixer_cost(layer, model)
    windowed = layer.window and layer.mixer in mixers.own()
    slots = layer.n_sinks + layer.window if windowed else 0
    kept = {"per_token": cost.cache_elements, "state": cost.state_elements, "slots": slots}
    if model.kv_quant == "none" or layer.kv_from is not None or layer.mixer != "grouped":
        return kept
    sizes = {"k": layer.n_kv_heads, "h": layer.d_head}
    rules = {"bits": KV_BITS[model.kv_quant], "group": model.kv_group, "tail": model.kv_tail}
    return kept | {"quantised": sizes | rules}

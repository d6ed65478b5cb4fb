"""What the mixer of one layer costs, by arithmetic on its config.

Letters as in `attention/core.py`: d d_model, n query heads, k kv heads, h d_head; c d_latent, p
d_latent_q, e d_rope. Builds no array and imports no jax. A mixer of the user's is asked for its own
`cost(layer, model)`; what the numbers mean stands in `LayerCost`.
"""

from __future__ import annotations

from typing import NamedTuple

from mha_jax import mixers
from mha_jax.config import KV_BITS, LayerSpec, ModelSpec

DTYPE_BYTES = {"float32": 4, "bfloat16": 2}


class LayerCost(NamedTuple):
    """The mixer of one layer."""

    params: int
    cache_elements: int  # numbers kept for each token of a sequence while decoding
    state_elements: int  # numbers kept for a sequence however long it is
    flops: int  # for each token: products with parameters, forward
    flops_per_key: int  # for each pair of query and key: scores and weighted values, forward


def mixer_cost(layer: LayerSpec, model: ModelSpec) -> LayerCost:
    """Cost of a layer's mixer.

    Raises:
      Exception: whatever the `cost` of a user's own mixer raises; AttributeError or KeyError if it
        is missing or partial.
    """
    own = {"grouped": _grouped, "mla": _mla, "gta": _gta}
    if layer.mixer in own:
        return own[layer.mixer](layer, model)
    told = mixers.module(layer.mixer).cost(layer, model)
    return LayerCost(**{name: int(told[name]) for name in LayerCost._fields})


def _grouped(layer: LayerSpec, model: ModelSpec) -> LayerCost:
    n, k, h = layer.n_heads, layer.n_kv_heads, layer.d_head
    borrows, shared = layer.kv_from is not None, model.share in ("kv", "qkv")
    columns = [n * h]  # wq, and the columns of each further matrix [d, columns]
    columns += [] if borrows or model.share in ("qk", "qkv") else [k * h]
    columns += [] if borrows or shared else [k * h]
    norms = h * (1 if borrows else 2) if model.qk_norm else 0
    return _attention(
        layer,
        model,
        columns,
        more=norms,
        # With shared keys and values both are made of one array.
        cache_elements=0 if borrows else (1 if shared else 2) * k * h,
        flops_per_key=4 * n * h,
    )


def _mla(layer: LayerSpec, model: ModelSpec) -> LayerCost:
    n, k, h = layer.n_heads, layer.n_kv_heads, layer.d_head
    c, p, e, d = model.d_latent, model.d_latent_q, model.d_rope, model.d_model
    columns = [k * c] + ([] if p else [n * h])  # those with a bias, beside gate and output
    matrices = d * e + 2 * c * n * h  # wkr, wuk, wuv
    matrices += (d * p + p * n * (h + e)) if p else d * n * e
    norms = (c + p) if model.qk_norm else 0
    whole = _attention(
        layer,
        model,
        columns,
        more=norms + (n * h if p and model.bias else 0),
        cache_elements=k * c + e,
        # Over whole sequences every head has keys and values of its own.
        flops_per_key=2 * n * (h + e) + 2 * n * h,
    )
    return whole._replace(params=whole.params + matrices, flops=whole.flops + 2 * matrices)


def _gta(layer: LayerSpec, model: ModelSpec) -> LayerCost:
    n, k, h = layer.n_heads, layer.n_kv_heads, layer.d_head
    columns = [n * h, k * h, h // 2]
    return _attention(
        layer, model, columns, more=0, cache_elements=k * h + h // 2, flops_per_key=4 * n * h
    )


def _attention(
    layer: LayerSpec,
    model: ModelSpec,
    columns: list[int],
    *,
    more: int,
    cache_elements: int,
    flops_per_key: int,
) -> LayerCost:
    """Adds gate, output and sink to the matrices [d, columns] and `more` parameters."""
    d, inner = model.d_model, layer.n_heads * layer.d_head
    columns = [*columns, inner] if model.gate else columns
    matrices = d * sum(columns) + (inner * d if model.use_wo else 0)
    biases = sum(columns) + (d if model.use_wo else 0)
    return LayerCost(
        params=matrices
        + (biases if model.bias else 0)
        + (layer.n_heads if model.sink_logit else 0)
        + more,
        cache_elements=cache_elements,
        state_elements=0,
        flops=2 * matrices,
        flops_per_key=flops_per_key,
    )


def decode_flops_per_key(layer: LayerSpec, model: ModelSpec) -> int:
    """`LayerCost.flops_per_key` of a decode step. With `mla` the queries there read the latents
    themselves, so that a key has c + e numbers and a value c: 2 n (2 c + e) (DeepSeek-AI 2024).
    """
    if layer.mixer == "mla":
        return 2 * layer.n_heads * (2 * model.d_latent + model.d_rope)
    return mixer_cost(layer, model).flops_per_key


def n_slots(layer: LayerSpec, context: int) -> int:
    """Tokens of a sequence that a layer keeps: all, or those of its window and its sinks."""
    return min(context, layer.n_sinks + layer.window) if layer.window else context


def cache_bytes(layer: LayerSpec, model: ModelSpec, context: int) -> int:
    """Bytes of what a layer keeps of a sequence with room for `context` tokens: as many as the
    arrays of `init_cache` have.

    Quantised, of the s tokens that are, keys and values take 2 s k h bits / 8, a step and a
    smallest value of each channel of k groups of tokens 2 (s / group) k h numbers, and of each
    token of the values 2 s k (Liu et al. 2024); of the others, at most tail + group, all is kept.
    """
    size, cost = DTYPE_BYTES[model.cache_dtype], mixer_cost(layer, model)
    if model.kv_quant == "none" or layer.kv_from is not None or layer.mixer != "grouped":
        kept = n_slots(layer, context) if layer.mixer in mixers.own() else context
        return (kept * cost.cache_elements + cost.state_elements) * size
    k, h, group, tail = layer.n_kv_heads, layer.d_head, model.kv_group, model.kv_tail
    s = max(context - tail, 0) // group * group
    numbers = 2 * s * k * (h * KV_BITS[model.kv_quant] // 8)
    scales = 2 * (s // group) * k * h + 2 * s * k
    return numbers + (scales + 2 * min(context, tail + group) * k * h) * size

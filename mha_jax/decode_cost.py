"""What decoding costs, by arithmetic on a config: bytes read, operations, and their ratio.

A step makes one token of each of b sequences. It reads the parameters once, whatever b is, and the
cache of every sequence; so a batch shares the first and not the second (Pope et al. 2022,
arXiv:2211.05102). Operations are 2 for each multiply-and-add of a product; norms, softmax and
activations are not counted. Letters as in `attention/core.py`. Builds no array and imports no jax.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

from mha_jax import cost
from mha_jax.config import LayerSpec, ModelSpec
from mha_jax.layer_cost import DTYPE_BYTES, decode_flops_per_key, mixer_cost, n_slots
from mha_jax.tasks import TaskSpec


class Experts(NamedTuple):
    """MLPs of which a token passes a few: numbers of weights, in all layers together."""

    always: int  # of routers and of experts that every token passes
    each: int  # of one routed expert of every layer that has them
    n: int  # routed experts of a layer
    sent: int  # of these, those that a token is sent to


@dataclasses.dataclass(frozen=True)
class LanguageModel:
    """A model that predicts its next token, as far as its costs go."""

    model: ModelSpec  # without MLP where there are experts
    spec: TaskSpec
    tied: bool = False  # the read-out's matrix is the table of tokens
    more: int = 0  # parameters of biases and norms that ModelSpec has no switch for
    experts: Experts | None = None

    def stored_in(self, dtype: str) -> LanguageModel:
        """The same with a cache of a dtype."""
        return dataclasses.replace(self, model=dataclasses.replace(self.model, cache_dtype=dtype))


def n_params(one: LanguageModel) -> int:
    """Parameters."""
    return _params(one, one.experts.n if one.experts else 0)


def n_params_active(one: LanguageModel) -> int:
    """Parameters that one token passes, tables included."""
    return _params(one, one.experts.sent if one.experts else 0)


def _params(one: LanguageModel, n_experts: int) -> int:
    table = sum(one.spec.input_sizes) * one.model.d_model if one.tied else 0
    described = cost.model_params(one.model, one.spec) + one.more - table
    return described + (one.experts.always + n_experts * one.experts.each if one.experts else 0)


def params_read(one: LanguageModel, b: int) -> int:
    """Parameters that a step for b sequences reads: all but tables, of which it reads a row, and of
    the experts those that a token of the batch is sent to, n (1 - (1 - sent / n)^b) of n in the
    mean, if tokens choose them evenly and for themselves.
    """
    model, spec = one.model, one.spec
    read = n_params(one) - (spec.length * model.d_model if model.positions == "learned" else 0)
    if not one.tied and spec.inputs != "vectors":
        width = spec.d_encoder if spec.encoder == "mlp" else model.d_model
        read -= sum(spec.input_sizes) * width
    if one.experts:
        _, each, n, sent = one.experts
        read -= round(n * each * (1 - sent / n) ** b)
    return read


def weight_bytes(one: LanguageModel, dtype: str) -> int:
    """Bytes of the parameters in a dtype."""
    return n_params(one) * DTYPE_BYTES[dtype]


def weight_bytes_read(one: LanguageModel, b: int, dtype: str) -> int:
    """Bytes of `params_read` in a dtype."""
    return params_read(one, b) * DTYPE_BYTES[dtype]


def bytes_read(one: LanguageModel, b: int, context: int, dtype: str) -> int:
    """Bytes that a decode step reads: parameters of a dtype, and the caches of b sequences that
    have room for `context` tokens, used or not.
    """
    return weight_bytes_read(one, b, dtype) + b * cost.kv_bytes_read(one.model, context)


def prefill_flops(one: LanguageModel, t: int) -> int:
    """Operations of a forward pass over a prompt of t tokens, with a read-out at each. A query
    counts the keys that it sees: those before it and itself, or its window and sinks.
    """
    attention = sum(
        mixer_cost(layer, one.model).flops_per_key * n_pairs(layer, t) for layer in one.model.layers
    )
    return _flops_of_weights(one) * t + attention


def decode_flops(one: LanguageModel, context: int) -> int:
    """Operations of one sequence in a decode step after which it has `context` tokens."""
    attention = sum(
        decode_flops_per_key(layer, one.model) * n_slots(layer, context)
        for layer in one.model.layers
    )
    return _flops_of_weights(one) + attention


def _flops_of_weights(one: LanguageModel) -> int:
    experts = one.experts.always + one.experts.sent * one.experts.each if one.experts else 0
    return cost.weight_flops(one.model, one.spec) + 2 * experts


def n_pairs(layer: LayerSpec, t: int) -> int:
    """Pairs of a query and a key that it sees, over t tokens."""
    most = n_slots(layer, t)  # what a late query sees
    return most * (most + 1) // 2 + (t - most) * most


def intensity(one: LanguageModel, b: int, context: int, dtype: str) -> float:
    """Operations of a decode step for each byte that it reads."""
    return b * decode_flops(one, context) / bytes_read(one, b, context, dtype)


def ratio_to_mha(model: ModelSpec, context: int) -> float:
    """Resident bytes of the cache, as a share of what MHA with the same heads would keep: 2 n h
    numbers for each token and layer.
    """
    numbers = context * sum(2 * layer.n_heads * layer.d_head for layer in model.layers)
    full = numbers * DTYPE_BYTES[model.cache_dtype]
    return cost.kv_bytes_resident(model, context) / full


def shard(model: ModelSpec, n_devices: int) -> ModelSpec:
    """What one of several devices has of a model whose heads they share out: a kv head, or a
    latent, stands on each device with a query head that reads it (Zadouri, Strauss and Dao 2025,
    arXiv:2505.21487, section 3).

    Raises:
      ValueError: heads that cannot be shared out evenly.
    """

    def part(layer: LayerSpec) -> LayerSpec:
        n, k = layer.n_heads, layer.n_kv_heads
        if n % n_devices or (k % n_devices and n_devices % k):
            raise ValueError(f"{n_devices} devices cannot share out {n} heads and {k} kv heads")
        return dataclasses.replace(layer, n_heads=n // n_devices, n_kv_heads=max(1, k // n_devices))

    return dataclasses.replace(model, layers=tuple(map(part, model.layers)))

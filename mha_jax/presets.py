"""Well-known published models, as far as the cost of decoding goes.

Shapes are those of the `config.json` of the repository that is named; every number that is told of
a model is computed from them. `published` is the number of parameters of its checkpoint, which they
give exactly (DeepSeek-V3: without its module for a second next token).
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

from mha_jax.config import LayerSpec, ModelSpec
from mha_jax.decode_cost import Experts, LanguageModel
from mha_jax.tasks import TaskSpec


class Preset(NamedTuple):
    """A published model."""

    one: LanguageModel  # its `spec.length`: tokens that its authors made it for
    published: int  # parameters
    source: str


def _grouped(
    repository: str,
    published: int,
    d_model: int,
    n_layers: int,
    heads: tuple[int, int, int],  # n_heads, n_kv_heads, d_head
    d_ff: int,
    vocabulary: int,
    length: int,
    *,
    windows: tuple[int, ...] = (0,),  # of the first layers; they repeat
    qk_norm: bool = False,
    more_norms: bool = False,  # one more behind each mixer and each MLP
    qkv_bias: bool = False,
    tied: bool = False,
) -> Preset:
    n, k, h = heads
    layers = [
        LayerSpec("grouped", n, k, h, d_ff, windows[i % len(windows)], n_sinks=0, kv_from=None)
        for i in range(n_layers)
    ]
    more = 2 * d_model if more_norms else 0
    more += (n + 2 * k) * h if qkv_bias else 0
    one = LanguageModel(
        _model(d_model, layers, qk_norm=qk_norm),
        _spec(vocabulary, length),
        tied,
        n_layers * more,
    )
    return Preset(one, published, f"config.json of {repository}")


def _mla(n_heads: int, d_latent_q: int) -> tuple[LayerSpec, dict[str, Any]]:
    layer = LayerSpec("mla", n_heads, 1, 128, d_ff=0, window=0, n_sinks=0, kv_from=None)
    return layer, {"d_latent": 512, "d_latent_q": d_latent_q, "d_rope": 64, "qk_norm": True}


def _sparse(
    source: str,
    published: int,
    d_model: int,
    n_layers: int,
    attention: tuple[LayerSpec, dict[str, Any]],  # a layer without MLP; switches of the model
    dense: tuple[int, int],  # first layers that have one MLP, and its d_ff
    experts: tuple[int, int, int, int],  # routed ones, those a token is sent to, shared ones; d_ff
    vocabulary: int,
    length: int,
    *,
    router_bias: bool = False,
) -> Preset:
    layer, switches = attention
    (n_dense, d_ff), (n, sent, shared, d_expert) = dense, experts
    layers = [dataclasses.replace(layer, d_ff=d_ff)] * n_dense + [layer] * (n_layers - n_dense)
    n_sparse, expert = n_layers - n_dense, 3 * d_model * d_expert
    one = LanguageModel(
        _model(d_model, layers, **switches),
        _spec(vocabulary, length),
        # A norm before the experts.
        more=n_sparse * (d_model + (n if router_bias else 0)),
        experts=Experts(n_sparse * (d_model * n + shared * expert), n_sparse * expert, n, sent),
    )
    return Preset(one, published, f"config.json of {source}")


def _model(d_model: int, layers: list[LayerSpec], **changes: Any) -> ModelSpec:
    common: dict[str, Any] = {
        "positions": "rope",
        "qk_from": "content",
        "norm": "rms",
        "residual": True,
        "bias": False,
        "activation": "swiglu",  # Gemma's has GELU in it, and as many products
        "scale": True,
        "use_wo": True,
        "share": "none",
        "qk_norm": False,
        "gate": False,
        "sink_logit": False,
        "d_latent": 0,
        "d_latent_q": 0,
        "d_rope": 0,
        "kv_quant": "none",
        "kv_group": 1,
        "kv_tail": 0,
        "kv_init": "fresh",
        "kernel": "auto",
        "compute_dtype": "bfloat16",
        "cache_dtype": "bfloat16",
    }
    return ModelSpec(d_model=d_model, layers=tuple(layers), **{**common, **changes})


def _spec(vocabulary: int, length: int) -> TaskSpec:
    return TaskSpec(
        inputs="tokens",
        input_sizes=(vocabulary,),
        length=length,
        mask="causal",
        outputs=("token",),
        output_size=vocabulary,
        kind="class",
        metric="bits_per_token",
        direction="min",
        chance=0.0,
        solved_at=None,
        roles=(),
        autoregressive=True,
    )


_GEMMA_2: dict[str, Any] = {"windows": (4096, 0), "more_norms": True, "tied": True}
_GEMMA_3: dict[str, Any] = {"qk_norm": True, "more_norms": True, "tied": True}
# Repository, parameters; d_model, layers, (query heads, kv heads, d_head), d_ff; tokens there are,
# tokens in a sequence.
# fmt: off
PRESETS: dict[str, Preset] = {
    "llama-2-7b": _grouped(
        "meta-llama/Llama-2-7b-hf", 6_738_415_616,
        4096, 32, (32, 32, 128), 11008, 32000, 4096),
    "llama-2-13b": _grouped(
        "meta-llama/Llama-2-13b-hf", 13_015_864_320,
        5120, 40, (40, 40, 128), 13824, 32000, 4096),
    "llama-2-70b": _grouped(
        "meta-llama/Llama-2-70b-hf", 68_976_648_192,
        8192, 80, (64, 8, 128), 28672, 32000, 4096),
    "llama-3-8b": _grouped(
        "meta-llama/Meta-Llama-3-8B", 8_030_261_248,
        4096, 32, (32, 8, 128), 14336, 128256, 8192),
    "llama-3-70b": _grouped(
        "meta-llama/Meta-Llama-3-70B", 70_553_706_496,
        8192, 80, (64, 8, 128), 28672, 128256, 8192),
    "llama-3.1-405b": _grouped(
        "meta-llama/Llama-3.1-405B", 405_853_388_800,
        16384, 126, (128, 8, 128), 53248, 128256, 131072),
    "llama-3.2-1b": _grouped(
        "meta-llama/Llama-3.2-1B", 1_235_814_400,
        2048, 16, (32, 8, 64), 8192, 128256, 131072, tied=True),
    "llama-3.2-3b": _grouped(
        "meta-llama/Llama-3.2-3B", 3_212_749_824,
        3072, 28, (24, 8, 128), 8192, 128256, 131072, tied=True),
    "mistral-7b-v0.1": _grouped(
        "mistralai/Mistral-7B-v0.1", 7_241_732_096,
        4096, 32, (32, 8, 128), 14336, 32000, 32768, windows=(4096,)),
    "mistral-7b-v0.3": _grouped(
        "mistralai/Mistral-7B-v0.3", 7_248_023_552,
        4096, 32, (32, 8, 128), 14336, 32768, 32768),
    "mixtral-8x7b": _sparse(
        "mistralai/Mixtral-8x7B-v0.1; Jiang et al. 2024, arXiv:2401.04088", 46_702_792_704,
        4096, 32, (LayerSpec("grouped", 32, 8, 128, 0, 0, 0, None), {}),
        (0, 0), (8, 2, 0, 14336), 32000, 32768),
    "qwen2.5-7b": _grouped(
        "Qwen/Qwen2.5-7B", 7_615_616_512,
        3584, 28, (28, 4, 128), 18944, 152064, 131072, qkv_bias=True),
    "qwen2.5-72b": _grouped(
        "Qwen/Qwen2.5-72B", 72_706_203_648,
        8192, 80, (64, 8, 128), 29568, 152064, 131072, qkv_bias=True),
    "qwen3-8b": _grouped(
        "Qwen/Qwen3-8B", 8_190_735_360,
        4096, 36, (32, 8, 128), 12288, 151936, 40960, qk_norm=True),
    "qwen3-32b": _grouped(
        "Qwen/Qwen3-32B", 32_762_123_264,
        5120, 64, (64, 8, 128), 25600, 151936, 40960, qk_norm=True),
    "gemma-2b": _grouped(
        "google/gemma-2b", 2_506_172_416,
        2048, 18, (8, 1, 256), 16384, 256000, 8192, tied=True),
    "gemma-7b": _grouped(
        "google/gemma-7b", 8_537_680_896,
        3072, 28, (16, 16, 256), 24576, 256000, 8192, tied=True),
    "gemma-2-9b": _grouped(
        "google/gemma-2-9b", 9_241_705_984,
        3584, 42, (16, 8, 256), 14336, 256000, 8192, **_GEMMA_2),
    "gemma-2-27b": _grouped(
        "google/gemma-2-27b", 27_227_128_320,
        4608, 46, (32, 16, 128), 36864, 256000, 8192, **_GEMMA_2),
    "gemma-3-1b": _grouped(
        "google/gemma-3-1b-pt", 999_885_952,
        1152, 26, (4, 1, 256), 6912, 262144, 32768, windows=(*(512,) * 5, 0), **_GEMMA_3),
    "deepseek-v2": _sparse(
        "deepseek-ai/DeepSeek-V2; DeepSeek-AI 2024, arXiv:2405.04434", 235_741_434_880,
        5120, 60, _mla(128, 1536), (1, 12288), (160, 6, 2, 1536), 102400, 131072),
    "deepseek-v2-lite": _sparse(
        "deepseek-ai/DeepSeek-V2-Lite; DeepSeek-AI 2024, arXiv:2405.04434", 15_706_484_224,
        2048, 27, _mla(16, 0), (1, 10944), (64, 6, 2, 1408), 102400, 32768),
    "deepseek-v3": _sparse(
        "deepseek-ai/DeepSeek-V3; DeepSeek-AI 2024, arXiv:2412.19437", 671_026_419_200,
        7168, 61, _mla(128, 1536), (3, 18432), (256, 8, 1, 2048), 129280, 131072,
        router_bias=True),
}
# fmt: on

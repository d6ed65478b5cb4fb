"""Hugging Face's Llama with a StaticCache, one forward call a token; and `generate`, as it is by
default. Imports no jax.
"""

from __future__ import annotations

import os
import time
from typing import Any

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM, StaticCache, StoppingCriteria

from mha_jax.bench.side import Handlers, timed

_built: dict[str, Any] = {}


def build(run: dict[str, Any], b: int, capacity: int, read: str, dtype: str) -> dict[str, Any]:
    """The model of a run with the parameters that `decode_ours.build` wrote, in a dtype."""
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    torch.set_grad_enabled(False)
    with np.load(read) as file:
        params = dict(file)
    told = run["static"]["model"]
    layer, vocab = told["layers"][0], params["encoder/embed/0"].shape[0]
    config = LlamaConfig(
        vocab_size=vocab,
        hidden_size=told["d_model"],
        intermediate_size=layer["d_ff"],
        num_hidden_layers=len(told["layers"]),
        num_attention_heads=layer["n_heads"],
        num_key_value_heads=layer["n_kv_heads"],
        head_dim=layer["d_head"],
        max_position_embeddings=capacity,
        rms_norm_eps=1e-6,
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
        attn_implementation="sdpa",
    )
    model = LlamaForCausalLM(config).eval()
    model.load_state_dict(_state(params, len(told["layers"])))
    model = model.to(getattr(torch, dtype))
    _built.update(model=model, b=b, capacity=capacity, cache=StaticCache(config, capacity))
    _step(torch.zeros((b, 1), dtype=torch.long))
    return {"torch": torch.__version__}


def _state(params: dict[str, np.ndarray], n_layers: int) -> dict[str, torch.Tensor]:
    """Our parameters under Llama's names; its matrices are [out, in], its rotary pairs ours."""
    state = {
        "model.embed_tokens.weight": params["encoder/embed/0"],
        "model.norm.weight": params["norm/scale"],
        "lm_head.weight": params["readout/out/w"].T,
    }
    matrices = {f"self_attn.{x}_proj": f"mixer/w{x}" for x in "qkvo"}
    matrices |= {
        "mlp.gate_proj": "mlp/wg/w",
        "mlp.up_proj": "mlp/wi/w",
        "mlp.down_proj": "mlp/wo/w",
    }
    for i in range(n_layers):
        ours, theirs = f"layers/{i}", f"model.layers.{i}"
        state[f"{theirs}.input_layernorm.weight"] = params[f"{ours}/norm_mixer/scale"]
        state[f"{theirs}.post_attention_layernorm.weight"] = params[f"{ours}/norm_mlp/scale"]
        for to, name in matrices.items():
            state[f"{theirs}.{to}.weight"] = params[f"{ours}/{name}"].T
    return {name: torch.tensor(np.ascontiguousarray(x)) for name, x in state.items()}


def _step(tokens_bc: torch.Tensor) -> torch.Tensor:
    """Logits [b, v] after the next tokens."""
    out = _built["model"](tokens_bc, past_key_values=_built["cache"], use_cache=True)
    return out.logits[:, -1]


def _at(length: int) -> None:
    """The cache as if it held so many tokens."""
    for layer in _built["cache"].layers:
        layer.cumulative_length.fill_(length)


def tokens(prompts: list[list[int]], given: list[list[int]], write: str) -> dict[str, Any]:
    """What follows the prompts, step by step, if the tokens [b, n] do: writes the likeliest token
    of each step, and the logits after the last.
    """
    _at(0)
    logits_bv = _step(torch.tensor(prompts))
    made = []
    for token_b in torch.tensor(given).T:
        made.append(logits_bv.argmax(dim=1))
        logits_bv = _step(token_b[:, None])
    np.savez(write, tokens=torch.stack(made, 1).numpy(), logits=logits_bv.float().numpy())
    return {}


def steps(n: int) -> dict[str, float]:
    """The last n tokens that the cache has room for, each the likeliest after the one before."""
    _at(_built["capacity"] - n)

    def work() -> None:
        token_b1 = torch.zeros((_built["b"], 1), dtype=torch.long)
        for _ in range(n):
            token_b1 = _step(token_b1).argmax(dim=1, keepdim=True)

    return timed(work)


class _Clock(StoppingCriteria):
    """When each token was there; ends nothing."""

    def __init__(self) -> None:
        self.at: list[tuple[float, float]] = []

    def __call__(self, input_ids: Any, scores: Any, **more: Any) -> torch.Tensor:
        self.at.append((time.perf_counter(), time.process_time()))
        return torch.zeros(len(input_ids), dtype=torch.bool)


def generate(n: int) -> dict[str, float]:
    """n steps of `generate` after a prompt that fills the rest of the room; from its first token
    on, so without the prompt's pass.
    """
    clock = _Clock()
    prompt = torch.zeros((_built["b"], _built["capacity"] - n - 1), dtype=torch.long)
    mask = torch.ones_like(prompt)
    told = timed(
        lambda: _built["model"].generate(
            prompt,
            attention_mask=mask,
            do_sample=False,
            max_new_tokens=n + 1,
            stopping_criteria=[clock],
        )
    )
    (start, start_cpu), (end, end_cpu) = clock.at[0], clock.at[-1]
    return {**told, "seconds": end - start, "cpu_s": end_cpu - start_cpu}


HANDLERS: Handlers = {"build": build, "tokens": tokens, "steps": steps, "generate": generate}

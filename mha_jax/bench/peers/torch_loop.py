"""Eager torch as it is fastest on a CPU: joined q, k and v, `scaled_dot_product_attention`, fused
AdamW, gradients set to None; in bfloat16 under autocast. Imports no jax.
"""

from __future__ import annotations

import contextlib
import os
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from mha_jax.bench.side import Handlers, timed

_built: dict[str, Any] = {}


class Block(nn.Module):
    """Pre-norm attention and MLP."""

    def __init__(self, d: int, n_heads: int, d_ff: int):
        super().__init__()
        self.n_heads = n_heads
        self.norm_mixer = nn.LayerNorm(d, eps=1e-6)
        self.qkv = nn.Linear(d, 3 * d, bias=False)
        self.out = nn.Linear(d, d, bias=False)
        self.norm_mlp = nn.LayerNorm(d, eps=1e-6)
        self.wi = nn.Linear(d, d_ff, bias=False)
        self.wo = nn.Linear(d_ff, d, bias=False)

    def forward(self, x_btd: torch.Tensor) -> torch.Tensor:
        b, t, d = x_btd.shape
        q, k, v = (
            y.view(b, t, self.n_heads, -1).transpose(1, 2)
            for y in self.qkv(self.norm_mixer(x_btd)).split(d, dim=2)
        )
        z_bnth = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x_btd = x_btd + self.out(z_bnth.transpose(1, 2).reshape(b, t, d))
        hidden = F.gelu(self.wi(self.norm_mlp(x_btd)), approximate="tanh")
        return x_btd + self.wo(hidden)


class Net(nn.Module):
    """Tokens [b, t] to logits [b, t, v]."""

    def __init__(self, sizes: tuple[int, ...], n_heads: int, n_layers: int):
        super().__init__()
        vocab, length, d, d_ff = sizes
        self.embed = nn.Embedding(vocab, d)
        self.positions = nn.Parameter(torch.zeros(length, d))
        self.blocks = nn.ModuleList(Block(d, n_heads, d_ff) for _ in range(n_layers))
        self.norm = nn.LayerNorm(d, eps=1e-6)
        self.readout = nn.Linear(d, vocab, bias=False)

    def forward(self, tokens_bt: torch.Tensor) -> torch.Tensor:
        x_btd = self.embed(tokens_bt) + self.positions
        for block in self.blocks:
            x_btd = block(x_btd)
        return self.readout(self.norm(x_btd))


class Trainer:
    """A model with its optimizer and its schedule."""

    def __init__(self, run: dict[str, Any], arrays: dict[str, np.ndarray]):
        static, hypers = run["static"], run["hypers"]
        optim, n_steps = static["optim"], static["train"]["n_steps"]
        self.model = _model(static["model"], arrays)
        self.clip = optim["clip"]
        bf16 = static["model"]["compute_dtype"] == "bfloat16"
        self.precision: Any = (
            torch.autocast("cpu", dtype=torch.bfloat16) if bf16 else contextlib.nullcontext()
        )
        matrices = [p for p in self.model.parameters() if p.ndim > 1]
        vectors = [p for p in self.model.parameters() if p.ndim == 1]
        self.optimizer = torch.optim.AdamW(
            [
                {"params": matrices, "weight_decay": hypers["weight_decay"]},
                {"params": vectors, "weight_decay": 0.0},
            ],
            lr=hypers["lr"],
            betas=(optim["b1"], optim["b2"]),
            eps=optim["eps"],
            fused=True,
        )
        n_fall = round(optim["decay_fraction"] * n_steps)
        self.schedule = torch.optim.lr_scheduler.LambdaLR(
            self.optimizer,
            lambda step: min(
                1.0,
                (step + 1) / optim["warmup_steps"],
                max(0.0, (n_steps - step) / n_fall),
            ),
        )

    def step(
        self, inputs_bt: torch.Tensor, targets_bt: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """One update; the loss and the norm of the gradient."""
        with self.precision:
            logits_btv = self.model(inputs_bt)
            loss = F.cross_entropy(logits_btv.flatten(0, 1), targets_bt.flatten())
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
        self.optimizer.step()
        self.schedule.step()
        return loss.detach(), norm


def build(run: dict[str, Any], n_models: int, read: str) -> dict[str, Any]:
    """`n_models` models with the parameters of `read`, and its batches in memory.

    Args:
      run: the JSON of a `config.Run` of configs/bench.py.
      n_models: how many.
      read: what `train_ours.build` wrote.
    """
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    arrays = dict(np.load(read))
    pairs = zip(arrays["inputs"], arrays["targets"], strict=True)
    batches = [(torch.tensor(x).long(), torch.tensor(y).long()) for x, y in pairs]
    _built.update(trainers=[Trainer(run, arrays) for _ in range(n_models)], batches=batches, step=0)
    Trainer(run, arrays).step(*batches[0])  # warms up on a model of its own
    return {"torch": torch.__version__}


def _model(told: dict[str, Any], arrays: dict[str, np.ndarray]) -> Net:
    layer, d = told["layers"][0], told["d_model"]
    vocab, length = arrays["params/readout/out/w"].shape[1], arrays["inputs"].shape[2]
    model = Net((vocab, length, d, layer["d_ff"]), layer["n_heads"], len(told["layers"]))
    state: dict[str, np.ndarray] = {
        "embed.weight": arrays["params/encoder/embed/0"],
        "positions": arrays["params/positions"],
        "readout.weight": arrays["params/readout/out/w"].T,
        "norm.weight": arrays["params/norm/scale"],
        "norm.bias": arrays["params/norm/bias"],
    }
    for i in range(len(told["layers"])):
        ours, theirs = f"params/layers/{i}", f"blocks.{i}"
        qkv = [arrays[f"{ours}/mixer/w{letter}"] for letter in "qkv"]
        state[f"{theirs}.qkv.weight"] = np.concatenate(qkv, axis=1).T
        state[f"{theirs}.out.weight"] = arrays[f"{ours}/mixer/wo"].T
        state[f"{theirs}.wi.weight"] = arrays[f"{ours}/mlp/wi/w"].T
        state[f"{theirs}.wo.weight"] = arrays[f"{ours}/mlp/wo/w"].T
        for name in ("norm_mixer", "norm_mlp"):
            state[f"{theirs}.{name}.weight"] = arrays[f"{ours}/{name}/scale"]
            state[f"{theirs}.{name}.bias"] = arrays[f"{ours}/{name}/bias"]
    model.load_state_dict({key: torch.tensor(x) for key, x in state.items()})
    return model


def _step(i: int) -> tuple[torch.Tensor, torch.Tensor]:
    batches, step = _built["batches"], _built["step"]
    _built["step"] += 1
    return _built["trainers"][i].step(*batches[step % len(batches)])


def losses(n: int) -> dict[str, Any]:
    """Of n steps of the first model, made by the method that is timed."""
    told: dict[str, list[float]] = {"losses": [], "grad_norms": []}
    for _ in range(n):
        loss, norm = _step(0)
        told["losses"].append(float(loss))
        told["grad_norms"].append(float(norm))
    return told


def steps(n: int) -> dict[str, float]:
    """n steps of every model, one model after another."""

    def work() -> None:
        for i in range(len(_built["trainers"])):
            for _ in range(n):
                _step(i)

    return timed(work)


HANDLERS: Handlers = {"build": build, "losses": losses, "steps": steps}

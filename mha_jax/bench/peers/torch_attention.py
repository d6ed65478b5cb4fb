"""torch's `scaled_dot_product_attention`, on arrays as it likes them: heads before positions,
contiguous. Imports no jax.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from mha_jax.bench.side import Handlers, timed

_built: dict[str, Any] = {}


def both() -> tuple[torch.Tensor, ...]:
    """z and the gradients by queries, keys and values, heads before positions."""
    q, k, v, dz = _built["arrays"]
    grouped = q.shape[1] != k.shape[1]
    z = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=grouped)
    return z.detach(), *torch.autograd.grad(z, (q, k, v), dz)


def build(read: str, write: str) -> dict[str, Any]:
    """See `attention_ours`."""
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    with np.load(read) as file:
        arrays = [torch.tensor(file[x]).transpose(1, 2).contiguous() for x in ("q", "k", "v", "dz")]
    _built["arrays"] = [x.requires_grad_() for x in arrays[:3]] + arrays[3:]
    results = [x.transpose(1, 2).numpy() for x in both()]
    named: dict[str, Any] = dict(zip(("z", "dq", "dk", "dv"), results, strict=True))
    np.savez(write, **named)
    return {"torch": torch.__version__}


def steps(n: int) -> dict[str, float]:
    """n forward and backward passes."""

    def work() -> None:
        for _ in range(n):
            both()

    return timed(work)


HANDLERS: Handlers = {"build": build, "steps": steps}

"""`jax.nn.dot_product_attention` in its `xla` form, which knows causal masks and kv heads."""

from __future__ import annotations

from typing import Any

import jax

from mha_jax.bench.attention_ours import build_of, steps
from mha_jax.bench.side import Handlers


def attend(q_btnh: jax.Array, k_bskh: jax.Array, v_bskh: jax.Array) -> jax.Array:
    """z [b, t, n, h], causal."""
    return jax.nn.dot_product_attention(
        q_btnh, k_bskh, v_bskh, is_causal=True, implementation="xla"
    )


def build(read: str, write: str) -> dict[str, Any]:
    """Of `attend`."""
    return build_of(attend, read, write)


HANDLERS: Handlers = {"build": build, "steps": steps}

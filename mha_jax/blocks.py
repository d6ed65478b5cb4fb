"""The parts of a transformer that know no position: linear map, norm, MLP; all on rows."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from mha_jax.attention.init import fold, normal
from mha_jax.attention.product import product
from mha_jax.config import ModelSpec


class Linear(nnx.Module):
    """Linear map on rows: w [d_in, d_out] of standard deviation d_in^-0.5, bias of zeros."""

    def __init__(self, d_in: int, d_out: int, *, bias: bool, dtype: Any, key: jax.Array):
        self.w = nnx.Param(normal(key, "w", (d_in, d_out)))
        self.b = nnx.Param(jnp.zeros(d_out)) if bias else None
        self.dtype = dtype

    def __call__(self, x: jax.Array) -> jax.Array:
        y = product(x, self.w[...], self.dtype)
        return y if self.b is None else y + self.b[...].astype(self.dtype)[None]


class Norm(nnx.Module):
    """`none`, `layer` (scale and bias) or `rms` (scale), over the last axis, in float32."""

    def __init__(self, kind: str, width: int):
        self.kind = kind
        self.scale = nnx.Param(jnp.ones(width)) if kind != "none" else None
        self.bias = nnx.Param(jnp.zeros(width)) if kind == "layer" else None

    def __call__(self, x: jax.Array) -> jax.Array:
        if self.scale is None:
            return x
        if self.bias is not None:
            x = x - x.mean(axis=1, keepdims=True)
        x = (
            x
            * jax.lax.rsqrt(jnp.mean(jnp.square(x), axis=1, keepdims=True) + 1e-6)
            * self.scale[...][None]
        )
        return x if self.bias is None else x + self.bias[...][None]


class MLP(nnx.Module):
    """wo(activation(wi(x))); with swiglu wo(silu(wg(x)) * wi(x)) (Shazeer 2020)."""

    def __init__(self, model: ModelSpec, d_ff: int, *, key: jax.Array):
        d = model.d_model
        like: dict[str, Any] = {"bias": model.bias, "dtype": jnp.dtype(model.compute_dtype)}
        self.activation = model.activation
        self.wi = Linear(d, d_ff, key=fold(key, "wi"), **like)
        self.wg = (
            Linear(d, d_ff, key=fold(key, "wg"), **like) if model.activation == "swiglu" else None
        )
        self.wo = Linear(d_ff, d, key=fold(key, "wo"), **like)

    def __call__(self, x: jax.Array) -> jax.Array:
        hidden = self.wi(x).astype(jnp.float32)
        if self.wg is not None:
            hidden = jax.nn.silu(self.wg(x).astype(jnp.float32)) * hidden
        else:
            hidden = {"gelu": jax.nn.gelu, "relu": jax.nn.relu}[self.activation](hidden)
        return self.wo(hidden)

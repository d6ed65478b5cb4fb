"""Both ends of a model: from a task's inputs to the residual stream, and from it to the outputs."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from mha_jax.attention.init import fold, normal
from mha_jax.blocks import Linear
from mha_jax.config import ModelSpec
from mha_jax.tasks import TaskSpec


class Encoder(nnx.Module):
    """Inputs to rows [b*t, d].

    Tokens, and fields, which are summed, read a row of a table [size, d] each; vectors have one
    matrix [size, d]. With encoder = mlp these are [size, d_encoder] with a bias, then ReLU and a
    map [d_encoder, d] with a bias.

    Rows of tables, positions and query token start with length 1, and so do encoded vectors of
    unit variance: entries of unit variance would saturate the first softmax, and four heads then
    left `relations` unsolved after 3,000 steps on some seeds.
    """

    def __init__(self, model: ModelSpec, spec: TaskSpec, *, key: jax.Array):
        self.kind, mlp = spec.inputs, spec.encoder == "mlp"
        self.dtype = jnp.dtype(model.compute_dtype)
        width = spec.d_encoder if mlp else model.d_model
        fan_in = spec.input_sizes[0] if self.kind == "vectors" else 1  # a table reads one row
        fan_in *= 1 if mlp else model.d_model
        self.embed = nnx.List(
            nnx.Param(normal(key, f"embed/{i}", (size, width), fan_in))
            for i, size in enumerate(spec.input_sizes)
        )
        biased = mlp or (model.bias and self.kind == "vectors")
        self.bias = nnx.Param(jnp.zeros(width)) if biased else None
        like: dict[str, Any] = {"bias": True, "dtype": self.dtype, "key": fold(key, "out")}
        self.out = Linear(width, model.d_model, **like) if mlp else None

    def __call__(self, inputs: jax.Array) -> jax.Array:
        first = self.embed[0][...]
        if self.kind == "vectors":
            rows = inputs.reshape(-1, first.shape[0]).astype(self.dtype)
            x = (rows @ first.astype(self.dtype)).astype(jnp.float32)
        else:
            ids = inputs.reshape(-1, len(self.embed))
            x = first[ids[:, 0]]
            for i, table in enumerate(self.embed[1:], 1):
                x = x + table[...][ids[:, i]]
        x = x if self.bias is None else x + self.bias[...][None]
        return x if self.out is None else self.out(jax.nn.relu(x)).astype(jnp.float32)


class Readout(nnx.Module):
    """Rows to the read-out heads, float32 [rows, o*v]: linear, or one hidden GELU layer. A task
    whose read-out is "none" has no such module: its answer is the rows themselves.
    """

    def __init__(self, d_in: int, model: ModelSpec, spec: TaskSpec, *, key: jax.Array):
        mlp = spec.readout == "mlp"
        like: dict[str, Any] = {
            "bias": mlp or model.bias,
            "dtype": jnp.dtype(model.compute_dtype),
        }
        self.hidden = Linear(d_in, spec.d_readout, key=fold(key, "hidden"), **like) if mlp else None
        d_hidden, d_out = spec.d_readout if mlp else d_in, len(spec.outputs) * spec.output_size
        self.out = Linear(d_hidden, d_out, key=fold(key, "out"), **like)

    def __call__(self, x: jax.Array) -> jax.Array:
        if self.hidden is not None:
            x = jax.nn.gelu(self.hidden(x).astype(jnp.float32))
        return self.out(x).astype(jnp.float32)

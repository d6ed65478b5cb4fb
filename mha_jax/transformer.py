"""The transformer: encoder, layers of mixer and MLP, read-out.

The residual stream is kept as rows [b*t, d] in float32: on a CPU the backward pass of a linear map
over [b, t, d] takes twice as long. Letters as in `attention/core.py`, and o read-out heads of v
outputs each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from mha_jax import mixers
from mha_jax.attention import core
from mha_jax.attention.init import fold, normal
from mha_jax.attention.stops import Context, Replacement
from mha_jax.blocks import MLP, Linear, Norm
from mha_jax.config import LayerSpec, ModelSpec
from mha_jax.tasks import TaskSpec

Probe = Callable[[dict[str, jax.Array]], Any]


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


class Layer(nnx.Module):
    """Mixer, then MLP; each normed before and, with residual, added to its input."""

    def __init__(self, layer: LayerSpec, model: ModelSpec, *, key: jax.Array):
        self.norm_mixer = Norm(model.norm, model.d_model)
        self.mixer = mixers.module(layer.mixer).Mixer(layer, model, key=fold(key, "mixer"))
        self.residual = model.residual
        self.width = self.mixer.width
        if (layer.d_ff or model.residual) and self.width != model.d_model:
            raise ValueError(
                f"a mixer that returns {self.width} columns takes no residual and no MLP of "
                f"d_model={model.d_model}; set use_wo=True, or n_heads * d_head = d_model"
            )
        self.norm_mlp = Norm(model.norm, model.d_model) if layer.d_ff else None
        self.mlp = MLP(model, layer.d_ff, key=fold(key, "mlp")) if layer.d_ff else None

    def __call__(
        self, x: jax.Array, *, b: int, t: int, context: Context, probe: Probe | None
    ) -> tuple[jax.Array, Any]:
        resid_btd = context.put("resid_btd", x.reshape(b, t, -1))
        x = resid_btd.reshape(b * t, -1)
        y, stops = self.mixer.mix(self.norm_mixer(x), b=b, t=t, context=context)
        stats = None if probe is None else probe({"resid_btd": resid_btd, **stops})
        x = self._add(x, y)
        if self.norm_mlp is not None and self.mlp is not None:
            x = self._add(x, self.mlp(self.norm_mlp(x)))
        return x, stats

    def _add(self, x: jax.Array, y: jax.Array) -> jax.Array:
        y = y.astype(jnp.float32)
        return x + y if self.residual else y


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


class Transformer(nnx.Module):
    """The whole model, from the inputs of a task to its outputs.

    Args:
      model: shapes and switches.
      spec: what the task says of inputs, mask and outputs.
      key: each parameter is a draw from (key, its path, its shape).

    Raises:
      ValueError: sizes that do not fit together.
    """

    def __init__(self, model: ModelSpec, spec: TaskSpec, *, key: jax.Array):
        self.encoder = Encoder(model, spec, key=fold(key, "encoder"))
        d = model.d_model
        self.query = nnx.Param(normal(key, "query", (d,))) if spec.query_token else None
        learned = model.positions == "learned"
        positions = normal(key, "positions", (spec.length, d), fan_in=d)
        self.positions = nnx.Param(positions) if learned else None
        layer_keys = fold(key, "layers")
        self.layers = nnx.List(
            Layer(layer, model, key=fold(layer_keys, str(i)))
            for i, layer in enumerate(model.layers)
        )
        widths = [layer.width for layer in self.layers]
        if any(width != d for width in widths[:-1]):
            raise ValueError(f"mixers return {widths} columns; all but the last must return {d}")
        self.norm = Norm(model.norm, widths[-1])
        n_columns = len(spec.outputs) * spec.output_size
        if spec.readout == "none" and widths[-1] != n_columns:
            raise ValueError(
                f"without a read-out the last layer must return the task's {n_columns} columns, "
                f"not {widths[-1]}; set d_model, or n_heads * d_head with use_wo=False"
            )
        readout_key = fold(key, "readout")
        self.readout = (
            None if spec.readout == "none" else Readout(widths[-1], model, spec, key=readout_key)
        )
        self.mask = core.Mask(spec.mask, spec.n_context).check()
        self.qk_from = model.qk_from
        self.n_outputs, self.output_size = len(spec.outputs), spec.output_size

    def __call__(
        self,
        inputs: jax.Array,
        *,
        probe: Probe | None = None,
        head_mask: Sequence[jax.Array] | None = None,
        kv_mask: Sequence[jax.Array] | None = None,
        replace: Sequence[Mapping[str, Replacement]] | None = None,
    ) -> tuple[jax.Array, list[Any]]:
        """Outputs, float32 [b, t, o, v], and the probe's result of each layer ([] without one).

        Args:
          inputs: as `TaskSpec.inputs` says, [b, t, ...] without the query token; may be shorter
            than the task's sequences.
          probe: called once in each layer with its stops (`attention.stops`); takes the reference
            form.
          head_mask: for each layer float [n], or [b, n] with one for each sequence, multiplies the
            heads' z; None: all ones.
          kv_mask: the same of kv heads, [k] or [b, k]; multiplies their values.
          replace: for each layer the stops that are replaced; None: none.

        Raises:
          ValueError: more positions than learned ones.
        """
        b, t = inputs.shape[:2]
        x = self.encoder(inputs)
        if self.query is not None:
            query = jnp.broadcast_to(self.query[...], (b, 1, x.shape[1]))
            x, t = (
                jnp.concatenate([x.reshape(b, t, -1), query], axis=1).reshape(b * (t + 1), -1),
                t + 1,
            )
        qk_rows = None
        if self.positions is not None:
            if t > self.positions.shape[0]:
                raise ValueError(f"{t} positions, but only {self.positions.shape[0]} are learned")
            x = (x.reshape(b, t, -1) + self.positions[:t][None]).reshape(b * t, -1)
            if self.qk_from == "positions":
                qk_rows = jnp.tile(self.positions[:t], (b, 1))
        stats = []
        for i, layer in enumerate(self.layers):
            context = Context(
                self.mask,
                probe is not None,
                None if head_mask is None else head_mask[i],
                None if kv_mask is None else kv_mask[i],
                {} if replace is None else replace[i],
                qk_rows,
            )
            x, result = layer(x, b=b, t=t, context=context, probe=probe)
            stats.append(result)
        x = self.norm(x)
        x = x if self.readout is None else self.readout(x)
        outputs = x.reshape(b, t, self.n_outputs, self.output_size)
        return outputs, stats if probe is not None else []

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
from mha_jax.attention.cache import Step
from mha_jax.attention.init import fold, normal
from mha_jax.attention.stops import Context, Replacement
from mha_jax.blocks import MLP, Norm
from mha_jax.config import LayerSpec, ModelSpec
from mha_jax.ends import Encoder, Readout
from mha_jax.tasks import TaskSpec

Probe = Callable[[dict[str, jax.Array]], Any]


class Layer(nnx.Module):
    """Mixer, then MLP; each normed before and, with residual, added to its input."""

    def __init__(self, layer: LayerSpec, model: ModelSpec, *, key: jax.Array):
        self.norm_mixer = Norm(model.norm, model.d_model)
        self.mixer = mixers.module(layer.mixer).Mixer(layer, model, key=fold(key, "mixer"))
        self.kv_from = layer.kv_from
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
    ) -> tuple[jax.Array, Any, Any]:
        """The rows after the layer, what the probe made, and keys and values for other layers."""
        resid_btd = context.put("resid_btd", x.reshape(b, t, -1))
        x = resid_btd.reshape(b * t, -1)
        y, stops = self.mixer.mix(self.norm_mixer(x), b=b, t=t, context=context)
        stats = None if probe is None else probe({"resid_btd": resid_btd, **stops})
        lent = (stops["k_bskh"], stops["v_bskh"]) if "v_bskh" in stops else None
        return self._after(self._add(x, y)), stats, lent

    def extend(self, x: jax.Array, kept: Any, step: Step) -> tuple[jax.Array, Any, Any]:
        """The next rows [b*c, d], what the mixer keeps now, and what other layers may read."""
        y, kept, lent = self.mixer.extend(self.norm_mixer(x), kept, step=step)
        return self._after(self._add(x, y)), kept, lent

    def _after(self, x: jax.Array) -> jax.Array:
        if self.norm_mlp is None or self.mlp is None:
            return x
        return self._add(x, self.mlp(self.norm_mlp(x)))

    def _add(self, x: jax.Array, y: jax.Array) -> jax.Array:
        y = y.astype(jnp.float32)
        return x + y if self.residual else y


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
        stats: list[Any] = []
        lent: list[Any] = []
        for i, layer in enumerate(self.layers):
            context = Context(
                self.mask,
                probe is not None,
                None if head_mask is None else head_mask[i],
                None if kv_mask is None else kv_mask[i],
                {} if replace is None else replace[i],
                qk_rows,
                None if layer.kv_from is None else lent[layer.kv_from],
            )
            x, result, gives = layer(x, b=b, t=t, context=context, probe=probe)
            stats.append(result)
            lent.append(gives)
        x = self.norm(x)
        x = x if self.readout is None else self.readout(x)
        outputs = x.reshape(b, t, self.n_outputs, self.output_size)
        return outputs, stats if probe is not None else []

    def init_cache(self, b: int, capacity: int) -> list[Any]:
        """What each layer keeps of b sequences of up to `capacity` tokens, without any yet.

        Raises:
          ValueError: the model cannot go token by token; the text says why.
        """
        if self.mask.kind != "causal":
            raise ValueError(f"only a causal task decodes, not mask={self.mask.kind!r}")
        if self.query is not None:
            raise ValueError("a task with a query token does not decode: it stands at the end")
        if self.positions is not None and capacity > self.positions.shape[0]:
            raise ValueError(
                f"capacity={capacity}, but only {self.positions.shape[0]} positions are learned"
            )
        for i, layer in enumerate(self.layers):
            if not hasattr(layer.mixer, "extend"):
                raise ValueError(f"layer {i}: its mixer has no decode path (no method extend)")
        return [layer.mixer.init_cache(b, capacity) for layer in self.layers]

    def extend(
        self,
        inputs: jax.Array,
        kept: list[Any],
        length_b: jax.Array,
        n_valid_b: jax.Array,
        capacity: int,
    ) -> tuple[jax.Array, list[Any]]:
        """Outputs of the next c inputs of each sequence, float32 [b, c, o, v], and what is kept.

        Args:
          inputs: [b, c, ...]; those of a sequence after its first `n_valid_b` do not count, and
            their outputs mean nothing.
          kept: of each layer, as `init_cache` or this returns it.
          length_b: inputs of each sequence so far.
          n_valid_b: how many count; with length_b at most `capacity`.
          capacity: as in `init_cache`.
        """
        b, c = inputs.shape[:2]
        position_bc = length_b[:, None] + jnp.arange(c)[None]
        x, qk_rows = self.encoder(inputs), None
        if self.positions is not None:
            rows = self.positions[...][position_bc].reshape(b * c, -1)
            x, qk_rows = x + rows, rows if self.qk_from == "positions" else None
        step = Step(length_b, n_valid_b, position_bc, capacity, qk_rows)
        after: list[Any] = []
        lent: list[Any] = []
        for layer, of_layer in zip(self.layers, kept, strict=True):
            reads = None if layer.kv_from is None else lent[layer.kv_from]
            x, of_layer, gives = layer.extend(x, of_layer, step._replace(lent=reads))
            after.append(of_layer)
            lent.append(gives)
        x = self.norm(x)
        x = x if self.readout is None else self.readout(x)
        return x.reshape(b, c, self.n_outputs, self.output_size), after

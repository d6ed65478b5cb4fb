"""The seam to Flax: from here on a model is `init(key) -> params` and `apply(params, inputs)`.

Nothing outside this file knows that the modules are NNX; parameters are a nested dict of arrays.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
from flax import nnx

from mha_jax.attention.stops import Replacement
from mha_jax.config import ModelSpec
from mha_jax.tasks import TaskSpec
from mha_jax.transformer import Probe, Transformer

Params = dict[str, Any]


class Model:
    """A transformer as two pure functions; valid under jit, grad and vmap."""

    def __init__(self, model: ModelSpec, spec: TaskSpec):
        self._make = functools.partial(Transformer, model, spec)
        self._graph = nnx.graphdef(nnx.eval_shape(lambda: self._make(key=jax.random.key(0))))

    def init(self, key: jax.Array) -> Params:
        """Fresh parameters, float32, as a nested dict with string keys.

        Each array depends on the key, its path and its shape alone: with n_heads * d_head fixed,
        every head count starts from identical weights.
        """
        return _string_keys(nnx.to_pure_dict(nnx.state(self._make(key=key), nnx.Param)))

    def apply(
        self,
        params: Params,
        inputs: jax.Array,
        *,
        probe: Probe | None = None,
        head_mask: Sequence[jax.Array] | None = None,
        kv_mask: Sequence[jax.Array] | None = None,
        replace: Sequence[Mapping[str, Replacement]] | None = None,
    ) -> tuple[jax.Array, list[Any]]:
        """Outputs, float32 [b, t, o, v], and the probe's results: see `Transformer.__call__`."""
        return self._merged(params)(
            inputs, probe=probe, head_mask=head_mask, kv_mask=kv_mask, replace=replace
        )

    def init_cache(self, params: Params, b: int, capacity: int) -> list[Any]:
        """What each layer keeps of b sequences of up to `capacity` tokens, without any yet.

        Raises:
          ValueError: the model cannot go token by token; the text says why.
        """
        return self._merged(params).init_cache(b, capacity)

    def extend(
        self,
        params: Params,
        inputs: jax.Array,
        kept: list[Any],
        length_b: jax.Array,
        n_valid_b: jax.Array,
        capacity: int,
    ) -> tuple[jax.Array, list[Any]]:
        """Outputs of the next inputs, float32 [b, c, o, v], and what is kept after them: see
        `Transformer.extend`.
        """
        return self._merged(params).extend(inputs, kept, length_b, n_valid_b, capacity)

    def _merged(self, params: Params) -> Transformer:
        return nnx.merge(self._graph, nnx.restore_int_paths(params))


def build(model: ModelSpec, spec: TaskSpec) -> Model:
    """The model of a run.

    Args:
      model: shapes and switches.
      spec: what the task says of inputs, mask and outputs.

    Raises:
      ValueError: sizes that do not fit together.
    """
    return Model(model, spec)


def _string_keys(tree: Any) -> Any:
    """The same tree with list indices as text, which survives a checkpoint."""
    return {str(k): _string_keys(v) for k, v in tree.items()} if isinstance(tree, dict) else tree

"""A run, loaded: its config, its parameters at any checkpoint, its outputs and its attention."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from mha_jax import examine, given, store, train
from mha_jax.analysis import addresses
from mha_jax.checkpoint import Checkpoints
from mha_jax.maps import AttentionMaps
from mha_jax.page.view import Looked
from mha_jax.tasks import Batch


class LoadedRun:
    """A run directory, read. Parameters are restored when they are first asked for.

    Wherever a method takes `at`: "last" is the newest checkpoint, "best" the one that was marked
    best by its validation metric, a number the one of that step. Each raises CheckpointError where
    that one is missing or damaged, and ValueError where there is none at all.

    Attributes:
      directory: where it was loaded from.
      config: the content of `config.json`.
      run: the same as a `config.Run`.
      spec: the task's specification.
      summary: the content of `summary.json`; {} while the run is unfinished.
    """

    def __init__(self, stored: store.StoredRun):
        self._stored = stored
        self.directory = stored.directory
        self.config: dict[str, Any] = json.loads((stored.directory / "config.json").read_text())
        self.run = stored.run
        self.spec = stored.spec
        self.summary = stored.summary
        keep = stored.about["log"]["keep"]
        self._checkpoints = Checkpoints(self.directory, keep=keep, config_hash=self.run.hash)
        self._cache: dict[str | int, tuple[Any, int]] = {}

    def __repr__(self) -> str:
        return f"LoadedRun({str(self.directory)!r})"

    def params(self, at: str | int = "last") -> Any:
        """The parameters: a nested dict of arrays, as `Model.init` makes them."""
        return self._restored(at)[0]

    def step(self, at: str | int = "last") -> int:
        """Updates that the parameters of a checkpoint have behind them."""
        return self._restored(at)[1]

    def head_roles(self) -> dict[str, str]:
        """Address of each query head, "l0.n3", -> the role it is named for at the end of the run;
        {} while it is unfinished.
        """
        layers = self.summary.get("heads", {}).get("layers", {})
        return {
            f"{layer}.n{head}": role
            for layer, told in layers.items()
            for head, role in enumerate(told["names"])
        }

    def steps(self) -> list[int]:
        """The steps at which there is a checkpoint."""
        return self._checkpoints.steps()

    def apply(
        self,
        batch: Any,
        at: str | int = "last",
        *,
        want: Sequence[str] | None = None,
        replace: Mapping[str, Any] | None = None,
    ) -> Any:
        """The model's outputs, float32 [b, t, o, v], and what is computed on the way to them.

        Args:
          batch: inputs [b, t, ...] as `spec.inputs` says, or a Batch.
          at: which checkpoint.
          want: addresses such as "l1.n3.z", or stops such as "weights" for all layers and heads:
            see `mha_jax.analysis.addresses`.
          replace: address -> array that the model goes on with from there: patching, ablation.

        Returns:
          The outputs; with `want` a pair of them and a dict: address -> array, stop -> list of
          arrays, one a layer, with all heads on one axis.

        Raises:
          ValueError: inputs that do not fit the task, an address that the model does not have, or
            an array that does not fit its address.
        """
        inputs = given.checked(self.run.static, batch.inputs if isinstance(batch, Batch) else batch)
        if isinstance(want, str):
            raise ValueError(f"want={want!r} must be a list of addresses: [{want!r}]")
        params = self.params(at)
        if want is None and replace is None:
            return np.asarray(self._outputs(params, inputs))
        shapes = jax.eval_shape(self._stops, params, inputs, None)[1]
        for text in want or ():
            addresses.check(text, shapes)
        put = addresses.replacements(replace, shapes) if replace else None
        outputs, layers = self._stops(params, inputs, put)
        if want is None:
            return np.asarray(outputs)
        picked = {text: jax.tree.map(np.asarray, addresses.pick(text, layers)) for text in want}
        return np.asarray(outputs), picked

    def attention(self, of: Any = None, *, at: str | int = "last", index: int = 0) -> AttentionMaps:
        """The attention of every head for one sequence.

        Args:
          of: a text, if the task has an `encode` (`english`: words, `text`: UTF-8 bytes), inputs
            [t, ...] or [b, t, ...], a Batch, or None: the probe draw, whose first sequence is that
            of the images.
          at: which checkpoint.
          index: which sequence of several.

        Raises:
          ValueError: inputs that do not fit the task, or a mixer without attention weights.
        """
        inputs = self._sequence(of, index)
        params, step = self._restored(at)
        layers = [jax.tree.map(np.asarray, stops) for stops in self._stops(params, inputs, None)[1]]
        model = self.run.static.model
        for number, (spec, stops) in enumerate(zip(model.layers, layers, strict=True)):
            if "weights_bkgts" not in stops:
                raise ValueError(f"layer {number}: mixer {spec.mixer!r} has no attention weights")
        maps = [w[0].reshape(-1, *w.shape[3:]) for w in (one["weights_bkgts"] for one in layers)]
        tokens = given.written(self.spec, np.asarray(inputs[0]), words_only=isinstance(of, str))
        mixers = [params["layers"][str(i)]["mixer"] for i in range(len(layers))]
        return AttentionMaps(
            weights=np.stack(maps) if len({len(w) for w in maps}) == 1 else maps,
            tokens=tokens,
            kv_head=[
                [head // layer.queries_per_kv for head in range(layer.n_heads)]
                for layer in model.layers
            ],
            step=step,
            looked=Looked(self.run.static, step, tokens, layers, mixers),
            stored=self._stored,
        )

    def probe_batch(self) -> Batch:
        """The first batch of the probe draw, whose first sequence is that of the images.

        Raises:
          ValueError: the corpus of the task is not the one that the run was trained on.
        """
        return jax.jit(lambda c: examine.probe_batch(self.program, c))(self.probe_constants())

    def probe_constants(self) -> Any:
        """What the probe draw takes from the task.

        Raises:
          ValueError: the corpus of the task is not the one that the run was trained on.
        """
        task = self.run.static.task
        if task.data_changed:
            raise ValueError(
                f"{self.directory}: the corpus of task {task.name!r} has changed since the run; "
                f"give a text or inputs"
            )
        return task.constants("test")

    @functools.cached_property
    def program(self) -> train.Program:
        """The model and its task, as pure functions."""
        return train.Program.of(self.run.static)

    @functools.cached_property
    def _outputs(self) -> Any:
        return jax.jit(lambda params, inputs: self.program.model.apply(params, inputs)[0])

    @functools.cached_property
    def _stops(self) -> Any:
        model = self.program.model
        return jax.jit(
            lambda params, inputs, replace: model.apply(
                params, inputs, probe=lambda stops: stops, replace=replace
            )
        )

    def _restored(self, at: str | int) -> tuple[Any, int]:
        """Parameters and their step."""
        if at not in self._cache:
            if isinstance(at, str) and at not in ("last", "best"):
                raise ValueError(f"at={at!r} must be 'last', 'best' or a step")
            shapes = jax.eval_shape(self.program.model.init, jax.random.key(0))
            # A checkpoint holds the arrays of one lane, with the lane axis in front.
            template = jax.tree.map(lambda x: jax.ShapeDtypeStruct((1, *x.shape), x.dtype), shapes)
            step: int | Literal["best"] | None = None
            if at != "last":
                step = "best" if at == "best" else int(at)
            restored = self._checkpoints.restore({"params": template}, step, partial=True)
            if restored is None:
                raise ValueError(f"{self.directory}: no checkpoint yet")
            params = jax.tree.map(lambda x: jnp.asarray(x[0]), restored.state["params"])
            self._cache[at] = params, restored.step
        return self._cache[at]

    def _sequence(self, of: Any, index: int) -> jax.Array:
        """Checked inputs of one sequence, [1, t, ...]."""
        if of is None:
            of = self.probe_batch()
        if isinstance(of, str):
            of = self.run.static.task.encode(of)
        inputs = np.asarray(of.inputs if isinstance(of, Batch) else of)
        if inputs.ndim == given.n_axes(self.spec) - 1:
            inputs = inputs[None]
        checked = given.checked(self.run.static, inputs)
        if not -len(checked) <= index < len(checked):
            raise ValueError(f"index={index}: there are {len(checked)} sequences")
        return checked[index][None]


def load_run(directory: str | Path) -> LoadedRun:
    """The run in a run directory `<workdir>/<experiment>/<label>-<hash>`.

    Raises:
      ValueError: no run directory, or its `config.json` is not the one that its name belongs to.
    """
    return LoadedRun(store.read_run(directory))

"""The compiled programs of a group: all runs with one static config share them.

Axis r: lanes, the runs that one dispatch carries. How lanes execute is the backend's choice. On a
GPU or TPU a small model is launch-bound and lanes are vmapped; on a CPU vmap saves nothing
(measured), so a dispatch carries one lane and the runs of a group follow one another through the
same program.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from mha_jax import evaluate, examine, loss, rng, train
from mha_jax.analysis import bootstrap, catalogue
from mha_jax.analysis.scores import Sums
from mha_jax.config import Hypers, StaticConfig
from mha_jax.tasks import SPLITS

_MAX_LANES = 64


def lane_mode() -> str:
    """ "sequential" on a CPU, "vmap" on an accelerator."""
    return "sequential" if jax.default_backend() == "cpu" else "vmap"


def n_lanes(n_runs: int, mode: str) -> int:
    """Lanes of a dispatch: equal for all batches of a group, so that the group compiles once."""
    if mode == "sequential":
        return 1
    n_batches = -(-n_runs // _MAX_LANES)
    return -(-n_runs // n_batches)


class Group:
    """Init, train, evaluate and analyse for `lanes` runs of a static config at a time.

    Every method takes and returns trees with a leading lane axis r. Each program is compiled at its
    first use; the seconds that took are summed in `compile_s`.

    Raises:
      ValueError: lanes that the mode cannot carry, or a corpus that is not the one of the config.
    """

    def __init__(self, static: StaticConfig, lanes: int = 1, mode: str = "sequential"):
        if mode == "sequential" and lanes != 1:
            raise ValueError(f"lanes={lanes}: sequential mode carries one lane; use mode='vmap'")
        self.program = train.Program.of(static)
        self.static, self.spec = static, self.program.spec
        self.lanes, self.mode = lanes, mode
        self.compile_s = 0.0
        task = static.task
        if task.data_changed:
            raise ValueError(
                f"the corpus of task {task.name!r} has changed since the run was planned; "
                "launch again to plan new runs, or put the old text back"
            )
        self.constants = {split: jax.device_put(task.constants(split)) for split in SPLITS}
        self.documents = task.documents()
        program = self.program
        self._init = self._compiled(
            lambda hypers: train.init(program, hypers),
            mapped=1,
        )
        self._chunk = self._compiled(
            lambda state, hypers, constants, n: train.train_chunk(
                program, state, hypers, constants, n
            ),
            mapped=2,
            donate=True,
        )
        self._eval = self._compiled(
            lambda params, constants, draw, n: evaluate.evaluate(
                program, params, constants, draw, n
            ),
            mapped=1,
        )
        self._document_losses = self._compiled(
            lambda params, windows, index: evaluate.document_losses(
                program, params, windows, index, len(self.documents.names)
            ),
            mapped=1,
        )
        self._look = self._compiled(
            lambda params, constants, i: examine.look(program, params, constants, i), mapped=1
        )
        self._repeated = self._compiled(lambda params: examine.repeated(program, params), mapped=1)
        self._compare = self._compiled(
            lambda params, constants, i: examine.compare(program, params, constants, i), mapped=1
        )

    def _compiled(
        self, function: Callable[..., Any], mapped: int, donate: bool = False
    ) -> Callable[..., Any]:
        """`function` over lanes in its first `mapped` arguments, compiled ahead of its first call
        with such shapes."""

        def over_lanes(*args: Any) -> Any:
            if self.mode == "vmap":
                axes = tuple(0 if i < mapped else None for i in range(len(args)))
                return jax.vmap(function, in_axes=axes)(*args)
            lane = jax.tree.map(lambda x: x[0], args[:mapped])
            return jax.tree.map(lambda x: x[None], function(*lane, *args[mapped:]))

        jitted = jax.jit(over_lanes, donate_argnums=(0,) if donate else ())
        executables: dict[Any, Any] = {}

        def call(*args: Any) -> Any:
            # The splits of a corpus differ in length: one program each.
            shapes = tuple(np.shape(leaf) for leaf in jax.tree.leaves(args))
            if shapes not in executables:
                start = time.perf_counter()
                executables[shapes] = jitted.lower(*args).compile()
                self.compile_s += time.perf_counter() - start
            return executables[shapes](*args)

        return call

    def hypers(self, runs: list[Hypers]) -> train.HyperArrays:
        """The runs' hypers as arrays [r]; missing lanes repeat the last run (their results are
        dropped by the caller)."""
        if not 0 < len(runs) <= self.lanes:
            raise ValueError(f"{len(runs)} runs do not fit {self.lanes} lanes")
        padded = runs + [runs[-1]] * (self.lanes - len(runs))
        return train.HyperArrays(
            jnp.asarray([h.seed for h in padded], jnp.uint32),
            jnp.asarray([h.data_seed for h in padded], jnp.uint32),
            jnp.asarray([h.lr for h in padded], jnp.float32),
            jnp.asarray([h.weight_decay for h in padded], jnp.float32),
        )

    def init(self, hypers: train.HyperArrays) -> train.State:
        """States at step 0."""
        return self._init(hypers)

    def train_chunk(
        self, state: train.State, hypers: train.HyperArrays, n: int
    ) -> tuple[train.State, dict[str, np.ndarray]]:
        """`n` updates of every lane. `state` is donated: use the one returned.

        Returns:
          The states, and the mean of each scalar of a step, [r].
        """
        state, total = self._chunk(state, hypers, self.constants["train"], np.int32(n))
        return state, {key: np.asarray(value) / n for key, value in total.items()}

    def evaluate(self, state: train.State, split: str) -> list[dict[str, float]]:
        """Metrics of every lane on the fixed draw of "validation" or "test"."""
        train_spec = self.static.train
        n = {"validation": train_spec.n_eval, "test": train_spec.n_test}[split]
        n_batches = -(-n // evaluate.batch_size(self.static))
        draw = rng.stream(self.static.task.seed, split)
        total = jax.device_get(
            self._eval(state.params, self.constants[split], draw, np.int32(n_batches))
        )
        return [
            loss.metrics({key: value[r] for key, value in total.items()}, self.spec)
            for r in range(self.lanes)
        ]

    def document_losses(self, state: train.State) -> list[dict[str, list[float]]]:
        """For every lane: document of the test split -> [loss in nats, tokens]; {} without any."""
        if self.documents is None:
            return [{} for _ in range(self.lanes)]
        names, index, *windows = self.documents
        named = dict(zip(("inputs", "targets", "loss_mask"), windows, strict=True))
        out = jax.device_get(self._document_losses(state.params, named, index))
        return [
            {
                name: [float(out["loss"][r, i]), float(out["count"][r, i])]
                for i, name in enumerate(names)
            }
            for r in range(self.lanes)
        ]

    def examine(self, state: train.State) -> list[Any]:
        """For every lane the entries of `examine.look` and `examine.compare` over the whole probe
        draw, as numpy, and those of `examine.repeated` under "repeated".
        """
        batches = []
        for i in range(examine.n_batches(self.program)):
            args = (state.params, self.constants["test"], np.int32(i))
            batches.append(jax.device_get((self._look(*args), self._compare(*args))))
        again: Any = [{} for _ in batches[0][0]]
        if examine.repeated_forms(self.spec):
            again = jax.device_get(self._repeated(state.params))
        return [
            [
                None
                if first is None
                else _joined(batches, layer, r)
                | {"repeated": jax.tree.map(lambda x, r=r: x[r], again[layer])}
                for layer, first in enumerate(batches[0][0])
            ]
            for r in range(self.lanes)
        ]

    def follow(self, state: train.State) -> list[dict[str, float]]:
        """For every lane the scores that are recorded on the way, on the first batch of the probe
        draw: "heads/l0.n3/role/prev" -> corrected score. What is undefined is left out."""
        looked = jax.device_get(self._look(state.params, self.constants["test"], np.int32(0)))
        out: list[dict[str, float]] = [{} for _ in range(self.lanes)]
        for layer, names in enumerate(examine.score_names(self.static)):
            kept = [name for name in names if catalogue.followed(name)]
            columns = [names.index(name) for name in kept]
            for r, values in enumerate(out if looked[layer] else ()):
                sums = Sums(*(x[r][..., columns] for x in looked[layer]["scores"]))
                score = bootstrap.finish(
                    sums, np.array(list(map(catalogue.ideal, kept))), n_draws=1
                )
                values |= {
                    f"heads/l{layer}.n{head}/{name}": float(value)
                    for head, row in enumerate(score.corrected)
                    for name, value in zip(kept, row, strict=True)
                    if not np.isnan(value)
                }
        return out


def _joined(batches: list[Any], layer: int, r: int) -> dict[str, Any]:
    """What was found of one layer in lane r, its sequences one after the other."""
    found = [looked[layer] | compared[layer] for looked, compared in batches]
    example = found[0]["example"][r]
    rest = [{key: x for key, x in one.items() if key != "example"} for one in found]
    joined = jax.tree.map(lambda *x: np.concatenate([one[r] for one in x]), *rest)
    return {**joined, "example": example}

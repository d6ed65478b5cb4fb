"""The compiled programs of a group: all runs with one static config share them.

Axis r: lanes, the runs that one dispatch carries. How lanes execute is the backend's choice. On a
GPU or TPU a small model is launch-bound and lanes are vmapped; on a CPU vmap saves nothing
(measured), so a device carries one lane and the runs of a group follow one another through the
same program. Lanes are spread over all local devices (`placement.py`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from mha_jax import evaluate, examine, loss, programs, rng, train
from mha_jax.analysis import bootstrap, catalogue
from mha_jax.analysis.scores import Sums
from mha_jax.config import Hypers, StaticConfig
from mha_jax.placement import Placement
from mha_jax.tasks import SPLITS


class Group:
    """Init, train, evaluate and analyse for `lanes` runs of a static config at a time.

    Every method takes and returns trees with a leading lane axis r. Each program is compiled at its
    first use and kept in `executables`; the seconds that took are summed in `compile_s`.

    Args:
      static: what the runs have in common.
      lanes: of a dispatch; a multiple of the devices.
      mode: how a device carries its lanes, as `placement.lane_mode` says.
      devices: over which lanes are split; none: the default device.
      kernel: of attention, as `kernel_choice.choose` says; None: as `train.Program.of` does.

    Raises:
      ValueError: lanes that the mode or the devices cannot carry, or a corpus that is not the one
        of the config.
    """

    def __init__(
        self,
        static: StaticConfig,
        lanes: int = 1,
        mode: str = "sequential",
        devices: Sequence[jax.Device] = (),
        kernel: str | None = None,
    ):
        self.placement = Placement(lanes, mode, devices)
        self.program = train.Program.of(static, kernel)
        self.static, self.spec = static, self.program.spec
        self.lanes = lanes
        self.compile_s = 0.0
        self.executables: list[jax.stages.Compiled] = []
        task = static.task
        if task.data_changed:
            raise ValueError(
                f"the corpus of task {task.name!r} has changed since the run was planned; "
                "launch again to plan new runs, or put the old text back"
            )
        self.constants = {
            split: jax.device_put(task.constants(split), self.placement.everywhere)
            for split in SPLITS
        }
        self.documents = task.documents()
        functions = programs.of(self.program, self.documents)
        self._calls = {name: self._compiled(one) for name, one in functions.items()}

    def _compiled(self, one: programs.LaneFunction) -> Callable[..., Any]:
        """A function of one lane over all of them, compiled ahead of its first call with such
        shapes."""
        by_shapes: dict[Any, jax.stages.Compiled] = {}

        def call(*args: Any) -> Any:
            # The splits of a corpus differ in length: one program each.
            shapes = tuple(np.shape(leaf) for leaf in jax.tree.leaves(args))
            if shapes not in by_shapes:
                start = time.perf_counter()
                by_shapes[shapes] = self.placement.jitted(one, len(args)).lower(*args).compile()
                self.executables.append(by_shapes[shapes])
                self.compile_s += time.perf_counter() - start
            return by_shapes[shapes](*args)

        return call

    def hypers(self, runs: list[Hypers]) -> train.HyperArrays:
        """The runs' hypers as arrays [r]; missing lanes repeat the last run (their results are
        dropped by the caller)."""
        if not 0 < len(runs) <= self.lanes:
            raise ValueError(f"{len(runs)} runs do not fit {self.lanes} lanes")
        padded = runs + [runs[-1]] * (self.lanes - len(runs))
        arrays = train.HyperArrays(
            np.asarray([h.seed for h in padded], np.uint32),
            np.asarray([h.data_seed for h in padded], np.uint32),
            np.asarray([h.lr for h in padded], np.float32),
            np.asarray([h.weight_decay for h in padded], np.float32),
        )
        return jax.device_put(arrays, self.placement.split)

    def lane(self, state: train.State, r: int) -> train.State:
        """The state of lane r alone, its arrays [1, ...]."""
        return self.placement.lane(state, r)

    def init(self, hypers: train.HyperArrays) -> train.State:
        """States at step 0."""
        return self._calls["init"](hypers)

    def train_chunk(self, state: train.State, hypers: train.HyperArrays, n: int) -> train.State:
        """`n` updates of every lane. `state` is donated: use the one returned."""
        return self._calls["train"](state, hypers, self.constants["train"], np.int32(n))

    def emptied(self, state: train.State, of: Sequence[bool]) -> train.State:
        """The state with the tallies of some lanes empty; `of` has an entry for each lane."""
        tally = jax.tree.map(
            lambda x: np.where(of, np.zeros_like(x), np.asarray(x)), jax.device_get(state.tally)
        )
        return state._replace(tally=jax.device_put(tally, self.placement.split))

    def diverged_at(self, state: train.State) -> np.ndarray:
        """For every lane the step at which it is lost, int32 [r]; -1: it is not."""
        first_bad = np.asarray(state.watch.first_bad)
        return first_bad if self.static.train.on_bad_step == "stop" else np.full_like(first_bad, -1)

    def evaluate(self, state: train.State, split: str) -> list[dict[str, float]]:
        """Metrics of every lane on the fixed draw of "validation" or "test"."""
        train_spec = self.static.train
        n = {"validation": train_spec.n_eval, "test": train_spec.n_test}[split]
        n_batches = -(-n // evaluate.batch_size(self.static))
        draw = rng.stream(self.static.task.seed, split)
        total = jax.device_get(
            self._calls["evaluate"](state.params, self.constants[split], draw, np.int32(n_batches))
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
        named = programs.named_windows(windows)
        out = jax.device_get(self._calls["documents"](state.params, named, index))
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
            batches.append(
                jax.device_get((self._calls["look"](*args), self._calls["compare"](*args)))
            )
        again: Any = [{} for _ in batches[0][0]]
        if examine.repeated_forms(self.spec):
            again = jax.device_get(self._calls["repeated"](state.params))
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
        looked = jax.device_get(
            self._calls["look"](state.params, self.constants["test"], np.int32(0))
        )
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

"""A run on its way through the driver: its files, where it stands, and what it leaves behind when
it is over."""

from __future__ import annotations

import dataclasses
import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from mha_jax import branch, config, outcome, runstate, start, store, tensorboard
from mha_jax.checkpoint import Checkpoints
from mha_jax.files import fingerprint, is_as_written, within, write_signed
from mha_jax.tasks import TaskSpec
from mha_jax.train import State
from mha_jax.writer import RunWriter, WriterError

Emit = Callable[[dict[str, Any]], None]


@dataclasses.dataclass
class Lane:
    """One run."""

    run: config.Run
    directory: Path
    about: dict[str, Any]
    spec: TaskSpec
    writer: RunWriter
    checkpoints: Checkpoints
    state: State  # one lane
    step: int
    trunk_end: int | None = None  # where a twin may branch off: its checkpoint stays
    best: float = math.nan  # validation metric of the best state that was saved
    clock: dict[str, float] = dataclasses.field(
        default_factory=lambda: dict.fromkeys(
            ("compile_s", "train_s", "eval_s", "probe_s", "save_s"), 0.0
        )
    )

    @classmethod
    def open(
        cls,
        directory: Path,
        fresh: State,
        spec: TaskSpec,
        environment: dict[str, Any],
        emit: Emit,
    ) -> Lane:
        """Opens a run's files and restores its newest checkpoint that is whole.

        Args:
          directory: holds `config.json`.
          fresh: the run's state at step 0: where it starts without a checkpoint.
          spec: of its task.
          environment: what `run.json` records of this process.
          emit: receives a note where something is worth telling.

        Raises:
          Unrestorable: there are checkpoints and none can be restored.
          ValueError: a link leads out of the directory.
        """
        for path in (*directory.iterdir(), *directory.glob("checkpoints/*")):
            within(directory, path)
        data = json.loads((directory / "config.json").read_text())
        run, about = config.run_from_json(data), data["about"]
        keep, trunk_end = about["log"]["keep"], None
        if about["converge"]["confirm"] and about["purpose"] == "sweep":
            trunk_end = run.static.optim.trunk_steps(run.static.train.n_steps)
        checkpoints = Checkpoints(
            directory, keep=keep, config_hash=run.hash, pinned=trunk_end or None
        )
        restored, before = checkpoints.restore(fresh), directory
        if restored is None and "branch" in about:
            restored, before = branch.restore(directory, about["branch"], fresh, emit)
        if restored is None and run.static.start:
            begun = start.begin(run, directory)
            if begun is None:  # its source has diverged, and so has it
                lost = jax.tree.map(lambda x: jnp.full_like(x, jnp.nan), fresh.params)
                first = jnp.zeros_like(fresh.watch.first_bad)
                watch = fresh.watch._replace(n_bad=first + 1, first_bad=first)
                fresh = fresh._replace(params=lost, watch=watch)
            else:
                fresh = fresh._replace(params=jax.tree.map(lambda x: x[None], begun))
        _record_environment(directory, before if restored else None, environment, emit)
        writer = RunWriter(
            directory,
            tensorboard=about["log"]["tensorboard"],
            records_bytes=restored.records_bytes if restored else 0,
            records_sha256=restored.records_sha256 if restored else None,
            start_step=restored.step if restored else 0,
        )
        lane = cls(run, directory, about, spec, writer, checkpoints, fresh, 0, trunk_end)
        if about["log"]["tensorboard"]:
            tensorboard.session_start(directory / "tb", about["overrides"], directory.name)
        if restored is None:
            writer.text("config", "```\n" + json.dumps(data["static"], indent=2) + "\n```")
            return lane
        for reason in restored.skipped:
            emit({"event": "note", "text": f"{directory.name}: {reason}"})
        lane.state, lane.step = restored.state, restored.step
        saved = checkpoints.steps()
        for row in store.read_records(directory / "metrics.jsonl")[0]:
            if row["step"] in saved and f"eval/{spec.metric}" in row:
                lane._improves(row[f"eval/{spec.metric}"])
        return lane

    @property
    def rhythm(self) -> tuple[int, str]:
        """Where it stands, and what it does at which steps."""
        return self.step, json.dumps([self.about["log"], self.about["probe"]], sort_keys=True)

    def _improves(self, value: float) -> bool:
        """Whether a value of the validation metric is the best of the saved states; keeps it."""
        sign = 1 if self.spec.direction == "max" else -1
        if not math.isfinite(value) or sign * value <= sign * self.best:
            return False
        self.best = value
        return True

    def save(self, step: int, state: State, metric: float | None) -> None:
        """A checkpoint of `state`; `metric` is what its evaluation found, None if it had none."""
        start = time.perf_counter()
        best = metric is not None and self._improves(metric)
        length, sha256 = self.writer.flush(), self.writer.records_sha256
        self.checkpoints.save(
            step, state, records_bytes=length, records_sha256=sha256, metric=metric, best=best
        )
        self.clock["save_s"] += time.perf_counter() - start

    def finish(
        self,
        step: int,
        diverged_at: int,
        tested: dict[str, float],
        heads: Any,
        documents: dict[str, list[float]],
        decoding: dict[str, float | int | None],
        bad_steps: dict[str, int] | None,
    ) -> None:
        """Writes the head table, the attention images and `summary.json`; with the last the run is
        over."""
        log, static = self.about["log"], self.run.static
        if diverged_at >= 0:  # of weights that are no numbers there is nothing to tell
            heads = [None] * len(heads)
        of_heads = outcome.write_heads(
            self.directory, heads, static, with_indices=self.about["purpose"] != "selection"
        )
        images = {
            f"attention/l{layer}.n{head}": weights_ts
            for layer, found in enumerate(heads)
            if found is not None
            for head, weights_ts in enumerate(found["example"])
        }
        self.writer.images(step, dict(list(images.items())[: log["n_images"]]))
        final = {f"test/{key}": value for key, value in tested.items()}
        self.writer.scalars(step, final)
        self.close()
        records = self.directory / "metrics.jsonl"
        if fingerprint(records)[1] != self.writer.records_sha256:
            raise WriterError(f"{records}: it was changed while the run wrote it; start afresh")
        if log["tensorboard"]:
            tensorboard.session_end(self.directory / "tb", ok=diverged_at < 0)
        rows, _ = store.read_records(self.directory / "metrics.jsonl")
        evaluations = [row for row in rows if f"eval/{self.spec.metric}" in row]
        last = {key: value for key, value in evaluations[-1].items() if key.startswith("eval/")}
        if diverged_at >= 0:  # the last evaluation may be one before
            last = dict.fromkeys(last, math.nan)
        names = ("metrics.jsonl", "heads.csv", "indices.json")
        paths = [self.directory / name for name in names]
        write_signed(
            self.directory / "summary.json",
            {
                "status": "done" if diverged_at < 0 else "diverged",
                "step": step,
                "diverged_at": diverged_at if diverged_at >= 0 else None,
                "bad_steps": bad_steps,  # left out
                "final": {**last, **final},
                "initial": evaluations[0][f"eval/{self.spec.metric}"],
                "best": outcome.best(evaluations, self.spec),
                "ceiling": static.task.ceiling(static.model),
                "baselines": static.task.baselines(static.model),
                "documents": documents,
                "heads": of_heads,
                "steps_to_threshold": outcome.steps_to_threshold(evaluations, self.spec),
                "error": None,
                "files": {path.name: fingerprint(path) for path in paths if path.exists()},
                "attempts": runstate.read(self.directory).attempts,
                "timing": {
                    **self.clock,
                    **decoding,
                    "steps_per_s": (step - self.step) / self.clock["train_s"]
                    if self.clock["train_s"]
                    else None,
                },
            },
        )

    def close(self) -> None:
        """Everything written is on the disk."""
        self.writer.flush()
        self.writer.close()
        self.checkpoints.close()


def _record_environment(
    directory: Path, before: Path | None, environment: dict[str, Any], emit: Emit
) -> None:
    """Writes `run.json`; a run that goes on under other conditions is marked `mixed`, and a line
    says so.

    `before` is the directory of the run that goes on: this one, or the one it branches from.
    """
    path = directory / "run.json"
    now, sessions, lost, mixed = _conditions(environment), [], False, False
    if before is not None:
        try:
            told = json.loads((before / "run.json").read_bytes())
            sessions, mixed, lost = told["sessions"], told["mixed"], not is_as_written(told)
        except (OSError, ValueError, KeyError, TypeError):
            lost = True  # what came before is not known to be the same
    changed = sorted(
        {
            key
            for earlier in map(_conditions, sessions)
            for key, value in now.items()
            if earlier[key] != value
        }
    )
    if lost:
        emit({"event": "note", "text": f"{path}: not as it was; the run is marked mixed"})
    if changed:
        text = f"resumed with other {', '.join(changed)} than before: marked mixed, see run.json"
        emit({"event": "note", "text": f"{directory.name}: {text}"})
    sessions = [*sessions, environment]
    mixed = mixed or lost or bool(changed)
    write_signed(path, {**environment, "mixed": mixed, "sessions": sessions})


def _conditions(environment: dict[str, Any]) -> dict[str, Any]:
    """What the bits of a run depend on beside its config, as `run.json` records it."""
    names = ("device", "threads", "lane_mode", "lanes_per_device", "source", "versions")
    kernel = environment.get("kernels", {}).get("used")
    return {**{name: environment.get(name) for name in names}, "kernel": kernel}

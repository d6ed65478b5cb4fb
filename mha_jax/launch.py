"""Carries out a sweep: hands the unfinished runs, group by group, to worker processes, and remakes
the tables.

Runs are known by their hash, so launching again continues: finished runs are kept, unfinished ones
resume, failed ones are tried once more, and a failure that repeats itself is not tried again.
Several launchers may each carry out a part: they go from stage to stage together, and one of them
makes the tables.
Imports no jax.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from mha_jax import report, runstate, stages, store
from mha_jax.directories import place, show_table
from mha_jax.engines import choice
from mha_jax.engines.base import Engine, Slot
from mha_jax.engines.options import Options
from mha_jax.files import within, write_json_atomic
from mha_jax.jobs import jobs_of
from mha_jax.parts import WHOLE, Part, at_work, locked
from mha_jax.planned import PlannedRun
from mha_jax.pool import Pool
from mha_jax.progress import Progress
from mha_jax.sweep import Sweep

_LOOK_S = 1.0  # between looks at the runs of other parts
_LOCAL = Options()


def launch(sweep: Sweep, workdir: Path, options: Options = _LOCAL) -> int:
    """Runs what is unfinished of a sweep, then writes tables and figures.

    Args:
      sweep: planned runs.
      workdir: the sweep's files go to `<workdir>/<experiment>/`.
      options: where, with how many processes, and which part.

    Returns and raises what `carry_out` does.
    """

    def record(runs: list[PlannedRun]) -> dict[str, Any]:
        return dataclasses.replace(sweep, runs=runs).to_json()

    return carry_out(sweep.runs, within(workdir, workdir / sweep.experiment), options, record)


def carry_out(
    runs: list[PlannedRun],
    root: Path,
    options: Options = _LOCAL,
    record: Callable[[list[PlannedRun]], dict[str, Any]] | None = None,
) -> int:
    """Runs what is unfinished of planned runs and of what follows from them, then writes tables
    and figures.

    Args:
      runs: planned runs of one experiment.
      root: the experiment's directory.
      options: where, with how many processes, and which part. Unless it says otherwise: this
        machine, one process a core on a CPU, each pinned to it, and one where there is an
        accelerator. Runs that can only go one after another have one worker with all cores.
      record: what `sweep.json` shall say of the runs; None: it stays as it is.

    Returns:
      The exit code: 0, 1 if a run failed, 3 if a run has checkpoints and none can be used.

    Raises:
      Stopped: a signal came; the workers have saved their runs.
      ValueError: another launch is at work in the directory, a run there is not what it says, or
        the engine cannot be used.
      WorkerError: workers cannot start.
      OSError: the directory cannot be written.
    """
    for path in root.iterdir() if root.is_dir() else ():
        within(root, path)
    log = root / "logs" / options.log_name
    log.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        if options.hosts is None:
            stack.enter_context(locked(root, options.part))
            engine = stack.enter_context(choice.make(options, root, log))
        else:  # which part this host has, its worker finds out
            engine = stack.enter_context(choice.make(options, root, log))
            stack.enter_context(locked(root, engine.part))
        return _Launch(list(runs), root, engine, options, log, record).carry_out()


class _Launch:
    """A launch at work, alone in the directory or as one of several parts."""

    def __init__(
        self,
        runs: list[PlannedRun],
        root: Path,
        engine: Engine,
        options: Options,
        log: Path,
        record: Callable[[list[PlannedRun]], dict[str, Any]] | None,
    ):
        self.runs, self.root, self.engine, self.log, self.record = runs, root, engine, log, record
        self.stuck_after_s, self.unrestorable = options.stuck_after_s, set[str]()
        self.part = engine.part
        at_once = collections.Counter(one.run.static.n_sources for one in runs)
        self.slots: Sequence[Slot] = engine.slots(max(at_once.values()), options.workers)
        self.directories: dict[str, Path] = {}

    def carry_out(self) -> int:
        """Stage after stage, then the tables; the exit code."""
        while True:
            own = [one for one in self.runs if self.part.has(one.run.hash)]
            progress = Progress(len(own))
            self.directories = place(self.runs, self.root)
            if self.record is not None:
                write_json_atomic(self.root / "sweep.json", self.record(self.runs))
            left = self._train(own, progress)
            if left:
                progress.note(_told_of_parts(left, self.part))
                return self._exit_code(own, progress)
            stored = store.read_sweep(self.root)[0]
            more = stages.followups(self.runs, stored)
            if not more:
                break
            over = {run.run.hash for run in stored if run.status in ("done", "diverged")}
            if any(one.run.hash not in over for one in more):
                told = stages.told([one for one in more if one.run.hash not in over])
                progress.note(f"these results ask for {told}")
            self.runs = [*self.runs, *more]
        lead = self.part if self.part == WHOLE else at_work(self.root)[0]
        if self.part == lead:
            self._tell_of_others(stored, progress)
            for path in report.make(self.root, progress.note):
                progress.note(f"wrote {path}")
            progress.note("\n" + (self.root / "order.txt").read_text(encoding="utf-8").rstrip())
            show_table(self.root)
        else:
            progress.note(f"all runs are over; part {lead} makes the tables")
        return self._exit_code(self.runs, progress)

    def _exit_code(self, runs: list[PlannedRun], progress: Progress) -> int:
        failed = sum(not self._state(one).done for one in runs)
        if failed:
            table = self.root / "runs.csv"
            progress.note(f"{failed} of {len(runs)} runs failed: {table} has status and error")
        return 3 if self.unrestorable else 1 if failed else 0

    def _state(self, planned: PlannedRun) -> runstate.RunState:
        return runstate.read(self.directories[planned.run.hash])

    def _tell_of_others(self, stored: Sequence[store.StoredRun], progress: Progress) -> None:
        """Names what no launch of this plan will finish, since it holds back its cells."""
        planned = {one.run.hash for one in self.runs}
        others = [r for r in stored if r.status == "unfinished" and r.run.hash not in planned]
        if others:
            progress.note(
                f"{len(others)} unfinished runs of an earlier plan are in {self.root}, such as "
                f"{others[0].directory.name}; their cells stay unverified: launch that plan again, "
                f"or delete them"
            )

    def _train(self, own: list[PlannedRun], progress: Progress) -> list[PlannedRun]:
        """Runs what is unfinished of the planned runs, those that others start from first, and
        waits for those of other parts.

        Returns:
          Runs of parts that no launcher is at work on; [] when all runs are over.
        """
        pending, kept = [], 0
        for planned in own:
            state = self._state(planned)
            if state.done:
                kept += 1
                progress.finished(planned.run.hash)
            elif state.given_up:
                progress.note(
                    f"{planned.label}: failed {state.attempts} times, last with: {state.error}; "
                    f"not tried again (to do so, delete "
                    f"{self.directories[planned.run.hash] / 'summary.json'})"
                )
            else:
                pending.append(planned)
        if kept:
            progress.note(f"{kept} of {len(own)} runs were finished before and are kept")
        if pending and self.part == WHOLE:  # else it might meet the workers of other parts
            show_table(self.root)  # so that a person can watch from the start
        for n_sources in sorted({planned.run.static.n_sources for planned in self.runs}):
            some = [one for one in pending if one.run.static.n_sources == n_sources]
            if some:
                jobs = jobs_of(some, len(self.slots))
                slots = self.slots[: len(jobs)]
                with progress:
                    pool = Pool(jobs, self.directories, self.engine, slots, self.log, progress)
                    pool.stuck_after_s = self.stuck_after_s
                    pool.serve()
                self.unrestorable |= pool.unrestorable
            left = self._wait(n_sources, progress)
            if left:
                return left
        return []

    def _wait(self, n_sources: int, progress: Progress) -> list[PlannedRun]:
        """Waits until the runs of other parts that have so many sources are over; those whose
        launchers are not at work are returned."""
        left = [
            one
            for one in self.runs
            if one.run.static.n_sources == n_sources and not self.part.has(one.run.hash)
        ]
        told = False
        while True:
            # First who is at work, then what is done: a launcher that leaves meanwhile has done it.
            there = at_work(self.root)
            left = [one for one in left if not self._over(one)]
            if not left or not any(part.has(one.run.hash) for part in there for one in left):
                return left
            if not told:
                progress.note(f"waits for {len(left)} runs of other parts")
                told = True
            time.sleep(_LOOK_S)

    def _over(self, planned: PlannedRun) -> bool:
        state = self._state(planned)
        return state.done or state.given_up


def _told_of_parts(left: list[PlannedRun], part: Part) -> str:
    """What a launcher says that ends before the sweep does."""
    parts = [Part(i + 1, part.count) for i in range(part.count)]
    missing = [str(one) for one in parts if any(one.has(run.run.hash) for run in left)]
    return (
        f"the runs of part {part} are over, {len(left)} of {', '.join(missing)} are not, and "
        f"nobody is at work on them: launch those parts, or the whole, for what is left and the "
        f"tables"
    )

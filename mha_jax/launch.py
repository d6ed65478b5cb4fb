"""Carries out a sweep: hands the unfinished runs, group by group, to worker processes, and remakes
the tables.

Runs are known by their hash, so launching again continues: finished runs are kept, unfinished ones
resume, failed ones are tried once more, and a failure that repeats itself is not tried again.
Imports no jax.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import fcntl
import json
import os
import socket
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from mha_jax import config, report, runstate, stages, store, tensorboard
from mha_jax.files import write_json_atomic
from mha_jax.jobs import cpus, jobs_of
from mha_jax.planned import PURPOSES, PlannedRun
from mha_jax.pool import Pool
from mha_jax.progress import Progress
from mha_jax.sweep import Sweep


def launch(sweep: Sweep, workdir: Path, workers: int | None = None) -> int:
    """Runs what is unfinished of a sweep, then writes tables and figures.

    Args:
      sweep: planned runs.
      workdir: the sweep's files go to `<workdir>/<experiment>/`.
      workers: as `carry_out` says.

    Returns and raises what `carry_out` does.
    """

    def record(runs: list[PlannedRun]) -> dict[str, Any]:
        return dataclasses.replace(sweep, runs=runs).to_json()

    return carry_out(sweep.runs, workdir / sweep.experiment, workers, record)


def carry_out(
    runs: list[PlannedRun],
    root: Path,
    workers: int | None = None,
    record: Callable[[list[PlannedRun]], dict[str, Any]] | None = None,
) -> int:
    """Runs what is unfinished of planned runs and of what follows from them, then writes tables
    and figures.

    Args:
      runs: planned runs of one experiment.
      root: the experiment's directory.
      workers: processes; None: one a core on a CPU, each pinned to it, and one where there is an
        accelerator. Runs that can only go one after another have one worker with all cores.
      record: what `sweep.json` shall say of the runs; None: it stays as it is.

    Returns:
      The exit code: 0, or 1 if a run failed.

    Raises:
      ValueError: another launch is at work in the directory, or a run there is not what it says.
      WorkerError: workers cannot start.
      OSError: the directory cannot be written.
    """
    with locked(root):
        return _carry_out(list(runs), root, workers, record)


def _carry_out(
    runs: list[PlannedRun],
    root: Path,
    workers: int | None,
    record: Callable[[list[PlannedRun]], dict[str, Any]] | None,
) -> int:
    at_once = collections.Counter(one.run.static.n_sources for one in runs)
    placed = cpus(max(at_once.values()), workers)
    while True:
        progress = Progress(len(runs))
        directories = place(runs, root)
        if record is not None:
            write_json_atomic(root / "sweep.json", record(runs))
        _train(runs, directories, placed, root, progress)
        stored = store.read_sweep(root)[0]
        more = stages.followups(runs, stored)
        if not more:
            break
        over = {run.run.hash for run in stored if run.status in ("done", "diverged")}
        if any(one.run.hash not in over for one in more):
            told = _told([one for one in more if one.run.hash not in over])
            progress.note(f"these results ask for {told}")
        runs = [*runs, *more]
    _tell_of_others(stored, runs, root, progress)
    for path in report.make(root, progress.note):
        progress.note(f"wrote {path}")
    progress.note("\n" + (root / "order.txt").read_text().rstrip())
    show_table(root)
    states = [runstate.read(directories[planned.run.hash]) for planned in runs]
    failed = sum(not state.done for state in states)
    if failed:
        progress.note(
            f"{failed} of {len(states)} runs failed: {root / 'runs.csv'} has status and error"
        )
    return 1 if failed else 0


def _tell_of_others(
    stored: Sequence[store.StoredRun], runs: list[PlannedRun], root: Path, progress: Progress
) -> None:
    """Names what no launch of this plan will finish, since it holds back its cells."""
    planned = {one.run.hash for one in runs}
    others = [r for r in stored if r.status == "unfinished" and r.run.hash not in planned]
    if others:
        progress.note(
            f"{len(others)} unfinished runs of an earlier plan are in {root}, such as "
            f"{others[0].directory.name}; their cells stay unverified: launch that plan again, or "
            f"delete them"
        )


def _told(more: list[PlannedRun]) -> str:
    """What the next stage is, for people."""
    words = {
        "selection": "at one more learning rate",
        "sweep": "at the chosen learning rates, on the seeds that are reported",
        "twin": "with twice the steps",
        "source": "that these start from",
        "selection source": "that these start from",
    }
    count = collections.Counter(one.about["purpose"] for one in more)
    return ", ".join(f"{n} more runs {words[purpose]}" for purpose, n in count.items())


def _train(
    runs: list[PlannedRun],
    directories: dict[str, Path],
    placed: Sequence[int | None],
    root: Path,
    progress: Progress,
) -> None:
    """Runs what is unfinished of the planned runs, those that others start from first."""
    pending, kept = [], 0
    for planned in runs:
        state = runstate.read(directories[planned.run.hash])
        if state.done:
            kept += 1
            progress.finished(planned.run.hash)
        elif state.given_up:
            progress.note(
                f"{planned.label}: failed {state.attempts} times, last with: {state.error}; "
                f"not tried again (to do so, delete "
                f"{directories[planned.run.hash] / 'summary.json'})"
            )
        else:
            pending.append(planned)
    if kept:
        progress.note(f"{kept} of {len(runs)} runs were finished before and are kept")
    if pending:
        show_table(root)  # so that a person can watch from the start
    for n_sources in sorted({planned.run.static.n_sources for planned in pending}):
        some = [planned for planned in pending if planned.run.static.n_sources == n_sources]
        jobs = jobs_of(some, len(placed))
        with progress:
            Pool(jobs, directories, placed[: len(jobs)], root, progress).serve()


@contextlib.contextmanager
def locked(root: Path) -> Iterator[None]:
    """Keeps a second launch out of a sweep's directory. The lock goes with the process.

    Raises:
      ValueError: another launch holds it.
    """
    root.mkdir(parents=True, exist_ok=True)
    with (root / ".lock").open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            holder = file.read().strip() or "unknown"
            raise ValueError(
                f"{root}: another launch is at work ({holder}); wait for it, or stop it"
            ) from None
        file.truncate(0)
        file.write(f"host {socket.gethostname()}, pid {os.getpid()}\n")
        file.flush()
        yield


def place(runs: list[PlannedRun], root: Path) -> dict[str, Path]:
    """Makes the run directories and their `config.json`. A run that is there already keeps its
    directory, and is told what this launch says about it: how often to log, what counts as
    converged. One that was made as a twin and is now wanted for itself is no twin any more; the
    other way round it stays what it was."""
    there = {path.parent.name[-10:]: path.parent for path in root.glob("*/config.json")}
    directories = {}
    for planned in runs:
        run = planned.run
        directory = there.get(run.hash, root / f"{planned.label}-{run.hash}")
        directories[run.hash] = directory
        if run.hash not in there or _told_anew(directory, planned.about):
            directory.mkdir(exist_ok=True)
            write_json_atomic(
                directory / "config.json",
                {
                    "schema_version": config.SCHEMA_VERSION,
                    "hash": run.hash,
                    "group_hash": run.group_hash,
                    "static": config.to_json(run.static),
                    "hypers": config.to_json(run.hypers),
                    "about": planned.about,
                },
            )
    return directories


def _told_anew(directory: Path, about: dict[str, Any]) -> bool:
    """Whether what a config.json says about its run is to be replaced."""
    stored = json.loads((directory / "config.json").read_bytes())["about"]
    if PURPOSES.index(stored["purpose"]) > PURPOSES.index(about["purpose"]):
        return False
    return stored != json.loads(json.dumps(about))


def show_table(root: Path) -> None:
    """TensorBoard's table of the sweep's runs, and the figures beside it."""
    runs, _ = store.read_sweep(root)
    sessions = [
        tensorboard.Session(
            directory=stored.directory.name,
            hparams=stored.about["overrides"],
            ok=None if stored.status == "unfinished" else stored.status == "done",
        )
        for stored in runs
    ]
    metrics = dict.fromkeys(f"test/{stored.spec.metric}" for stored in runs)
    tensorboard.write_hparams(root, sessions, list(metrics))
    for name in ("frontier", "training"):
        figure = root / "figures" / f"{name}.png"
        if figure.exists():
            tensorboard.image_file(root / "tb", name, figure)

"""Worker processes that take one job after another, and what is done when one of them dies.

Imports no jax.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import queue
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO

from mha_jax import host, runstate
from mha_jax.planned import PlannedRun
from mha_jax.progress import Progress


@dataclasses.dataclass
class Worker:
    """A worker process and the job it has in hand."""

    process: subprocess.Popen[str]
    cpu: int | None
    job: list[PlannedRun] = dataclasses.field(default_factory=list)
    started: set[str] = dataclasses.field(default_factory=set)  # hashes of its runs in work
    ready: bool = False  # it came as far as asking for work


class WorkerError(RuntimeError):
    """Workers cannot start here; no run is to blame."""


class Pool:
    """Worker processes that take one job after another."""

    def __init__(
        self,
        jobs: list[list[PlannedRun]],
        directories: dict[str, Path],
        cpus: Sequence[int | None],
        root: Path,
        progress: Progress,
    ):
        self.jobs, self.directories, self.cpus = jobs, directories, cpus
        self.root, self.progress = root, progress
        self.by_hash = {planned.run.hash: planned for job in jobs for planned in job}
        self.events: queue.SimpleQueue[tuple[Worker, dict[str, Any] | None]] = queue.SimpleQueue()
        (root / "logs").mkdir(exist_ok=True)
        self.log_path = root / "logs" / "workers.log"

    def serve(self) -> None:
        """Returns when every job is done or given up. Workers never outlive this call.

        Raises:
          WorkerError: a worker died before it was ready for work.
        """
        with self.log_path.open("a") as log:
            alive = [self._start(cpu, log) for cpu in self.cpus]
            try:
                while alive:
                    worker, event = self.events.get()
                    if event is None:
                        alive.remove(worker)
                        worker.process.wait()
                        if not worker.ready:
                            raise WorkerError(self._last_words(worker))
                        self._lost(worker)
                        if self.jobs:
                            alive.append(self._start(worker.cpu, log))
                    elif event["event"] == "ready":
                        worker.ready, worker.job = True, []
                        self._hand_out(worker)
                    else:
                        self._report(worker, event)
            finally:
                for worker in alive:
                    worker.process.kill()
                    worker.process.wait()

    def _start(self, cpu: int | None, log: TextIO) -> Worker:
        command = [sys.executable, "-m", "mha_jax.worker"]
        process = subprocess.Popen(
            command if cpu is None else [*command, f"--cpu={cpu}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=host.child_environment(self.root.resolve().parent / ".cache" / "xla"),
        )
        worker = Worker(process, cpu)

        def listen() -> None:
            assert process.stdout is not None
            for line in process.stdout:
                self.events.put((worker, json.loads(line)))
            self.events.put((worker, None))

        threading.Thread(target=listen, daemon=True).start()
        return worker

    def _hand_out(self, worker: Worker) -> None:
        """The next job; a worker with nothing left to do is let go."""
        assert worker.process.stdin is not None
        if not self.jobs:
            worker.process.stdin.close()
            return
        worker.job, worker.started = self.jobs.pop(0), set()
        paths = [str(self.directories[planned.run.hash]) for planned in worker.job]
        with contextlib.suppress(BrokenPipeError):  # it has just died: its end is told as well
            worker.process.stdin.write(json.dumps({"runs": paths}) + "\n")
            worker.process.stdin.flush()

    def _report(self, worker: Worker, event: dict[str, Any]) -> None:
        planned = self.by_hash.get(event.get("run", ""))
        if event["event"] == "note":
            self.progress.note(event["text"])
        elif event["event"] == "start":
            worker.started.add(event["run"])
        elif event["event"] == "failed" and planned is not None:
            self.progress.note(f"{planned.label}: failed with: {event['error']}")
            self._retry(planned)
        elif planned is not None:
            self.progress.show(planned, event)

    def _lost(self, worker: Worker) -> None:
        """A worker died with a job in hand: its runs in work are recorded as failed once, those
        that it had not begun are handed out again.
        """
        waiting = []
        for planned in worker.job:
            directory = self.directories[planned.run.hash]
            if runstate.read(directory).done:
                continue
            if planned.run.hash not in worker.started:
                waiting.append(planned)
                continue
            error = f"the worker died (exit code {worker.process.returncode}); see {self.log_path}"
            runstate.record_failure(directory, error)
            self.progress.note(f"{planned.label}: {error}")
            self._retry(planned)
        if waiting:
            self.jobs.append(waiting)

    def _last_words(self, worker: Worker) -> str:
        lines = [line for line in self.log_path.read_text().splitlines() if line.strip()]
        said = f": {lines[-1].strip()}" if lines else ""
        code = worker.process.returncode
        return f"a worker ended before its first job (exit code {code}){said}; see {self.log_path}"

    def _retry(self, planned: PlannedRun) -> None:
        state = runstate.read(self.directories[planned.run.hash])
        if not state.given_up:
            self.jobs.append([planned])
        else:
            self.progress.finished(planned.run.hash)

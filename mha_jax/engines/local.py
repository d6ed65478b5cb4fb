"""Workers as processes of this machine."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from mha_jax import host
from mha_jax.engines.base import End, Listen, Slot
from mha_jax.jobs import cpus
from mha_jax.parts import Part


class Process:
    """A worker process: jobs go to its standard input, events come from its standard output."""

    def __init__(self, flags: Sequence[str], cache: Path, log: Path, listen: Listen):
        with log.open("a") as file:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "mha_jax.worker", *flags],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                text=True,
                env=host.child_environment(cache),
            )
        threading.Thread(target=self._follow, args=(listen,), daemon=True).start()

    def _follow(self, listen: Listen) -> None:
        assert self._process.stdout is not None
        was_ready = False
        for line in self._process.stdout:
            event = json.loads(line)
            was_ready = was_ready or event["event"] == "ready"
            listen(event)
        listen(End(f"exit code {self._process.wait()}", was_ready))

    def give(self, directories: Sequence[Path]) -> None:
        """Hands over a job."""
        self.say({"runs": list(map(str, directories))})

    def say(self, job: dict[str, object]) -> None:
        """Writes a line to the worker; nothing where it has just died: its end is told as well."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError, ValueError):  # closed: it was let go
            self._process.stdin.write(json.dumps(job) + "\n")
            self._process.stdin.flush()

    def close(self) -> None:
        """The worker leaves at once."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()

    def stop(self) -> None:
        """The worker saves what it is at, and leaves."""
        self.say({"stop": True})

    def kill(self) -> None:
        """Ends the worker and waits for its end."""
        self._process.kill()
        self._process.wait()

    def wait(self, timeout_s: float) -> None:
        """Waits for the end of the worker, and ends it after that time."""
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()


class Local:
    """This machine: one worker a core on a CPU, each pinned to it, one on an accelerator."""

    def __init__(self, part: Part, cache: Path, log: Path):
        self.part, self._cache, self._log = part, cache, log

    def __enter__(self) -> Local:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        pass

    def slots(self, n_runs: int, workers: int | None) -> Sequence[Slot]:
        """The core of each worker; None: all cores."""
        return cpus(n_runs, workers)

    def start(self, slot: Slot, listen: Listen) -> Process:
        """A worker process."""
        flags = [] if slot is None else [f"--cpu={slot}"]
        return Process(flags, self._cache, self._log, listen)

"""What a task of a Ray cluster runs, and what is heard of it through the work directory."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

from mha_jax.engines.base import Listen

POLL_S = 0.2  # between looks at what the other side has told


class Told:
    """The events that a worker writes to a file, read as they come."""

    def __init__(self, path: Path, listen: Listen):
        self._path, self._listen, self._offset, self.n_ready = path, listen, 0, 0

    def read(self) -> None:
        """Passes on the whole lines that are new; "ready" is counted and kept."""
        try:
            with self._path.open("rb") as file:  # opened anew: NFS then asks its server
                file.seek(self._offset)
                lines = file.read()
        except FileNotFoundError:
            return
        whole = lines[: lines.rfind(b"\n") + 1]
        self._offset += len(whole)
        for line in whole.splitlines():
            event = json.loads(line)
            if event["event"] == "ready":
                self.n_ready += 1
            else:
                self._listen(event)


def put_away(path: Path, log: Path) -> None:
    """Puts what a task's worker printed to the common log, and removes the task's files."""
    with contextlib.suppress(OSError):
        with log.open("ab") as file:
            file.write(path.read_bytes())
        path.unlink()
    for suffix in (".jsonl", ".stop"):
        path.with_suffix(suffix).unlink(missing_ok=True)


def function() -> Any:
    """What a task runs. It is made here, and not at the top, because Ray then sends its code: a
    function of a module would be imported on the node, by a Ray that does not know where from."""

    poll_s = POLL_S

    def task(job: str, name: str, flags: list[str], settings: dict[str, str]) -> int:
        import os
        import subprocess
        import sys
        import time

        env = {**os.environ, **settings}
        if "OMP_NUM_THREADS" not in settings:
            env.pop("OMP_NUM_THREADS", None)  # Ray sets it
        with open(f"{name}.jsonl", "wb") as events, open(f"{name}.log", "wb") as log:
            worker = subprocess.Popen(
                [sys.executable, "-m", "mha_jax.worker", *flags],
                stdin=subprocess.PIPE,  # stays open as long as this process lives
                stdout=events,
                stderr=log,
                env=env,
            )
            assert worker.stdin is not None
            worker.stdin.write(job.encode() + b"\n")
            worker.stdin.flush()
            while worker.poll() is None:
                if os.path.exists(f"{name}.stop"):
                    worker.stdin.write(b'{"stop": true}\n')
                    worker.stdin.flush()
                    return worker.wait()
                time.sleep(poll_s)
            return worker.returncode

    return task

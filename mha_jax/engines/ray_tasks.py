"""Workers as tasks of a Ray cluster: a job is a task, and each task starts a worker process.

The process is that of the other engines, so what it does, records, and leaves behind when it is
killed is the same. Ray finds it a node and a GPU. Ray's own retries are off: `pool` has the rule.
Jobs, events and results go through the work directory, which all nodes see at one path.
"""

from __future__ import annotations

import json
import os
import queue
import socket
import threading
import uuid
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from mha_jax import host
from mha_jax.engines import ray_task
from mha_jax.engines.base import ANY_CORE, End, Listen, Slot
from mha_jax.parts import Part

_CONNECT_S = 10.0  # within which a cluster answers; Ray itself waits for more than a minute
_FORWARDED = ("JAX_", "XLA_", "MHA_JAX_", "PYTHONPATH", "OMP_NUM_THREADS", "GLIBC_TUNABLES")


class RayTasks:
    """A Ray cluster: one task a GPU where it has any, else one a CPU, each pinned to a core."""

    def __init__(self, part: Part, address: str | None, cache: Path, log: Path):
        self.part, self._address = part, address
        self._cache, self._log = cache, log.resolve()

    def __enter__(self) -> RayTasks:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        import ray

        try:
            _reach(self._address or "")
            ray.init(
                address=self._address,
                include_dashboard=False,  # who reaches its port may run code
                log_to_driver=False,
                logging_level="ERROR",
            )
        except Exception as error:  # of many types
            where = self._address or "of this machine"
            said = (str(error).splitlines() or [type(error).__name__])[0]
            raise ValueError(f"--ray_address: no Ray cluster {where} ({said})") from None
        found = ray.cluster_resources()
        if found.get("TPU"):
            ray.shutdown()
            raise ValueError("--engine=ray runs on CPUs and GPUs; for TPUs use --hosts=auto")
        on_cpu = os.environ.get("JAX_PLATFORMS", "").split(",")[0] == "cpu"
        self._gpus = 0 if on_cpu else int(found.get("GPU", 0))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        import ray

        ray.shutdown()

    def slots(self, n_runs: int, workers: int | None) -> Sequence[Slot]:
        """As `jobs.cpus` says for one machine: a core each, or the machine where there is one."""
        if workers is None:
            workers = 1 if n_runs == 1 else self._gpus or sum(_cpus())
        pinned = workers > 1 and not self._gpus
        return [ANY_CORE if pinned else None] * max(1, workers)

    def start(self, slot: Slot, listen: Listen) -> RayWorker:
        """A worker that starts a process for each job."""
        import ray

        # A worker that has a CPU machine for itself asks for all of it.
        n_cpus = 1 if self._gpus or slot == ANY_CORE else max(_cpus())
        remote = ray.remote(
            num_cpus=n_cpus, num_gpus=1 if self._gpus else 0, max_retries=0, name="mha_jax"
        )(ray_task.function())
        flags = ["--once"] if slot is None else ["--once", f"--cpu={slot}"]
        return RayWorker(remote, flags, self._settings(), self._log, listen)

    def _settings(self) -> dict[str, str]:
        """What a task's process has in its environment beside that of its node."""
        told = {key: v for key, v in os.environ.items() if key.startswith(_FORWARDED)}
        if self._gpus:
            settings = host.child_environment(self._cache, told)
            return {key: v for key, v in settings.items() if key != "GLIBC_TUNABLES" or key in told}
        # Ray hides no GPU from a task that has none.
        return host.child_environment(self._cache, told) | {"JAX_PLATFORMS": "cpu"}


class RayWorker:
    """A worker as the pool holds it: each job is a task of its own."""

    def __init__(
        self, remote: Any, flags: list[str], settings: dict[str, str], log: Path, listen: Listen
    ):
        self._remote, self._flags, self._settings = remote, flags, settings
        self._log, self._listen = log, listen
        self._jobs: queue.SimpleQueue[list[str] | None] = queue.SimpleQueue()
        self._killed, self._asked = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def give(self, directories: Sequence[Path]) -> None:
        """Hands over a job."""
        self._jobs.put(list(map(str, directories)))

    def close(self) -> None:
        """No task is left."""
        self._jobs.put(None)

    def stop(self) -> None:
        """The task's worker saves what it is at, and leaves."""
        self._asked.set()
        self._jobs.put(None)

    def kill(self) -> None:
        """Ends the task; its worker process sees its standard input end, and leaves."""
        self._killed.set()
        self._jobs.put(None)
        self._thread.join()

    def _serve(self) -> None:
        self._listen({"event": "ready"})
        while (job := self._jobs.get()) is not None and not self._killed.is_set():
            end = self._carry_out(job)
            if end is not None:
                self._listen(end)
                return
            self._listen({"event": "ready"})
        self._listen(End("let go", was_ready=True))

    def _carry_out(self, job: list[str]) -> End | None:
        """Runs a task to its end, and passes on what its worker tells; None: it did its job."""
        import ray

        name = self._log.parent / f"task-{uuid.uuid4().hex}"
        told = ray_task.Told(name.with_suffix(".jsonl"), self._listen)
        end: str | None = None
        lost = False
        ref = self._remote.remote(json.dumps({"runs": job}), str(name), self._flags, self._settings)
        try:
            while not ray.wait([ref], timeout=ray_task.POLL_S)[0]:
                told.read()
                if self._asked.is_set():
                    name.with_suffix(".stop").touch()
                if self._killed.is_set():
                    ray.cancel(ref, force=True)
            end = f"exit code {ray.get(ref)}"
        except ray.exceptions.NodeDiedError:
            end, lost = "a node of the Ray cluster was lost", True
        except (ray.exceptions.RayError, OSError) as error:
            cause = getattr(error, "cause", None) or error
            end = f"its Ray task failed: {(str(cause).splitlines() or [type(error).__name__])[0]}"
        told.read()
        ray_task.put_away(name.with_suffix(".log"), self._log)
        if told.n_ready == 2:  # one at its start, one after the job
            return None
        return End(end, was_ready=told.n_ready > 0, place_lost=lost)


def _cpus() -> list[int]:
    """The CPUs of each node that is there now."""
    import ray

    return [int(node["Resources"].get("CPU", 0)) for node in ray.nodes() if node["Alive"]]


def _reach(address: str) -> None:
    """Raises OSError where HOST:PORT does not answer."""
    name, _, port = address.rpartition(":")
    if name and port.isdecimal():
        socket.create_connection((name, int(port)), _CONNECT_S).close()

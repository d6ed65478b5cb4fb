"""One worker on each of several machines, joined by jax.distributed.

Every machine starts the same command; each trains its part of the runs on its own devices, and all
see one work directory. jax.distributed is what lets the chips of a TPU pod start at all; the runs
have nothing to say to each other. Its price: when one worker dies, jax ends those of the other
machines too, and a launch on all of them continues from the checkpoints.
"""

from __future__ import annotations

import queue
import signal
import threading
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from mha_jax.engines.base import End, Listen, Slot, WorkerError, unable
from mha_jax.engines.local import Process
from mha_jax.parts import Part

_LEAVE_S = 60.0  # workers leave together; one that waits longer has lost the others
_ABORTED = f"exit code {-signal.SIGABRT}"  # how jax ends a worker whose peer is gone


class Hosts:
    """This machine as one of several. Its worker stays for the whole launch: jax.distributed can be
    joined once."""

    def __init__(self, told: str, cache: Path, log: Path):
        self._told, self._cache, self._log = told, cache, log
        self._listen: Listen | None = None  # of the pool that has the worker
        self._end: End | None = None
        self._lock = threading.Lock()  # the end of the worker is told once

    def __enter__(self) -> Hosts:
        first: queue.SimpleQueue[dict[str, Any] | End] = queue.SimpleQueue()
        self._listen = first.put
        self._process = Process([f"--hosts={self._told}"], self._cache, self._log, self._hear)
        try:
            event = first.get()
        except BaseException:
            self._process.kill()
            raise
        if isinstance(event, End):
            raise unable(event, self._log)
        self._listen = None
        self.part = Part(event["process"] + 1, event["processes"])
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self._process.say({"leave": True})
            self._process.wait(_LEAVE_S)
        else:
            self._process.kill()

    def _hear(self, event: dict[str, Any] | End) -> None:
        with self._lock:
            if isinstance(event, End):
                lost = event.told == _ABORTED
                event = self._end = End(event.told, event.was_ready, place_lost=lost)
            if self._listen is not None:
                self._listen(event)

    def slots(self, n_runs: int, workers: int | None) -> Sequence[Slot]:
        """One worker with all devices and cores of the machine."""
        return [None]

    def start(self, slot: Slot, listen: Listen) -> _Lent:
        """The one worker of this machine.

        Raises:
          WorkerError: it has ended.
        """
        with self._lock:
            if self._end is None:
                self._listen = listen
                listen({"event": "ready"})
                return _Lent(self, self._process)
        why = "another host is gone" if self._end.place_lost else "it cannot join the others again"
        raise WorkerError(
            f"the worker of this host ended ({self._end.told}): {why}; launch again on every host "
            f"to continue, see {self._log}"
        )

    def let_go(self) -> None:
        """The pool needs the worker no more; the next one may have it."""
        with self._lock:
            if self._listen is not None and self._end is None:
                self._listen(End("let go", was_ready=True))
            self._listen = None


class _Lent:
    """The worker, while a pool has it."""

    def __init__(self, hosts: Hosts, process: Process):
        self._hosts, self.give = hosts, process.give
        self.stop, self.kill = process.stop, process.kill

    def close(self) -> None:
        """It waits for the next pool."""
        self._hosts.let_go()

"""What `pool` knows of the places where workers run.

A worker is a process `python -m mha_jax.worker`, wherever it is. What it emits reaches the pool
through `Listen`: "ready" asks for work, the other events are those of `runner`. The last thing
heard of a worker is its `End`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from mha_jax.parts import Part

Slot = int | str | None  # the core of a worker, ANY_CORE, or None: all of its machine
ANY_CORE = "any"  # one that no other such worker has


class WorkerError(RuntimeError):
    """Workers cannot start here; no run is to blame."""


@dataclasses.dataclass(frozen=True)
class End:
    """How a worker ended."""

    told: str  # for people, such as "exit code -9"
    was_ready: bool  # it came as far as asking for work
    place_lost: bool = False  # its machine or a peer went away: its runs are not to blame


def unable(end: End, log: Path) -> WorkerError:
    """What to raise of a worker that never asked for work: its last words are in `log`."""
    lines = [
        line
        for line in log.read_text(encoding="utf-8", errors="replace").splitlines()
        if line.strip()
    ]
    said = f": {lines[-1].strip()}" if lines else ""
    return WorkerError(f"a worker ended before its first job ({end.told}){said}; see {log}")


Listen = Callable[[dict[str, Any] | End], None]


class Worker(Protocol):
    """A worker as the pool holds it."""

    def give(self, directories: Sequence[Path]) -> None:
        """Hands over a job: the directories of its runs, which share a static config."""

    def close(self) -> None:
        """There is nothing more to do: the worker leaves."""

    def stop(self) -> None:
        """Asks the worker to save what it is at, and to leave; its end is told as ever."""

    def kill(self) -> None:
        """Ends the worker, whatever it does. It is gone when this returns."""


class Engine(Protocol):
    """A place where workers run, entered for the length of a launch.

    Entering raises:
      ValueError: it cannot be used as the command line says.
      WorkerError: workers cannot start.
    """

    @property
    def part(self) -> Part:
        """What this launch trains of the sweep."""

    def slots(self, n_runs: int, workers: int | None) -> Sequence[Slot]:
        """The slot of each worker. It depends on the whole sweep, not on what is left of it: a
        resumed run must find the same number of threads.

        Args:
          n_runs: the most runs that can go at once.
          workers: how many workers a person asks for; None: as many as suit the place.
        """

    def start(self, slot: Slot, listen: Listen) -> Worker:
        """A worker, which will ask for work.

        Raises:
          WorkerError: none can start any more.
        """

    def __enter__(self) -> Engine: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...

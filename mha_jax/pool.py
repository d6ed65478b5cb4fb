"""Hands jobs to workers, one after another, and says what is done when one of them dies: the same
wherever they run.

Imports no jax.
"""

from __future__ import annotations

import dataclasses
import queue
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mha_jax import runstate
from mha_jax.engines.base import End, Engine, Slot, Worker, unable
from mha_jax.planned import PlannedRun
from mha_jax.progress import Progress


@dataclasses.dataclass(eq=False)
class Hand:
    """A worker and the job it has in hand."""

    slot: Slot
    worker: Worker | None = None
    job: list[PlannedRun] = dataclasses.field(default_factory=list)
    started: set[str] = dataclasses.field(default_factory=set)  # hashes of its runs in work


class Pool:
    """Workers that take one job after another."""

    def __init__(
        self,
        jobs: list[list[PlannedRun]],
        directories: dict[str, Path],
        engine: Engine,
        slots: Sequence[Slot],
        log: Path,
        progress: Progress,
    ):
        self.jobs, self.directories, self.engine = jobs, directories, engine
        self.free, self.log, self.progress = list(slots), log, progress
        self.by_hash = {planned.run.hash: planned for job in jobs for planned in job}
        self.events: queue.SimpleQueue[tuple[Hand, dict[str, Any] | End]] = queue.SimpleQueue()

    def serve(self) -> None:
        """Returns when every job is done or given up. Workers never outlive this call, unless their
        engine keeps them for the next one.

        Raises:
          WorkerError: a worker died before it was ready for work.
        """
        alive: list[Hand] = []
        try:
            while self.jobs or alive:
                while self.free and len(alive) < len(self.jobs) + sum(bool(h.job) for h in alive):
                    alive.append(self._start(self.free.pop(0)))
                hand, event = self.events.get()
                if isinstance(event, End):
                    alive.remove(hand)
                    self.free.append(hand.slot)
                    if not event.was_ready and not event.place_lost:
                        raise unable(event, self.log)
                    self._lost(hand, event)
                elif event["event"] == "ready":
                    hand.job = []
                    self._hand_out(hand)
                else:
                    self._report(hand, event)
        finally:
            for hand in alive:
                if hand.worker is not None:
                    hand.worker.kill()

    def _start(self, slot: Slot) -> Hand:
        hand = Hand(slot)
        hand.worker = self.engine.start(slot, lambda event: self.events.put((hand, event)))
        return hand

    def _hand_out(self, hand: Hand) -> None:
        """The next job; a worker with nothing left to do is let go."""
        assert hand.worker is not None
        if not self.jobs:
            hand.worker.close()
            return
        hand.job, hand.started = self.jobs.pop(0), set()
        hand.worker.give([self.directories[planned.run.hash].resolve() for planned in hand.job])

    def _report(self, hand: Hand, event: dict[str, Any]) -> None:
        planned = self.by_hash.get(event.get("run", ""))
        if event["event"] == "note":
            self.progress.note(event["text"])
        elif event["event"] == "start":
            hand.started.add(event["run"])
        elif event["event"] == "failed" and planned is not None:
            self.progress.note(f"{planned.label}: failed with: {event['error']}")
            self._retry(planned)
        elif planned is not None:
            self.progress.show(planned, event)

    def _lost(self, hand: Hand, end: End) -> None:
        """A worker died with a job in hand: its runs in work are recorded as failed once, those
        that it had not begun are handed out again. So are all of them where its machine went away,
        which is no failure of theirs.
        """
        waiting = []
        for planned in hand.job:
            directory = self.directories[planned.run.hash]
            if runstate.read(directory).done:
                self.progress.finished(planned.run.hash)
                continue
            if end.place_lost or planned.run.hash not in hand.started:
                waiting.append(planned)
                continue
            error = f"the worker died ({end.told}); see {self.log}"
            runstate.record_failure(directory, error)
            self.progress.note(f"{planned.label}: {error}")
            self._retry(planned)
        if waiting:
            if end.place_lost:
                self.progress.note(f"{end.told}: {len(waiting)} runs are handed out again")
            self.jobs.append(waiting)

    def _retry(self, planned: PlannedRun) -> None:
        state = runstate.read(self.directories[planned.run.hash])
        if not state.given_up:
            self.jobs.append([planned])
        else:
            self.progress.finished(planned.run.hash)

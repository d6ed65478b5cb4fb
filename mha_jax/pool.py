"""Hands jobs to workers, one after another, and says what is done when one of them dies: the same
wherever they run.

Imports no jax.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import queue
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from mha_jax import runstate, signals
from mha_jax.engines.base import End, Engine, Slot, Worker, unable
from mha_jax.engines.options import Options
from mha_jax.planned import PlannedRun
from mha_jax.progress import Progress
from mha_jax.signals import Stopped

_ASKED = f"exit code {128 + signal.SIGTERM}"  # of a worker that was itself told to save and leave


@dataclasses.dataclass(eq=False)
class Hand:
    """A worker and the job it has in hand."""

    slot: Slot
    worker: Worker | None = None
    job: list[PlannedRun] = dataclasses.field(default_factory=list)
    started: set[str] = dataclasses.field(default_factory=set)  # hashes of its runs in work
    begun: bool = False  # it has told of some run of the job
    heard_at: float = dataclasses.field(default_factory=time.monotonic)
    stuck: str = ""  # why it was ended from here


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
        self.stuck_after_s = Options.stuck_after_s
        self.by_hash = {planned.run.hash: planned for job in jobs for planned in job}
        self.events: queue.SimpleQueue[tuple[Hand, dict[str, Any] | End] | int] = (
            queue.SimpleQueue()
        )
        self.unrestorable: set[str] = set()  # runs whose checkpoints cannot be used
        self._failures = collections.Counter[str]()  # of this launch, by run
        self._signals = 0

    def serve(self) -> None:
        """Returns when every job is done or given up. Workers never outlive this call, unless their
        engine keeps them for the next one.

        Raises:
          Stopped: a signal came; the workers have saved what they were at.
          WorkerError: a worker died before it was ready for work.
        """
        alive: list[Hand] = []
        try:
            with signals.handled(self._heed):
                self._serve(alive)
        finally:
            for hand in alive:
                if hand.worker is not None:
                    hand.worker.kill()

    def _heed(self, signum: int) -> None:
        """The first signal is an event like others; the second one does not wait."""
        self._signals += 1
        if self._signals > 1:
            raise Stopped(signum, "at once; unfinished runs go on from their last checkpoint")
        self.events.put(signum)

    def _serve(self, alive: list[Hand]) -> None:
        while self.jobs or alive:
            while self.free and len(alive) < len(self.jobs) + sum(bool(h.job) for h in alive):
                alive.append(self._start(self.free.pop(0)))
            told = self._next(alive)
            if told is None:
                continue
            if isinstance(told, int):
                self._stop(alive, told)
            hand, event = told
            hand.heard_at = time.monotonic()
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

    def _next(self, alive: Sequence[Hand]) -> Any:
        """The next event. None where a worker has told nothing for so long that it was ended: its
        end is told as ever."""
        wait_s = min(hand.heard_at for hand in alive) + self.stuck_after_s - time.monotonic()
        with contextlib.suppress(queue.Empty):
            return self.events.get(timeout=max(0.0, wait_s))
        for hand in alive:
            if time.monotonic() >= hand.heard_at + self.stuck_after_s:
                hand.stuck = f"ended, since it told nothing for {self.stuck_after_s:g} s"
                hand.heard_at = time.monotonic()
                if hand.worker is not None:
                    hand.worker.kill()
        return None

    def _stop(self, alive: Sequence[Hand], signum: int) -> NoReturn:
        """Has the workers save what they are at.

        Raises:
          Stopped: always, after `signals.LEAVE_S` at the latest.
        """
        at_work = {run: hand for hand in alive for run in hand.started}
        saved: set[str] = set()
        deadline = time.monotonic() + signals.LEAVE_S
        for hand in alive:
            if hand.worker is not None:
                hand.worker.stop()
        left = len(alive)
        with contextlib.suppress(queue.Empty):
            while left:
                told = self.events.get(timeout=max(0.0, deadline - time.monotonic()))
                if isinstance(told, int):
                    continue
                _, event = told
                if isinstance(event, End):
                    left -= 1
                elif event["event"] in ("saved", "done"):
                    saved.add(event["run"])
        n_saved = len(saved & at_work.keys())
        words = f"{n_saved} of {len(at_work)} runs in work are saved where they stood"
        if n_saved < len(at_work):
            words += ", the others go on from their last checkpoint"
        raise Stopped(signum, words)

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
        hand.job, hand.started, hand.begun = self.jobs.pop(0), set(), False
        hand.worker.give([self.directories[planned.run.hash].resolve() for planned in hand.job])

    def _report(self, hand: Hand, event: dict[str, Any]) -> None:
        planned = self.by_hash.get(event.get("run", ""))
        if event["event"] in ("done", "failed", "unrestorable"):  # no longer in its hands
            hand.started.discard(event["run"])
            hand.begun = True
            hand.job = [one for one in hand.job if one.run.hash != event["run"]]
        if event["event"] == "note":
            self.progress.note(event["text"])
        elif event["event"] == "start":
            hand.started.add(event["run"])
            hand.begun = True
        elif event["event"] == "saved":  # its worker leaves, and says so next
            pass
        elif event["event"] == "failed" and planned is not None:
            self.progress.note(f"{planned.label}: failed with: {event['error']}")
            self._retry(planned)
        elif event["event"] == "unrestorable" and planned is not None:
            self.progress.note(f"{planned.label}: {event['error']}")
            self.unrestorable.add(planned.run.hash)
            self.progress.finished(planned.run.hash)
        elif planned is not None:
            self.progress.show(planned, event)

    def _lost(self, hand: Hand, end: End) -> None:
        """A worker died with a job in hand: its runs in work are recorded as failed once, those
        that it had not begun are handed out again. So are all of them where its machine went away,
        which is no failure of theirs.
        """
        waiting = []
        not_to_blame = end.place_lost or end.told == _ASKED
        for planned in hand.job:
            directory = self.directories[planned.run.hash]
            if planned.run.hash in self.unrestorable or runstate.read(directory).done:
                self.progress.finished(planned.run.hash)
                continue
            # Where it died before it began any, all are to blame: it would go on for ever.
            if not_to_blame or (hand.begun and planned.run.hash not in hand.started):
                waiting.append(planned)
                continue
            error = f"the worker {hand.stuck or f'died ({end.told})'}; see {self.log}"
            try:
                runstate.record_failure(directory, error)
            except OSError as reason:  # a full disk, a directory that is gone
                error += f" (not on record: {reason.strerror})"
            self.progress.note(f"{planned.label}: {error}")
            self._retry(planned)
        if waiting:
            if not_to_blame:
                self.progress.note(f"{end.told}: {len(waiting)} runs are handed out again")
            self.jobs.append(waiting)

    def _retry(self, planned: PlannedRun) -> None:
        """Once more, unless it has failed twice here or on record. Where nothing can be recorded,
        what is counted here keeps it from going on for ever."""
        run = planned.run.hash
        self._failures[run] += 1
        if (
            self._failures[run] < runstate.MAX_ATTEMPTS
            and not runstate.read(self.directories[run]).given_up
        ):
            self.jobs.append([planned])
        else:
            self.progress.finished(planned.run.hash)

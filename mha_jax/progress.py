"""What a person sees while a sweep runs: a live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

import math
import sys
import time
from types import TracebackType
from typing import Any

from mha_jax.planned import PlannedRun


class Progress:
    """Counts runs and steps, estimates the time left, and prints notes above the live part."""

    _EVERY_S = 5.0  # between plain lines

    def __init__(self, n_runs: int):
        self.n_runs = n_runs
        self.done: set[str] = set()
        self.current: dict[str, tuple[PlannedRun, dict[str, Any]]] = {}
        self.start = time.monotonic()
        self.shared = (
            0.0  # work done in earlier launches, in runs: it says nothing of the speed of this one
        )
        self.last_line = 0.0
        self.live: Any = None

    def __enter__(self) -> Progress:
        self.shared = len(self.done)
        if sys.stdout.isatty():
            from rich.live import Live

            self.live = Live(refresh_per_second=4)
            self.live.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.live is not None:
            self.live.__exit__(kind, error, trace)
            self.live = None

    def note(self, text: str) -> None:
        """One line that stays."""
        if self.live is not None:
            self.live.console.print(text, markup=False, highlight=False, soft_wrap=True)
        else:
            print(text, flush=True)

    def finished(self, run: str) -> None:
        """A run that needs no more work."""
        self.done.add(run)
        self.current.pop(run, None)

    def show(self, planned: PlannedRun, event: dict[str, Any]) -> None:
        """Takes a worker's "progress" or "done" event."""
        run = planned.run.hash
        if event["event"] == "done":
            self.finished(run)
            result = f"{event['name']} {_number(event['metric'])}"
            self.note(
                f"[{len(self.done)}/{self.n_runs}] {planned.about['task']} {planned.label}: "
                f"{'diverged' if event['diverged'] else result}"
            )
        else:
            self.current[run] = (planned, event)
        if self.live is not None:
            self.live.update(self._table())
        elif time.monotonic() - self.last_line > self._EVERY_S:
            self.last_line = time.monotonic()
            print(self._line(), flush=True)

    def _eta(self) -> str:
        running = sum(event["step"] / event["n_steps"] for _, event in self.current.values())
        made = len(self.done) - self.shared + running
        if made < 0.5:  # so far it is start-up and compilation
            return "?"
        seconds = (time.monotonic() - self.start) * (self.n_runs - len(self.done) - running) / made
        return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"

    def _line(self) -> str:
        parts = [
            f"{planned.label} step {event['step']}/{event['n_steps']} loss {_number(event['loss'])}"
            for planned, event in self.current.values()
        ]
        return f"{len(self.done)}/{self.n_runs} runs, {self._eta()} left; " + "; ".join(parts)

    def _table(self) -> Any:
        from rich.table import Table

        table = Table(
            title=f"{len(self.done)} of {self.n_runs} runs done, about {self._eta()} left"
        )
        for column in ("task", "run", "step", "train loss", "validation"):
            table.add_column(column)
        for planned, event in self.current.values():
            table.add_row(
                planned.about["task"],
                planned.label,
                f"{event['step']}/{event['n_steps']}",
                _number(event["loss"]),
                f"{event['name']} {_number(event['metric'])}",
            )
        return table


def _number(value: float | None) -> str:
    return "-" if value is None or not math.isfinite(value) else f"{value:.4g}"

"""Whether a run is over, read from its `summary.json`, and the record of a failed attempt.

Imports no jax.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

from mha_jax import host
from mha_jax.files import is_as_written, write_signed

MAX_ATTEMPTS = 2  # of a run that fails; a failure that repeats itself is final at once


@dataclasses.dataclass(frozen=True)
class RunState:
    """What is known of a run before it is opened."""

    done: bool = False  # trained to the end, or diverged
    attempts: int = 0  # failed ones of this source code
    repeated: bool = False  # the last failure was the one before it again
    error: str = ""  # of the last failure

    @property
    def given_up(self) -> bool:
        """Not to be tried again."""
        return not self.done and (self.repeated or self.attempts >= MAX_ATTEMPTS)


def read(directory: Path) -> RunState:
    """The state of the run in `directory`. A summary that cannot be read is none: the run goes on.

    Failures of other source code do not count: whatever they were may be mended.
    """
    try:
        summary = json.loads((directory / "summary.json").read_bytes())
        if not is_as_written(summary):
            return RunState()
        if summary["status"] in ("done", "diverged"):
            return RunState(done=True)
        if summary["status"] == "failed" and summary["source"] == host.source_digest():
            return RunState(False, summary["attempts"], summary["repeated"], summary["error"])
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        pass
    return RunState()


def record_failure(directory: Path, error: str) -> RunState:
    """Notes a failed attempt in `summary.json`; the error is one line."""
    before = read(directory)
    state = RunState(False, before.attempts + 1, before.error == error, error)
    write_signed(
        directory / "summary.json",
        {
            "status": "failed",
            "attempts": state.attempts,
            "repeated": state.repeated,
            "error": error,
            "source": host.source_digest(),
        },
    )
    return state

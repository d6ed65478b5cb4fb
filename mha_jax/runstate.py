"""Whether a run is over, read from its `summary.json`, and the record of a failed attempt. Imports
no jax."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

from mha_jax.files import write_json_atomic

MAX_ATTEMPTS = 2  # of a run that fails; a failure that repeats itself is final at once


@dataclasses.dataclass(frozen=True)
class RunState:
    """What is known of a run before it is opened."""

    finished: bool = False  # trained to the end, or diverged
    attempts: int = 0  # failed ones
    repeated: bool = False  # the last failure was the one before it again
    error: str = ""  # of the last failure

    @property
    def given_up(self) -> bool:
        """Not to be tried again."""
        return not self.finished and (self.repeated or self.attempts >= MAX_ATTEMPTS)


def read(directory: Path) -> RunState:
    """The state of the run in `directory`."""
    try:
        summary = json.loads((directory / "summary.json").read_text())
    except FileNotFoundError:
        return RunState()
    if summary["status"] != "failed":
        return RunState(finished=True)
    return RunState(False, summary["attempts"], summary["repeated"], summary["error"])


def record_failure(directory: Path, error: str) -> RunState:
    """Notes a failed attempt in `summary.json`; the error is one line."""
    before = read(directory)
    state = RunState(False, before.attempts + 1, before.error == error, error)
    write_json_atomic(
        directory / "summary.json",
        {
            "status": "failed",
            "attempts": state.attempts,
            "repeated": state.repeated,
            "error": error,
        },
    )
    return state

"""Reads the files of runs back as plain values. Imports no jax, writes nothing, and never guesses.

`config.json` is the identity of a run: its content must hash to the name of its directory,
otherwise the numbers beside it belong to something else and the directory is refused. What can be
lost without lying (a torn line of `metrics.jsonl`, a row of `heads.csv`, an unreadable
`summary.json`) is left out and named in `problems`. The JSON files carry their own SHA-256, and
`summary.json` that of the other records: a digit that has flipped is a number too.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mha_jax import config
from mha_jax.files import fingerprint, is_as_written, within
from mha_jax.rows import NON_FINITE, read_heads, read_records
from mha_jax.tasks import TaskSpec

STATUSES = ("done", "diverged", "failed", "unfinished")
_DIRECTORY = re.compile(r"-([0-9a-f]{10})$")


@dataclasses.dataclass(frozen=True)
class StoredRun:
    """A run directory, read. `history` and `heads` are read when asked for."""

    directory: Path
    run: config.Run
    about: dict[str, Any]  # what the sweep knew: experiment, variant, match, costs, overrides
    environment: dict[str, Any]  # run.json: versions, device, threads; {} if the run never started
    summary: dict[str, Any]  # summary.json; {} while the run is unfinished
    problems: tuple[str, ...]  # one line for each thing that could not be read

    @property
    def status(self) -> str:
        """`done`, `diverged`, `failed` or `unfinished` (no readable summary)."""
        return self.summary.get("status", "unfinished")

    @property
    def label(self) -> str:
        """The directory's name without the hash: for people."""
        return self.directory.name[: -len(self.run.hash) - 1]

    @property
    def spec(self) -> TaskSpec:
        """The task's specification.

        Raises:
          ValueError: the task is not in this installation, or its Config has changed.
        """
        task = self.run.static.task
        try:
            return task.spec
        except (ImportError, TypeError) as error:
            raise ValueError(
                f"{self.directory}: task {task.name!r} cannot be loaded ({error}); "
                f"use the code that made the run, or move it out of the sweep"
            ) from None

    def history(self) -> tuple[list[dict[str, Any]], list[str]]:
        """`metrics.jsonl` as `read_records` gives it; no rows if the run never wrote any, or if it
        is not what it was when the run ended and no damaged line explains it."""
        return self._believed("metrics.jsonl", read_records)

    def heads(self) -> tuple[list[dict[str, Any]], list[str]]:
        """`heads.csv` as `read_heads` gives it; no rows if the run has not come that far, or as for
        `history`."""
        return self._believed("heads.csv", read_heads)

    def changed(self, name: str) -> str:
        """How a file is another one than it was when the run ended, one line; "" if it is not, or
        if the run has not ended."""
        told = self.summary.get("files", {}).get(name)
        path = self.directory / name
        if told is None:
            return ""
        if not path.is_file():
            return f"{path}: missing, although the run is over"
        if fingerprint(path) != told:
            return f"{path}: changed after the run ended: its SHA-256 differs"
        return ""

    def _believed(
        self, name: str, read: Callable[[Path], tuple[list[dict[str, Any]], list[str]]]
    ) -> tuple[list[dict[str, Any]], list[str]]:
        path, changed = self.directory / name, self.changed(name)
        rows, problems = read(path) if path.is_file() else ([], [])
        if changed and not problems:  # which of its rows is wrong, nobody knows
            return [], [f"{changed}; left out"] if path.is_file() else [changed]
        return rows, [*problems, changed] if changed else problems


def read_run(directory: str | Path) -> StoredRun:
    """One run directory.

    Raises:
      ValueError: there is no readable `config.json`, or its content does not hash to the
        directory's name.
    """
    directory = Path(directory)
    path = directory / "config.json"
    if not path.is_file():
        raise ValueError(f"{directory}: not a run directory (it has no config.json)")
    data = _json_object(path)
    try:
        run = config.run_from_json(data)
    except (ValueError, AttributeError) as error:
        raise ValueError(f"{path}: {error}") from None
    named = _DIRECTORY.search(directory.resolve().name)
    if named is None or named[1] != run.hash or data.get("hash") != run.hash:
        found = named[1] if named else "none"
        raise ValueError(
            f"{path}: its content has hash {run.hash}, but it records {data.get('hash')} and the "
            f"directory's name ends in {found}: it was changed or moved after the run; restore it, "
            f"or move it out of the sweep"
        )
    about = data.get("about")
    if not isinstance(about, dict):
        raise ValueError(f"{path}: 'about' must be an object, got {about!r}")
    if not is_as_written(data):
        raise ValueError(f"{path}: damaged: its SHA-256 differs; restore it")
    problems: list[str] = []
    summary = _summary(directory / "summary.json", problems)
    environment = _optional(directory / "run.json", problems)
    if "files" in summary and not (directory / "run.json").exists():
        problems.append(f"{directory / 'run.json'}: missing, although the run is over")
    stored = StoredRun(directory, run, about, environment, summary, ())
    if changed := stored.changed("indices.json"):
        problems.append(f"{changed}; left out")
    return dataclasses.replace(stored, problems=tuple(problems))


def read_sweep(root: str | Path) -> tuple[list[StoredRun], list[str]]:
    """Every run directory of an experiment, in an order that does not depend on the disk, and what
    could not be read.

    Raises:
      ValueError: `root` is no directory, holds no run, or holds a run that `read_run` refuses.
    """
    root = Path(root)
    if not root.is_dir():
        raise ValueError(f"{root}: no such directory; give <workdir>/<experiment>")
    found: dict[str, StoredRun] = {}  # by hash
    problems: list[str] = []
    for directory in sorted(p for p in root.iterdir() if p.is_dir()):
        if (directory / "config.json").exists():
            try:
                within(root, directory)
            except ValueError as link:
                problems.append(f"{link}; left out")
                continue
            stored = read_run(directory)
            run_hash = stored.run.hash
            if run_hash in found:
                problems.append(f"{directory}: a copy of another run's directory; left out")
                continue
            found[run_hash] = stored
            problems.extend(stored.problems)
        elif _DIRECTORY.search(directory.name):
            problems.append(f"{directory}: no config.json; left out")
    if not found:
        inner = sorted({str(p.parent.parent) for p in root.glob("*/*/config.json")})
        hint = f"; did you mean {' or '.join(inner)}?" if inner else ""
        raise ValueError(f"{root}: holds no run (a directory with a config.json){hint}")
    in_order = sorted(found, key=lambda h: (found[h].run.static.task.name, h))
    return [found[run_hash] for run_hash in in_order], problems


def _json_object(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_bytes())
    except ValueError as error:
        raise ValueError(f"{path}: not JSON ({error})") from None
    if not isinstance(data, dict):
        raise ValueError(f"{path}: must hold a JSON object")
    return data


def _optional(path: Path, problems: list[str]) -> dict[str, Any]:
    """A file that a run may lack: {} if it is missing or, with a problem, unreadable."""
    if not path.exists():
        return {}
    try:
        data = _json_object(path)
        if not data:
            raise ValueError(f"{path}: holds nothing")
        if not is_as_written(data):
            raise ValueError(f"{path}: damaged: its SHA-256 differs")
        return data
    except ValueError as error:
        problems.append(f"{error}; left out")
        return {}


def _summary(path: Path, problems: list[str]) -> dict[str, Any]:
    summary = _optional(path, problems)
    if summary and summary.get("status") not in STATUSES[:3]:
        problems.append(
            f"{path}: status {summary.get('status')!r} is not one of {STATUSES[:3]}; left out"
        )
        return {}
    return _with_floats(summary)


def _with_floats(value: Any) -> Any:
    """Non-finite numbers, which JSON holds as strings, as floats."""
    if isinstance(value, dict):
        return {key: _with_floats(v) for key, v in value.items()}
    return NON_FINITE.get(value, value) if isinstance(value, str) else value

"""Runs the sweep function of a config file and collects what it adds.

The function is plain loops over `add({dotted key: value})`; `add.drop({...}, reason)` lists a
combination that is left out.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mha_jax.keys import all_keys, find
from mha_jax.load import LoadedConfig, Refused, user_code
from mha_jax.values import ABSENT, Problem, nearest, read, shorten, show

MAX_RUNS = 10_000  # more is a loop that does not end


class Add:
    """What a sweep function is given. It collects runs, and problems, so that all are told."""

    def __init__(self) -> None:
        self.members: list[dict[str, Any]] = []
        self.dropped: list[tuple[dict[str, Any], str]] = []
        self.problems: list[Problem] = []

    def __call__(self, overrides: Mapping[str, Any] | None = None, /, **more: Any) -> None:
        """Adds the run whose config differs by these dotted keys.

        Raises:
          ValueError: this is run number 10,001.
        """
        if len(self.members) >= MAX_RUNS:
            self.members.clear()  # what a loop without end added is not worth looking at
            raise ValueError(f"a sweep may add at most {MAX_RUNS} runs")
        member = self._plain("add", overrides, more)
        if member is not None:
            self.members.append({key: value for key, (value, _) in member.items()})

    def drop(self, overrides: Mapping[str, Any], reason: str = "") -> None:
        """Lists a combination that is left out on purpose."""
        member = self._plain("add.drop", overrides, {})
        if not isinstance(reason, str) or not reason.strip():
            self._wrong("sweep", ABSENT, "must say why; write add.drop({...}, 'reason')")
        elif member is not None:
            told = {key: value if ok else show(value) for key, (value, ok) in member.items()}
            self.dropped.append((told, reason.strip()))

    def _plain(
        self, what: str, given: Any, more: dict[str, Any]
    ) -> dict[str, tuple[Any, bool]] | None:
        """Key -> (value in plain form, whether it is sound); None with a problem noted."""
        if given is not None and not isinstance(given, Mapping):
            wrong = f"calls {what}({show(given)}); give a dict such as {{'model.n_heads': 4}}"
            self._wrong("sweep", ABSENT, wrong)
            return None
        plain, n_problems = {}, len(self.problems)
        for key, value in {**(given or {}), **more}.items():
            spec = find(key) if isinstance(key, str) else None
            if spec is None:
                fix = nearest(str(key), all_keys()) or "; configs/base.py lists all keys"
                self._wrong(show(key).strip("'"), value, f"is no config key{fix}")
            elif key == "experiment":
                self._wrong(key, value, "is one name for the whole sweep; set it in get_config")
            else:
                # What is wrong with a value is said by `schema`, once for all runs that have it.
                read_value, message = read(spec, value)
                kept = value if message or isinstance(read_value, tuple) else read_value
                plain[key] = (kept, message is None)
        return plain if len(self.problems) == n_problems else None

    def _wrong(self, key: str, value: Any, message: str) -> None:
        """Notes a problem and where the user's file called."""
        frame = sys._getframe(1)
        while frame.f_back is not None and frame.f_code.co_filename == __file__:
            frame = frame.f_back
        where = f"{shorten(frame.f_code.co_filename)}:{frame.f_lineno}"
        self.problems.append(Problem(key, value, f"{message} ({where})"))


def collect(loaded: LoadedConfig) -> Add:
    """What a config file's sweep adds; without a sweep function, one run without changes."""
    add = Add()
    if loaded.sweep is None:
        add({})
        return add
    path = shorten(loaded.path)
    try:
        with user_code("sweep", path, str(Path(loaded.path).resolve())):
            try:
                arguments = inspect.signature(loaded.sweep).bind(add, loaded.arg).args
            except TypeError:
                arguments = (add,)
            returned = loaded.sweep(*arguments)
    except Refused as refused:
        add.problems.append(refused.problem)
        return add
    if inspect.iscoroutine(returned):
        returned.close()
    if inspect.isgenerator(returned) or inspect.iscoroutine(returned):
        wrong = f"in {path} yields or awaits and was not run; call add({{...}}) in plain loops"
        add.problems.append(Problem("sweep", ABSENT, wrong))
    elif not add.members and not add.problems:
        wrong = f"in {path} adds no run; call add({{...}}) once for each"
        add.problems.append(Problem("sweep", ABSENT, wrong))
    return add

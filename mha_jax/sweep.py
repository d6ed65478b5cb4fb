"""From a config file to the planned runs of a sweep.

A config file may hold, beside `get_config`, a function of plain loops:

    def sweep(add):                                    # or sweep(add, arg)
        for n_heads in (1, 2, 4, 8):
            for seed in range(3):
                add({"model.n_heads": n_heads, "train.seed": seed})
        add.drop({"model.n_heads": 16}, "heads of width 4 do not train")

Each `add` is one run: the config with these keys changed. Every problem of every run is found
before the first one starts. Imports no jax.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from mha_jax import cost, schema
from mha_jax.config import Run
from mha_jax.keys import KEYS, get, put
from mha_jax.labels import describe, labels
from mha_jax.load import LoadedConfig
from mha_jax.match import copied, match
from mha_jax.members import collect
from mha_jax.values import Problem, read, shorten, show


@dataclasses.dataclass(frozen=True)
class PlannedRun:
    """A run with what people and tables are told about it."""

    run: Run
    label: str  # from what varies in the sweep; with the hash, the name of the run's directory
    overrides: dict[str, Any]  # what its `add` changed
    about: dict[str, Any]  # stored in config.json; no part of the run's identity


@dataclasses.dataclass
class Sweep:
    """Planned runs, what was left out and why, and everything that is wrong."""

    experiment: str
    runs: list[PlannedRun]
    dropped: list[tuple[dict[str, Any], str]]
    problems: list[Problem]
    loaded: LoadedConfig

    def to_json(self) -> dict[str, Any]:
        """What `sweep.json` holds."""
        swept: dict[str, list[Any]] = {}
        for planned in self.runs:
            for key, value in planned.overrides.items():
                values = swept.setdefault(key, [])
                if value not in values:
                    values.append(value)
        return {
            "experiment": self.experiment,
            "config": shorten(self.loaded.path),
            "arg": self.loaded.arg,
            "source_sha": self.loaded.source_sha,
            "overrides": self.loaded.overrides,
            "swept": swept,
            "runs": [
                {
                    "hash": planned.run.hash,
                    "group_hash": planned.run.group_hash,
                    "label": planned.label,
                    "overrides": planned.overrides,
                }
                for planned in self.runs
            ],
            "dropped": [
                {"overrides": overrides, "reason": reason} for overrides, reason in self.dropped
            ],
        }


def expand(loaded: LoadedConfig) -> Sweep:
    """Plans the runs of a config file; without a sweep function, the one that it describes.

    Returns:
      A sweep. If it has problems, it has no runs.
    """
    sweep = Sweep(loaded.name, [], [], list(loaded.problems), loaded)
    if loaded.config is None:
        return sweep
    add = collect(loaded)
    sweep.dropped += add.dropped
    tally = _Tally(len(add.members))
    for problem in schema.check(loaded.config):
        tally.note(problem, None)
    members = []
    for overrides in add.members:
        config = copied(loaded.config)
        for key, value in overrides.items():
            put(config, key, value)
        run, problems = schema.resolve(config)
        ratio = None
        if run is not None:
            run, ratio, problems = match(config, run)
            members.append(_Member(run, overrides, config, ratio))
        for problem in [*problems, *_without_effect(overrides, config)]:
            tally.note(problem, overrides)
    sweep.problems += [*add.problems, *_idle_flags(loaded, add.members), *tally.problems()]
    if not sweep.problems:
        _plan(sweep, members)
    return sweep


def groups(runs: list[PlannedRun]) -> dict[str, list[PlannedRun]]:
    """Runs by group hash: those that share a static config, and so one compilation."""
    found: dict[str, list[PlannedRun]] = {}
    for planned in runs:
        found.setdefault(planned.run.group_hash, []).append(planned)
    return found


@dataclasses.dataclass
class _Member:
    run: Run
    overrides: dict[str, Any]
    config: dict[str, Any]  # as configured, before matching
    params_ratio: float | None


class _Tally:
    """The problems of all members; one that many have is one line with a count."""

    def __init__(self, n_members: int):
        self.n_members = n_members
        self.found: dict[str, tuple[Problem, list[dict[str, Any] | None]]] = {}

    def note(self, problem: Problem, overrides: dict[str, Any] | None) -> None:
        """Counts a problem of the member with these overrides; None: of the base config."""
        self.found.setdefault(str(problem), (problem, []))[1].append(overrides)

    def problems(self) -> list[Problem]:
        """Each problem once; unless the base has it too, with how many runs have it."""
        told = []
        for problem, members in self.found.values():
            first, message = members[0], problem.message
            if first is not None and len(members) == self.n_members > 1:
                message += f" (all {self.n_members} runs)"
            elif first is not None and self.n_members > 1:
                message += f" ({len(members)} of {self.n_members} runs, first {describe(first)})"
            told.append(dataclasses.replace(problem, message=message))
        return told


def _without_effect(overrides: dict[str, Any], config: dict[str, Any]) -> list[Problem]:
    """Overrides of the section of a task that is not the run's."""
    name = get(config, "task.name")
    return [
        Problem(key, value, f"has no effect: task.name is {show(name)}; drop it, or set task.name")
        for key, value in overrides.items()
        if _of_other_task(key, name)
    ]


def _idle_flags(loaded: LoadedConfig, members: list[dict[str, Any]]) -> list[Problem]:
    """Overrides of the command line that no run sees."""
    base = get(loaded.config or {}, "task.name")
    names = [member.get("task.name", base) for member in members]
    problems = []
    for key, value in loaded.overrides.items():
        reason = ""
        if names and all(_of_other_task(key, name) for name in names):
            told = " or ".join(sorted(set(map(show, names))))
            reason = f"task.name is {told}; drop it, or set task.name"
        elif members and loaded.sweep is not None and all(key in member for member in members):
            reason = "the sweep sets this key in every run; drop it, or edit the sweep"
        if reason:
            problems.append(Problem(f"--config.{key}", value, f"has no effect: {reason}"))
    return problems


def _plan(sweep: Sweep, members: list[_Member]) -> None:
    """Fills in the runs of a sweep without problems. Of equal runs the first is kept."""
    kept: dict[str, _Member] = {}
    for member in members:
        first = kept.setdefault(member.run.hash, member)
        if first is not member:
            same = f"the same run as {describe(first.overrides)}"
            sweep.dropped.append((member.overrides, same))
    for member, label in zip(kept.values(), labels(_swept(list(kept.values()))), strict=True):
        about = _about(sweep, member)
        planned = PlannedRun(member.run, label or about["task"], member.overrides, about)
        sweep.runs.append(planned)


def _swept(members: list[_Member]) -> list[dict[str, Any]]:
    """For each member the values of all swept keys that have a meaning for its task."""
    keys = dict.fromkeys(key for member in members for key in member.overrides)
    return [
        {
            key: get(member.config, key)
            for key in keys
            if not _of_other_task(key, member.run.static.task.name)
        }
        for member in members
    ]


def _of_other_task(key: str, name: Any) -> bool:
    """Whether a dotted key stands in the section of a task that is not `name`."""
    parts = key.split(".")
    return parts[0] == "task" and len(parts) == 3 and parts[1] != name


def _about(sweep: Sweep, member: _Member) -> dict[str, Any]:
    static, log = member.run.static, member.config["log"]
    return {
        "experiment": sweep.experiment,
        "task": static.task.name,
        "variant": cost.variant(static.model),
        "match": member.config["match"]["policy"],
        "match_to": member.config["match"]["to"],
        "params_ratio": member.params_ratio,
        "n_params": cost.n_params(static),
        "kv_bytes_per_token": cost.kv_bytes_per_token(static.model),
        "flops_per_token": cost.flops_per_token(static),
        "log": {leaf: read(KEYS[f"log.{leaf}"], value)[0] for leaf, value in log.items()},
        "overrides": {**sweep.loaded.overrides, **member.overrides},
    }

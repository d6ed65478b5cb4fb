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

from mha_jax import schema, tune
from mha_jax.changes import copied
from mha_jax.config import Run
from mha_jax.idle import idle_flags, idle_overrides, of_other_task
from mha_jax.keys import KEYS, get, put
from mha_jax.labels import describe, labels
from mha_jax.load import LoadedConfig
from mha_jax.match import match
from mha_jax.members import collect
from mha_jax.origin import sources, started, unread
from mha_jax.planned import PlannedRun, costs
from mha_jax.values import Problem, read, shorten


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
            run, source, more = started(config, run, loaded.config)
            problems += more
            tuning = _tuning(config, run)
            members += _on_grid(_Member(run, overrides, config, ratio, tuning, source))
        for problem in [*problems, *idle_overrides(overrides, config)]:
            tally.note(problem, overrides)
    sweep.problems += [*add.problems, *idle_flags(loaded, add.members), *tally.problems()]
    if not sweep.problems:
        _plan(sweep, members)
    return sweep


@dataclasses.dataclass
class _Member:
    run: Run
    overrides: dict[str, Any]
    config: dict[str, Any]  # as configured, before matching
    params_ratio: float | None
    tuning: tune.Tuning | None
    source: dict[str, Any]  # how the config of the run that it starts from differs


def _on_grid(member: _Member) -> list[_Member]:
    """The runs that choose the learning rate of a member; itself where there is no grid."""
    if member.tuning is None:
        return [member]
    found = []
    for run in member.tuning.selection(member.run, member.tuning.lrs):
        config, changed = copied(member.config), tune.keys(run)
        for key, value in changed.items():
            put(config, key, value)
        overrides = {**member.overrides, **changed}
        found.append(dataclasses.replace(member, run=run, overrides=overrides, config=config))
    return found


def _tuning(config: dict[str, Any], run: Run) -> tune.Tuning | None:
    """How the config says that a run's model is tuned; None: not at all."""
    told = _section(config, "tune")
    lrs = tune.rates(told.pop("lrs"))
    hypers = run.hypers
    return tune.Tuning(lrs, **told, seed=hypers.seed, data_seed=hypers.data_seed) if lrs else None


def _section(config: dict[str, Any], name: str) -> dict[str, Any]:
    """A section of a config in plain form."""
    return {leaf: read(KEYS[f"{name}.{leaf}"], value)[0] for leaf, value in config[name].items()}


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


def _plan(sweep: Sweep, members: list[_Member]) -> None:
    """Fills in the runs of a sweep without problems. Of equal runs the first is kept."""
    kept: dict[str, _Member] = {}
    for member in members:
        first = kept.setdefault(member.run.hash, member)
        if first is not member:
            # What no policy changes is known as unmatched: so it is compared under every policy.
            if "none" == member.config["match"]["policy"] != first.config["match"]["policy"]:
                kept[member.run.hash], member = member, first
            same = f"the same run as {describe(kept[member.run.hash].overrides)}"
            sweep.dropped.append((member.overrides, same))
    rows = _swept(list(kept.values()))
    planned = [
        PlannedRun(member.run, "", member.overrides, swept, _about(sweep, member))
        for member, swept in zip(kept.values(), rows, strict=True)
    ]
    planned += sources(planned, kept)
    names = labels([one.swept for one in planned])
    sweep.runs += [
        dataclasses.replace(one, label=name or one.run.static.task.name)
        for one, name in zip(planned, names, strict=True)
    ]


def _swept(members: list[_Member]) -> list[dict[str, Any]]:
    """For each member the values of all swept keys that have a meaning for its task."""
    keys = dict.fromkeys(key for member in members for key in member.overrides)
    return [
        {
            key: get(member.config, key)
            for key in keys
            if not of_other_task(key, member.run.static.task.name)
            and not unread(key, member.run.static)
        }
        for member in members
    ]


def _about(sweep: Sweep, member: _Member) -> dict[str, Any]:
    tuning = member.tuning
    return {
        "purpose": "selection" if tuning else "sweep",
        "experiment": sweep.experiment,
        **costs(member.run.static),
        "match": member.config["match"]["policy"],
        "match_to": member.config["match"]["to"],
        "params_ratio": member.params_ratio,
        "log": _section(member.config, "log"),
        "probe": _section(member.config, "probe"),
        "tune": dataclasses.asdict(tuning) if tuning else None,
        "converge": _section(member.config, "converge"),
        "source": member.source,
        "overrides": {**sweep.loaded.overrides, **member.overrides},
    }

"""Overrides that change nothing: each is told, never silently taken."""

from __future__ import annotations

from typing import Any

from mha_jax.keys import get
from mha_jax.load import LoadedConfig
from mha_jax.tune import SET_BY_TUNING
from mha_jax.values import Problem, show

# Keys that nothing reads while another one is off.
_NEEDS = {
    **dict.fromkeys(("tune.n_selection", "tune.n_reported"), "tune.lrs"),
    **dict.fromkeys(("start.merge", "start.align", "start.keep"), "start.source"),
    **dict.fromkeys(("model.kv_group", "model.kv_tail"), "model.kv_quant"),
}
_FIX = {
    "tune.lrs": "give a grid such as '1e-3,2e-3,4e-3,8e-3'",
    "start.source": "name a run such as 'n_kv_heads=8,n_steps=3000'",
    "model.kv_quant": "choose int8 or int4",
}
_OFF = ("", "none")
_SET_BY_TUNING = "has no effect: tune.lrs sets it in every run; drop one of the two"


def of_other_task(key: str, name: Any) -> bool:
    """Whether a dotted key stands in the section of a task that is not `name`."""
    parts = key.split(".")
    return parts[0] == "task" and len(parts) == 3 and parts[1] != name


def idle_overrides(overrides: dict[str, Any], config: dict[str, Any]) -> list[Problem]:
    """Overrides of one run: keys of another task's section, and keys that tuning sets.

    Args:
      overrides: what an `add` changed.
      config: the run's config.
    """
    name, problems = get(config, "task.name"), []
    for key, value in overrides.items():
        if of_other_task(key, name):
            wrong = f"has no effect: task.name is {show(name)}; drop it, or set task.name"
            problems.append(Problem(key, value, wrong))
        elif key in _NEEDS and get(config, _NEEDS[key]) in _OFF:
            problems.append(Problem(key, value, _without(_NEEDS[key])))
        elif key in SET_BY_TUNING and get(config, "tune.lrs"):
            problems.append(Problem(key, value, _SET_BY_TUNING))
    return problems


def idle_flags(loaded: LoadedConfig, members: list[dict[str, Any]]) -> list[Problem]:
    """Overrides of the command line that no run sees.

    Args:
      loaded: the config and its overrides.
      members: what each `add` changed.
    """
    config = loaded.config or {}
    base = get(config, "task.name")
    names = [member.get("task.name", base) for member in members]

    def values(key: str) -> list[Any]:
        return [member.get(key, get(config, key)) for member in members]

    problems = []
    for key, value in loaded.overrides.items():
        wrong = ""
        if names and all(of_other_task(key, name) for name in names):
            told = " or ".join(sorted(set(map(show, names))))
            wrong = f"has no effect: task.name is {told}; drop it, or set task.name"
        elif members and loaded.sweep is not None and all(key in member for member in members):
            wrong = "has no effect: the sweep sets this key in every run; "
            wrong += "drop it, or edit the sweep"
        elif key == "optim.lr" and members and all(values("tune.lrs")):
            wrong = _SET_BY_TUNING
        elif key in _NEEDS and members and all(value in _OFF for value in values(_NEEDS[key])):
            wrong = _without(_NEEDS[key])
        if wrong:
            problems.append(Problem(f"--config.{key}", value, wrong))
    return problems


def _without(key: str) -> str:
    return f"has no effect without {key}; {_FIX[key]}"

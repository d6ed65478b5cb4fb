"""From a nested dict of config values to a `Run`, or to the list of everything that is wrong with
it.

`keys.py` is the table of keys, `values.py` reads one value, `rules.py` holds what concerns several
keys. Nothing here imports jax or builds an array: a length of 10**9 is answered at once.
"""

from __future__ import annotations

import functools
import importlib
from typing import Any

from mha_jax import cost, kernel_rules, kv_rules, mixers, rules
from mha_jax.config import (
    Hypers,
    LayerSpec,
    ModelSpec,
    OptimSpec,
    Run,
    StaticConfig,
    TaskRef,
    TrainSpec,
)
from mha_jax.keys import KEYS, SECTIONS, task_keys
from mha_jax.tasks import NAMES, TaskSpec
from mha_jax.values import ABSENT, Key, Problem, blame, nearest, read

Values = dict[str, Any]
_GIB = 2**30


def check(config: Any) -> list[Problem]:
    """Everything that is wrong with a config."""
    return resolve(config)[1]


def resolve(config: Any) -> tuple[Run | None, list[Problem]]:
    """The run that a config describes.

    Comma strings become one `LayerSpec` a layer; `n_kv_heads` None becomes n_heads, `d_head` None
    d_model // n_heads.

    Args:
      config: nested plain dict with every key of `configs/base.py`.

    Returns:
      The run and [], or None and all problems.
    """
    raw, problems = leaves(config)
    name = next((name for name in NAMES if name == raw.get("task.name")), None)
    known: dict[str, Key] = dict(KEYS)
    if name is not None:
        try:
            known |= task_keys(name)
        except Exception as error:
            return None, [*problems, _broken_task(name, error)]
    got: Values = {}
    for key, spec in known.items():
        if key not in raw and any(key.startswith(f"{problem.key}.") for problem in problems):
            continue  # its section is no section
        if key not in raw:
            fix = "start from base.get_config() of configs/base.py"
            problems.append(Problem(key, ABSENT, f"is missing; {fix}"))
            continue
        value, message = read(spec, raw[key])
        if message is None:
            got[key] = value
        else:
            problems.append(Problem(key, raw[key], message))
    problems += [unknown(key, raw[key], known) for key in raw if key not in known]
    problems += rules.all_rules(got, raw)
    problems += kv_rules.all_rules(got, raw)

    layers = _layers(got)
    task_spec = None
    if name is not None and not any(problem.key.split(".")[0] == "task" for problem in problems):
        task_spec, more = _task_spec(name, got)
        problems += more
        if task_spec is not None:
            problems += rules.window_needs_causal(layers, raw, task_spec, name)
            problems += kv_rules.decodes(layers, got, task_spec, name)
            problems += kernel_rules.named(layers, got, task_spec)
            problems += rules.no_readout_needs_width(layers, got, task_spec, name)
    problems = list({str(problem): problem for problem in problems}.values())
    sized = not any(p.key.split(".")[0] in ("task", "model", "train", "limits") for p in problems)
    if sized and task_spec is not None:
        model, train = _model(got, layers), _section(TrainSpec, "train", got)
        problems += _memory(got, model, task_spec, train)
        if not problems:
            return _run(got, name, model, train)
    return None, problems


def leaves(config: Any) -> tuple[Values, list[Problem]]:
    """A nested config as dotted key -> value, without the sections of other tasks than its own."""
    if not isinstance(config, dict):
        return {}, [
            Problem("config", config, "must be a dict of sections; start from base.get_config()")
        ]
    raw: Values = {}
    problems = []
    for key, value in config.items():
        if key not in SECTIONS:
            raw[str(key)] = value
        elif isinstance(value, dict):
            raw |= {f"{key}.{leaf}": v for leaf, v in value.items()}
        else:
            problems.append(
                Problem(
                    key, value, f"is a section and must stay one; set its keys, config.{key}.<key>"
                )
            )
    for name in NAMES:
        section = raw.pop(f"task.{name}", {})
        if not isinstance(section, dict):
            fix = f"set its keys, config.task.{name}.<key>"
            problems.append(
                Problem(f"task.{name}", section, f"is a section and must stay one; {fix}")
            )
        elif raw.get("task.name") == name:
            raw |= {f"task.{name}.{leaf}": v for leaf, v in section.items()}
    return raw, problems


def unknown(key: str, value: Any, known: dict[str, Key]) -> Problem:
    """The problem of a key that is none."""
    sections = [*SECTIONS, *(f"task.{name}" for name in NAMES)]
    names = [*known, *(section for section in sections if not key.startswith(section))]
    fix = nearest(key, names) or "; configs/base.py lists all keys"
    return Problem(key, ABSENT if isinstance(value, dict) else value, f"is no config key{fix}")


def _section(cls: Any, name: str, got: Values, **more: Any) -> Any:
    """A dataclass filled from the keys of a section that have its fields' names."""
    fields = {f: got[f"{name}.{f}"] for f in cls.__dataclass_fields__ if f"{name}.{f}" in got}
    return cls(**fields, **more)


def _layers(got: Values) -> tuple[LayerSpec, ...]:
    """The layers, or () while a per-layer key is not sound."""
    rows = rules.layer_rows(got)
    if any(rules.unsound(row) for row in rows):
        return ()
    specs = [{key.split(".")[1]: value for key, value in row.items()} for row in rows]
    if any(mixers.wrong(spec["mixer"]) for spec in specs):
        return ()
    for i, spec in enumerate(specs):
        spec["mixer"] = mixers.identity(spec["mixer"])
        spec["kv_from"] = None if spec["kv_from"] == i else spec["kv_from"]
    return tuple(LayerSpec(**spec) for spec in specs)


def _model(got: Values, layers: tuple[LayerSpec, ...]) -> ModelSpec:
    # What nothing reads is no part of a run's identity.
    off = {"model.kv_group": 0, "model.kv_tail": 0} if got["model.kv_quant"] == "none" else {}
    return _section(ModelSpec, "model", {**got, **off}, layers=layers)


def _broken_task(name: str, error: Exception) -> Problem:
    return Problem("task.name", name, f"is a task whose module fails; repair it: {blame(error)}")


def _task_params(name: str, got: Values) -> Values:
    return {key.rsplit(".", 1)[1]: got[key] for key in task_keys(name)}


def _task_spec(name: str, got: Values) -> tuple[TaskSpec | None, list[Problem]]:
    """The task's spec, if its own rules have no objection."""
    params = _task_params(name, got)
    try:
        module = importlib.import_module(f"mha_jax.tasks.{name}")
        cfg = module.Config(**params)
        problems = [
            Problem(f"task.{name}.{field}", params[field], f"{wrong}; {fix}")
            for field, wrong, fix in module.problems(cfg)
        ]
        return (None if problems else module.spec(cfg)), problems
    except Exception as error:
        return None, [_broken_task(name, error)]


def _memory(got: Values, model: ModelSpec, spec: TaskSpec, train: TrainSpec) -> list[Problem]:
    """Refuses a run that is estimated above the limit, and names the largest of its sizes."""
    try:
        estimate = cost.memory(model, spec, train)
    except Exception as error:  # only a user's own mixer can fail here
        mixer = got["model.mixer"]
        return [
            Problem("model.mixer", mixer, f"is a mixer whose cost fails; repair it: {blame(error)}")
        ]
    limit = got["limits.memory_gib"]
    if estimate <= limit * _GIB:
        return []
    sizes = {
        key: max(value) if isinstance(value, tuple) else value
        for key, value in got.items()
        if (
            key.startswith(("task.", "model."))
            or key in ("train.batch_size", "train.n_eval", "train.n_test")
        )
        and type(value) in (int, tuple)
        and key not in ("task.seed", "model.mixer")
    }
    largest, *others = sorted(sizes, key=lambda key: -sizes[key])[:4]
    also = ", ".join(f"{key}={got[key]}" for key in others)
    gib = f"{estimate / _GIB:,.0f}" if estimate > 100 * _GIB else f"{estimate / _GIB:.1f}"
    rule = (
        f"makes a run of an estimated {gib} GiB, which must be at most limits.memory_gib={limit:g}"
    )
    return [
        Problem(largest, got[largest], f"{rule}; lower it (or {also}), or raise limits.memory_gib")
    ]


def _run(
    got: Values, name: str | None, model: ModelSpec, train: TrainSpec
) -> tuple[Run | None, list[Problem]]:
    assert name is not None
    params = tuple(sorted(_task_params(name, got).items()))
    try:
        task = TaskRef(name, got["task.seed"], params, _data_hash(name, params))
    except Exception as error:
        return None, [_broken_task(name, error)]
    optim = _section(OptimSpec, "optim", got)
    hypers = Hypers(
        got["train.seed"], got["train.data_seed"], got["optim.lr"], got["optim.weight_decay"]
    )
    return Run(StaticConfig(task, model, train, optim), hypers), []


@functools.lru_cache(maxsize=64)
def _data_hash(name: str, params: tuple[tuple[str, Any], ...]) -> str:
    """SHA-256 of a task's corpus, read once for all members of a sweep; "" if it has none."""
    module = importlib.import_module(f"mha_jax.tasks.{name}")
    return module.data_hash(module.Config(**dict(params))) if hasattr(module, "data_hash") else ""

"""The table of config keys: the kind, range and choices of each.

Every leaf of `configs/base.py` outside the tasks' own sections stands in `KEYS`. The section
`task.<name>` is read from the annotations of the `Config` of `mha_jax.tasks.<name>`. Nothing here
imports jax.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import math
import typing
from typing import Any

from mha_jax import tasks
from mha_jax.values import Key


def _int(low: int, high: int, per_layer: bool = False, optional: bool = False) -> Key:
    return Key("int", low, high, per_layer=per_layer, optional=optional)


def _float(low: float, high: float, above: bool = False) -> Key:
    return Key("float", low, high, above)


def _choice(*choices: str) -> Key:
    return Key("str", choices=choices)


# The upper ends are far above anything that trains here. They keep plans, plain Python, instant.
_SEED = _int(0, 2**31 - 1)
_STEPS = _int(1, 10**9)
_DRAW = _int(1, 10**7)
KEYS: dict[str, Key] = {
    "experiment": Key("str"),
    "task.name": _choice(*tasks.NAMES),
    "task.seed": _SEED,
    "model.d_model": _int(1, 2**20),
    "model.n_layers": _int(1, 256),
    "model.mixer": Key("str", per_layer=True),
    "model.n_heads": _int(1, 4096, per_layer=True),
    "model.n_kv_heads": _int(1, 4096, per_layer=True, optional=True),
    "model.d_head": _int(1, 2**20, per_layer=True, optional=True),
    "model.d_ff": _int(0, 2**24, per_layer=True),
    "model.window": _int(0, 2**24, per_layer=True),
    "model.n_sinks": _int(0, 2**24, per_layer=True),
    "model.kv_from": _int(0, 255, per_layer=True, optional=True),
    "model.positions": _choice("rope", "learned", "none"),
    "model.norm": _choice("none", "layer", "rms"),
    "model.residual": Key("bool"),
    "model.bias": Key("bool"),
    "model.activation": _choice("gelu", "relu", "swiglu"),
    "model.scale": Key("bool"),
    "model.use_wo": Key("bool"),
    "model.share": _choice("none", "qk", "kv", "qkv"),
    "model.qk_from": _choice("content", "positions"),
    "model.qk_norm": Key("bool"),
    "model.gate": Key("bool"),
    "model.sink_logit": Key("bool"),
    "model.d_latent": _int(0, 2**20),
    "model.d_latent_q": _int(0, 2**20),
    "model.d_rope": _int(0, 2**20),
    "model.kv_quant": _choice("none", "int8", "int4"),
    "model.kv_group": _int(1, 2**16),
    "model.kv_tail": _int(0, 2**20),
    "model.kv_init": _choice("mean", "fresh"),
    "model.kernel": _choice("auto", "reference", "fast", "cudnn", "splash"),
    "model.compute_dtype": _choice("float32", "bfloat16"),
    "model.cache_dtype": _choice("float32", "bfloat16"),
    "match.policy": _choice("none", "d_ff", "d_model", "n_layers"),
    "match.to": Key("str"),
    "start.source": Key("str", example='"n_kv_heads=8,n_steps=3000"'),
    "start.merge": _choice("mean", "first", "random", "similar"),
    "start.align": Key("bool"),
    "start.keep": _choice("zero", "mean", "resample", "gradient", "random"),
    "train.n_steps": _STEPS,
    "train.batch_size": _int(1, 2**20),
    "train.seed": _SEED,
    "train.data_seed": _SEED,
    "train.eval_every": _STEPS,
    "train.n_eval": _DRAW,
    "train.n_test": _DRAW,
    "train.n_probe": _DRAW,
    "train.on_bad_step": _choice("stop", "ignore"),
    "train.explode": _float(0, 1e30),
    "optim.lr": _float(0, 100, above=True),
    "optim.weight_decay": _float(0, 100),
    "optim.warmup_steps": _int(0, 10**9),
    "optim.decay_fraction": _float(0, 1),
    "optim.b1": _float(0, 0.9999999),
    "optim.b2": _float(0, 0.9999999),
    "optim.eps": _float(1e-30, 1),
    "optim.clip": _float(0, 1e30),
    "tune.lrs": Key("str", example='"1e-3,2e-3,4e-3,8e-3"'),
    "tune.n_selection": _int(1, 1000),
    "tune.n_reported": _int(1, 1000),
    "tune.widen": _int(0, 20),
    "converge.confirm": Key("bool"),
    "converge.tol": _float(0, 1),
    "probe.every": _int(0, 10**9),
    "log.every": _STEPS,
    "log.checkpoint_every": _STEPS,
    "log.keep": _int(1, 1000),
    "log.tensorboard": Key("bool"),
    "log.n_images": _int(0, 5),
    "limits.memory_gib": _float(0, 1e6, above=True),
}
SECTIONS = tuple(dict.fromkeys(key.split(".")[0] for key in KEYS if "." in key))


@functools.cache
def task_keys(name: str) -> dict[str, Key]:
    """The keys of a task's own section, `task.<name>.<field>`.

    Raises:
      TypeError: a field of the task's Config has an annotation other than int, float, bool, str or
        a Literal of strings. Exception: whatever the import of the task's module raises.
    """
    config = importlib.import_module(f"mha_jax.tasks.{name}").Config
    keys = {}
    for field, hint in typing.get_type_hints(config).items():
        if hint in (int, float, bool, str):
            # A task's own `problems` knows the range; this keeps its arithmetic, and the plan,
            # instant.
            high = 2.0**31 - 1 if hint is int else math.inf
            key = Key(hint.__name__, -high, high)
        elif typing.get_origin(hint) is typing.Literal:
            key = _choice(*typing.get_args(hint))
        else:
            raise TypeError(
                f"{config.__module__}.Config.{field} must be int, float, bool, str or a Literal"
            )
        keys[f"task.{name}.{field}"] = key
    return keys


def find(key: str) -> Key | None:
    """What the tables say of a dotted key; None if it is none, or of a task whose module fails."""
    parts = key.split(".")
    if len(parts) == 3 and parts[0] == "task":
        return _all_task_keys().get(key)
    return KEYS.get(key)


def all_keys() -> list[str]:
    """Every dotted key, those of all tasks included."""
    return [*KEYS, *_all_task_keys()]


@functools.cache
def _all_task_keys() -> dict[str, Key]:
    found: dict[str, Key] = {}
    for name in tasks.NAMES:
        # A task whose module fails is reported by `schema`, where it is the run's own; it must not
        # stop the others.
        with contextlib.suppress(Exception):
            found |= task_keys(name)
    return found


def get(config: dict[str, Any], key: str) -> Any:
    """The value of a dotted key of a nested dict; None where there is none."""
    place: Any = config
    for part in key.split("."):
        place = place.get(part) if isinstance(place, dict) else None
    return place


def put(config: dict[str, Any], key: str, value: Any) -> bool:
    """Sets a dotted key of a nested dict; False if a section on the way is missing."""
    section, _, leaf = key.rpartition(".")
    place = get(config, section) if section else config
    if not isinstance(place, dict):
        return False
    place[leaf] = value
    return True

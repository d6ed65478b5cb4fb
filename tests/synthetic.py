"""Run directories without a run: what the tests of store, report and load_run read."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from configs.base import get_config
from mha_jax import config, cost

N_STEPS = 3000


def static(
    task: str = "relations",
    n_heads: int = 4,
    n_kv_heads: int | None = None,
    d_head: int | None = None,
    *,
    n_layers: int = 1,
    n_steps: int = N_STEPS,
    model: dict[str, Any] | None = None,
    **params: Any,
) -> config.StaticConfig:
    """A static config with the defaults of configs/base.py; `params` change the task, `model` the
    model and all of its layers.
    """
    base = get_config()
    layer = config.LayerSpec(
        mixer="grouped",
        n_heads=n_heads,
        n_kv_heads=n_kv_heads or n_heads,
        d_head=d_head or max(1, base.model.d_model // n_heads),
        d_ff=0,
        window=0,
        n_sinks=0,
        kv_from=None,
    )
    changes = dict(model or {})
    in_layer = {k: changes.pop(k) for k in config.LayerSpec.__dataclass_fields__ if k in changes}
    layer = dataclasses.replace(layer, **in_layer)
    fields = {k: v for k, v in base.model.items() if k in config.ModelSpec.__dataclass_fields__}
    return config.StaticConfig(
        task=config.TaskRef(
            task,
            seed=0,
            params=tuple(sorted({**base.task[task], **params}.items())),
            data_hash="c0ffee" if task == "text" else "",
        ),
        model=config.ModelSpec(**{**fields, "layers": (layer,) * n_layers, **changes}),
        train=config.TrainSpec(
            n_steps=n_steps,
            batch_size=64,
            eval_every=500,
            n_eval=1024,
            n_test=4096,
            n_probe=256,
            on_bad_step="stop",
            explode=1e4,
        ),
        optim=config.OptimSpec(200, 0.2, 0.9, 0.999, 1e-8, 1.0),
    )


def make_run(
    root: Path,
    spec: config.StaticConfig,
    test: float | list[float] | None = None,
    *,
    seed: int = 0,
    lr: float = 3e-3,
    weight_decay: float = 0.0,
    validation: float | None = None,
    status: str = "done",
    ceiling: float | None = None,
    mass: Any = None,
    timing: float = 1.0,
    label: str = "run",
    about: dict[str, Any] | None = None,
) -> Path:
    """Writes one run directory.

    Args:
      root: the experiment's directory.
      spec: its static config.
      test: the final test metric, or one for each read-out head.
      validation: the final validation metric; None: the test metric.
      status: "unfinished" leaves out summary.json and heads.csv.
      mass: attention of each head of a layer to each role, [n][roles]; None: no heads.csv.
      timing: what the clock showed, seconds.
      label: front of the directory's name.
      about: replaces entries of the record of the sweep.
    """
    run = config.Run(
        spec, config.Hypers(seed=seed, data_seed=seed, lr=lr, weight_decay=weight_decay)
    )
    directory = root / f"{label}-{run.hash}"
    directory.mkdir(parents=True)
    task = spec.task.spec
    length = task.length
    _json(
        directory / "config.json",
        {
            "schema_version": config.SCHEMA_VERSION,
            "hash": run.hash,
            "group_hash": run.group_hash,
            "static": config.to_json(spec),
            "hypers": config.to_json(run.hypers),
            "about": {
                "experiment": root.name,
                "task": spec.task.name,
                "variant": cost.variant(spec.model),
                "match": "none",
                "match_to": "",
                "params_ratio": 1.0,
                "n_params": 20000,
                "kv_bytes_per_token": cost.kv_bytes_per_token(spec.model, length),
                "kv_bytes_resident": cost.kv_bytes_resident(spec.model, length),
                "kv_bytes_read_per_step": cost.kv_bytes_read(spec.model, length),
                "state_bytes": 0,
                "flops_per_token": 40000,
                "overrides": {"model.n_heads": spec.model.layers[0].n_heads},
                "log": {"keep": 3},
                "probe": {"every": 0},
                "purpose": "sweep",
                "tune": None,
                "converge": {"confirm": False, "tol": 0.01},
                **(about or {}),
            },
        },
    )
    environment = {
        "device": "cpu",
        "threads": 1,
        "lane_mode": "sequential",
        "versions": {"jax": "0"},
    }
    _json(directory / "run.json", {**environment, "mixed": False, "sessions": [environment]})
    outputs = test if isinstance(test, list) else [test] * len(task.outputs)
    mean = sum(outputs) / len(outputs) if test is not None else None
    final: dict[str, Any] = {}
    if mean is not None:
        final = {"eval/loss": 0.5, "test/loss": 0.5, f"test/{task.metric}": mean}
        final[f"eval/{task.metric}"] = mean if validation is None else validation
        if len(outputs) > 1:
            for name, value in zip(task.outputs, outputs, strict=True):
                final[f"test/{task.metric}/{name}"] = value
    with (directory / "metrics.jsonl").open("w") as file:
        for step in (0, spec.train.n_steps):
            file.write(json.dumps({"step": step, "train/loss": 1.0}) + "\n")
    if status == "unfinished":
        return directory
    summary = {"status": status, "error": None, "attempts": 0}
    if status == "failed":
        summary = {"status": status, "error": "out of memory", "attempts": 2, "repeated": True}
    else:
        summary |= {
            "step": spec.train.n_steps,
            "diverged_at": 7 if status == "diverged" else None,
            "final": final,
            "best": {"step": spec.train.n_steps, f"eval/{task.metric}": final.get("x")},
            "ceiling": ceiling,
            "steps_to_threshold": 500 if mean is not None and mean > 0.99 else None,
            "timing": {"train_s": timing, "total_s": 2 * timing},
        }
    _json(directory / "summary.json", summary)
    if mass is not None:
        lines = ["layer,of,head,kv_head,role,score,value,baseline,corrected,low,high,share,n_rows"]
        for number, layer in enumerate(spec.model.layers):
            for head, row in enumerate(mass):
                for role, value in zip(task.roles, row, strict=True):
                    where = f"{number},n,{head},{head // layer.queries_per_kv}"
                    lines.append(f"{where},mixed,role/{role},{value},0.1,0.5,0.4,0.6,1,100")
        (directory / "heads.csv").write_text("\n".join(lines) + "\n")
    return directory


def make_cell(
    root: Path,
    spec: config.StaticConfig,
    tests: Sequence[float],
    first_seed: int = 0,
    **fields: Any,
) -> None:
    """Writes the runs of a cell at three learning rates, of which the middle one is the best.

    Args:
      root: the experiment's directory.
      spec: its static config.
      tests: the final test metric of each seed, the same for every read-out head.
      first_seed: the others follow.
      fields: as in `make_run`.
    """
    sign = 1 if spec.task.spec.direction == "max" else -1
    for lr in (1e-3, 3e-3, 1e-2):
        for seed, test in enumerate(tests, start=first_seed):
            validation = test - sign * 0.1 * (lr != 3e-3)
            make_run(root, spec, test, seed=seed, lr=lr, validation=validation, **fields)


def _json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value))

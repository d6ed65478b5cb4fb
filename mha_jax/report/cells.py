"""Runs gathered into cells: one for each static config, with a label that tells it from its
neighbours.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Sequence
from typing import Any

from mha_jax import config
from mha_jax.planned import begins, per_layer, source_fields
from mha_jax.report import stats
from mha_jax.report.result import Result
from mha_jax.store import StoredRun
from mha_jax.tasks import TaskSpec

_OFF = (None, False, 0, "", "none")  # values of fields that are switched off


@dataclasses.dataclass(frozen=True)
class CellRuns:
    """A cell with the runs it sums up."""

    runs: tuple[StoredRun, ...]
    spec: TaskSpec
    cell: stats.Cell
    label: str  # "4 heads, MQA"; unique among the cells of the same task

    @property
    def static(self) -> config.StaticConfig:
        """The static config that the runs share."""
        return self.runs[0].run.static

    @property
    def static_hash(self) -> str:
        """The cell's `config_hash`: what its runs share."""
        return self.runs[0].run.group_hash

    @property
    def variant(self) -> str:
        """MHA, GQA-k, MQA, or what else the sweep calls it."""
        return variant(self.runs[0])


def gather(runs: Sequence[StoredRun]) -> list[CellRuns]:
    """One cell for each static config, by task, then variant, then head count; those that are
    twins of others are left out.

    Raises:
      ValueError: a run's task cannot be loaded.
    """
    groups: dict[str, list[StoredRun]] = {}
    for run in sorted(runs, key=order):
        groups.setdefault(run.run.group_hash, []).append(run)
    listed = {key: _own(runs) for key, runs in groups.items() if not _only_twins(runs)}
    labels = _labels([members[0] for members in listed.values()])
    out = []
    for group_hash, members in listed.items():
        static, spec = members[0].run.static, members[0].spec
        twins = groups.get(config.static_hash(config.doubled(static)), [])
        tol = min(run.about["converge"]["tol"] for run in members)
        cell = stats.cell(
            [result(run, spec) for run in members], spec, [result(run, spec) for run in twins], tol
        )
        out.append(CellRuns(tuple(members), spec, cell, labels[group_hash]))
    return out


def _own(members: Sequence[StoredRun]) -> list[StoredRun]:
    """The runs that a cell sums up: those that the sweep asked for, else those that others start
    from, which were trained at one rate that nothing has chosen.
    """
    asked = any(run.about["purpose"] in ("selection", "sweep") for run in members)
    left_out = ("source", "selection source") if asked else ("selection source",)
    own = [run for run in members if run.about["purpose"] not in left_out]
    return own or list(members)


def _only_twins(members: Sequence[StoredRun]) -> bool:
    """Whether runs were made only to see what twice the steps do to other ones."""
    return all(run.about["purpose"] == "twin" for run in members)


def result(run: StoredRun, spec: TaskSpec) -> Result:
    """A run's final numbers; NaN for what it does not have."""
    final = run.summary.get("final", {})
    outputs = [f"test/{spec.metric}/{name}" for name in spec.outputs]
    if len(outputs) == 1:
        outputs = [f"test/{spec.metric}"]
    return Result(
        hash=run.run.hash,
        **dataclasses.asdict(run.run.hypers),
        purpose=run.about["purpose"],
        status=run.status,
        validation=final.get(f"eval/{spec.metric}", math.nan),
        test=final.get(f"test/{spec.metric}", math.nan),
        outputs=tuple(final.get(name, math.nan) for name in outputs),
        ceiling=run.summary.get("ceiling"),
        initial=run.summary.get("initial"),
        steps_to_threshold=run.summary.get("steps_to_threshold"),
    )


def order(run: StoredRun) -> tuple[Any, ...]:
    """Sorts runs by what they are: neither the disk nor the time of finishing can change it."""
    static, hypers = run.run.static, run.run.hypers
    layers = static.model.layers
    families = ("MHA", "GQA", "MQA")
    family = family_name(variant(run))
    return (
        static.task.name,
        repr((static.task.seed, static.task.params, static.task.data_hash)),
        families.index(family) if family in families else len(families),
        len(layers),
        tuple(layer.n_heads for layer in layers),
        tuple(layer.n_kv_heads for layer in layers),
        static.model.d_model,
        tuple(layer.d_head for layer in layers),
        run.run.group_hash,
        hypers.lr,
        hypers.weight_decay,
        hypers.seed,
        hypers.data_seed,
    )


def variant(run: StoredRun) -> str:
    """The variant a sweep recorded for a run."""
    return str(run.about["variant"])


def family_name(variant: str) -> str:
    """What a variant begins with: "GQA" of "GQA-2, int8"."""
    return re.split("[-,]", variant)[0]


def model_fields(model: config.ModelSpec) -> dict[str, Any]:
    """The fields of a model as a flat row; layer fields as `per_layer` gives them."""
    row = {"n_layers": len(model.layers), "d_model": model.d_model}
    for field in dataclasses.fields(config.LayerSpec):
        row[field.name] = per_layer(model, field.name)
    for field in dataclasses.fields(config.ModelSpec):
        if field.name not in ("layers", "d_model"):
            row[field.name] = getattr(model, field.name)
    return row


def _labels(firsts: Sequence[StoredRun]) -> dict[str, str]:
    """A label for each cell, given one run of each. Where the cells of a task differ in their
    number of steps every one names it; those that would share a label name what differs between
    them.
    """
    steps: dict[Any, set[str]] = {}
    for run in firsts:
        steps.setdefault(run.run.static.task, set()).add(_steps(run.run.static))
    by_label: dict[tuple[Any, str], list[StoredRun]] = {}
    for run in firsts:
        heads = per_layer(run.run.static.model, "n_heads")
        label = f"{heads} head{'' if heads == 1 else 's'}, {variant(run)}"
        if run.run.static.start:
            label += f", {begins(run.run.static)}"
        if len(steps[run.run.static.task]) > 1:
            label += f", {_steps(run.run.static)} steps"
        by_label.setdefault((run.run.static.task, label), []).append(run)
    out = {}
    for (_, label), runs in by_label.items():
        fields = [_told_apart_by(run.run.static) for run in runs]
        differing = [key for key in fields[0] if len({repr(f[key]) for f in fields}) > 1]
        for run, values in zip(runs, fields, strict=True):
            # What is switched off goes without saying.
            extra = [f"{key} {values[key]}" for key in differing if values[key] not in _OFF]
            out[run.run.group_hash] = ", ".join([label, *extra])
    return out


def _told_apart_by(static: config.StaticConfig) -> dict[str, Any]:
    return {
        **model_fields(static.model),
        **config.to_json(static.train),
        **config.to_json(static.optim),
        **source_fields(static),
    }


def _steps(static: config.StaticConfig) -> str:
    """ "3000", or "3000 + 150" of a run that starts from another one."""
    before = f"{static.steps_before} + " if static.start else ""
    return f"{before}{static.train.n_steps}"

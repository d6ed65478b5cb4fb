"""A run that a sweep has planned, and what is known of it beforehand. Imports no jax."""

from __future__ import annotations

import dataclasses
from typing import Any

from mha_jax import cost
from mha_jax.config import ModelSpec, OptimSpec, Run, StaticConfig, TrainSpec

# What a run is for, `about["purpose"]`, from the least to the most: a run that serves two is the
# latter. A source is there because another run starts from it ("selection source": one that chooses
# a rate); it is no part of a cell that the sweep asks for itself.
PURPOSES = ("twin", "selection source", "source", "selection", "sweep")


@dataclasses.dataclass(frozen=True)
class PlannedRun:
    """A run with what people and tables are told about it."""

    run: Run
    label: str  # from what varies in the sweep; with the hash, the name of the run's directory
    overrides: dict[str, Any]  # what its `add` changed, and what tuning did
    swept: dict[str, Any]  # the values of all keys that any run of the sweep changes
    about: dict[str, Any]  # stored in config.json; no part of the run's identity


def groups(runs: list[PlannedRun]) -> dict[str, list[PlannedRun]]:
    """Runs by group hash: those that share a static config, and so one compilation."""
    found: dict[str, list[PlannedRun]] = {}
    for planned in runs:
        found.setdefault(planned.run.group_hash, []).append(planned)
    return found


def costs(static: StaticConfig) -> dict[str, Any]:
    """What a run's `about` says of its model, and of its cache at the length of the task."""
    length = static.task.spec.length
    return {
        "task": static.task.name,
        "variant": cost.variant(static.model),
        "n_params": cost.n_params(static),
        "kv_bytes_per_token": cost.kv_bytes_per_token(static.model, length),
        "kv_bytes_resident": cost.kv_bytes_resident(static.model, length),
        "kv_bytes_read_per_step": cost.kv_bytes_read(static.model, length),
        "state_bytes": cost.state_bytes(static.model),
        "flops_per_token": cost.flops_per_token(static),
    }


def begins(static: StaticConfig) -> str:
    """Where the parameters come from: "mean of MHA", "4 of 8 heads by zero", ...; "": a draw."""
    spec = static.start
    if spec is None:
        return ""
    source = spec.source
    told = []
    if spec.keep:
        kept, of = (per_layer(model, "n_heads") for model in (static.model, source.model))
        told.append(f"{kept} of {of} heads by {spec.keep}")
    if spec.merge:
        aligned = "aligned " if spec.align else ""
        told.append(f"{aligned}{spec.merge} of {cost.variant(source.model)}")
    return " and ".join(told) or "continued"


def source_fields(static: StaticConfig) -> dict[str, Any]:
    """What tells apart how runs of one model begin; None where their parameters are drawn."""
    start = static.start
    fields: dict[str, Any] = {"start": begins(static), "start.n_steps": static.steps_before}
    fields["start.lr"] = start and start.lr
    fields["start.weight_decay"] = start and start.weight_decay
    for cls, part in ((TrainSpec, "train"), (OptimSpec, "optim")):
        for field in dataclasses.fields(cls):
            if field.name != "n_steps":
                value = getattr(getattr(start.source, part), field.name) if start else None
                fields[f"start.{field.name}"] = value
    return fields


def per_layer(model: ModelSpec, field: str) -> Any:
    """A layer field as a config writes it: one value if all layers agree, else one a layer
    ("4,4,2").
    """
    values = [getattr(layer, field) for layer in model.layers]
    return values[0] if len(set(values)) == 1 else ",".join(map(str, values))

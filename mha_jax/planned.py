"""A run that a sweep has planned, and what is known of it beforehand. Imports no jax."""

from __future__ import annotations

import dataclasses
from typing import Any

from mha_jax import cost
from mha_jax.config import Run, StaticConfig


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
    """What a run's `about` says of its model."""
    return {
        "task": static.task.name,
        "variant": cost.variant(static.model),
        "n_params": cost.n_params(static),
        "kv_bytes_per_token": cost.kv_bytes_per_token(static.model),
        "state_bytes": cost.state_bytes(static.model),
        "flops_per_token": cost.flops_per_token(static),
    }

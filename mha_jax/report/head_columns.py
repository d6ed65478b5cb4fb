"""What the heads of a cell do, over its reported seeds: columns of `frontier.csv`."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np

from mha_jax.analysis import naming, specialization
from mha_jax.report.cells import CellRuns
from mha_jax.store import StoredRun

INDICES = ("specialization", "offset_specialization", "specialization_used")
_MEANS = ("roles_covered", "role_entropy", "js", "sink_rate")
COLUMNS = (
    *(f"{name}{end}" for name in INDICES for end in ("", "_low", "_high")),
    *_MEANS,
    *(f"roles_covered_at_{tau}" for tau in naming.TAUS),
    "head_roles",
)


def of_cell(c: CellRuns) -> dict[str, Any]:
    """Values of `COLUMNS`; None where no seed has one.

    The indices with their 95 % intervals, see `analysis.specialization`; the means of the others
    over seeds; `head_roles` are the names of the lowest seed's heads, layer by layer.
    """
    seeds = {seed.hash: seed for seed in c.cell.seeds}
    runs = [run for run in c.runs if run.run.hash in seeds]
    runs.sort(key=lambda run: seeds[run.run.hash].seed)
    row: dict[str, Any] = dict.fromkeys(COLUMNS)
    drawn = [_indices(run) for run in runs]
    for name in INDICES:
        index = specialization.of_cell([one[name] for one in drawn if name in one])
        values = (index.value, index.low, index.high)
        row |= {f"{name}{end}": x for end, x in zip(("", "_low", "_high"), values, strict=True)}
    told = [run.summary["heads"] for run in runs if run.summary.get("heads")]
    for name in _MEANS:
        row[name] = _mean([one.get(name) for one in told])
    for tau in naming.TAUS:
        row[f"roles_covered_at_{tau}"] = _mean(
            [sum(x["covered"][str(tau)] for x in one["layers"].values()) for one in told]
        )
    if told:
        names = [layer["names"] for layer in told[0]["layers"].values()]
        row["head_roles"] = "; ".join(", ".join(name or "?" for name in layer) for layer in names)
    return {key: None if isinstance(x, float) and math.isnan(x) else x for key, x in row.items()}


def _indices(run: StoredRun) -> dict[str, specialization.Drawn]:
    """What a run's `indices.json` holds; {} where there is none that can be believed."""
    if run.changed("indices.json"):
        return {}
    try:
        told = json.loads((run.directory / "indices.json").read_bytes())
        return {
            name: specialization.Drawn(
                np.array([float(x) for x in one["index_d"]]),
                float(one["nmi"]),
                float(one["null"]),
                int(one["n_sequences"]),
            )
            for name, one in told.items()
        }
    except (OSError, KeyError, ValueError, TypeError, AttributeError):
        return {}


def _mean(values: Sequence[float | None]) -> float | None:
    known = [x for x in values if x is not None and not math.isnan(x)]
    return statistics.fmean(known) if known else None

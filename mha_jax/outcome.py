"""What a run leaves when it is over: the files of its heads, and what its evaluations say."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mha_jax import heads
from mha_jax.config import StaticConfig
from mha_jax.files import write_atomic, write_json_atomic
from mha_jax.tasks import TaskSpec


def write_heads(
    directory: Path, layers: Sequence[Any], static: StaticConfig, *, with_indices: bool
) -> dict[str, Any]:
    """Writes `heads.csv` and, with the resamples of the model's indices, `indices.json`.

    Args:
      directory: the run's.
      layers: what `Group.examine` returns for the run.
      static: the run's.
      with_indices: whether the run is one that is reported: the resamples take a part of a second.

    Returns:
      What `summary.json` holds of the heads; {} for a model without any.
    """
    read = heads.read(layers, static)
    write_atomic(directory / "heads.csv", _csv(heads.table(read, static)))
    told = heads.summary(read, static)
    drawn = heads.indices(read) if with_indices else {}
    if drawn:
        told_of = {
            key: {**one._asdict(), "index_d": one.index_d.tolist()} for key, one in drawn.items()
        }
        write_json_atomic(directory / "indices.json", told_of)
        told |= {name: float(one.index_d[0]) for name, one in drawn.items()}
    return told


def best(evaluations: list[dict[str, Any]], spec: TaskSpec) -> dict[str, Any] | None:
    """Step and value of the best evaluation; the first of equals."""
    name = f"eval/{spec.metric}"
    finite = [row for row in evaluations if math.isfinite(row[name])]
    if not finite:
        return None
    sign = 1 if spec.direction == "max" else -1
    row = max(finite, key=lambda row: sign * row[name])
    return {"step": row["step"], name: row[name]}


def steps_to_threshold(evaluations: list[dict[str, Any]], spec: TaskSpec) -> int | None:
    """The first evaluated step at which every output had reached `solved_at`; None: never, or there
    is no threshold."""
    if spec.solved_at is None:
        return None
    names = [f"eval/{spec.metric}"]
    if len(spec.outputs) > 1:
        names = [f"eval/{spec.metric}/{output}" for output in spec.outputs]
    sign = 1 if spec.direction == "max" else -1
    for row in evaluations:
        if all(sign * row[name] >= sign * spec.solved_at for name in names):
            return row["step"]
    return None


def _csv(rows: list[dict[str, Any]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, heads.COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(
        {key: "" if isinstance(v, float) and math.isnan(v) else v for key, v in row.items()}
        for row in rows
    )
    return text.getvalue()

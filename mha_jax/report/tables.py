"""The tables of a sweep: `runs.csv`, `frontier.csv`, `heads.csv`, `timing.csv`.

All but `timing.csv` hold deterministic columns only, in an order that follows from the configs, so
an interrupted and resumed sweep gives the same bytes as an unbroken one. Rows are typed dicts
(None: empty); `to_csv` is the only place that formats.
"""

from __future__ import annotations

import csv
import dataclasses
import io
import json
from collections.abc import Sequence
from typing import Any

from mha_jax import config, planned
from mha_jax.report import cells, head_columns, pareto, stats
from mha_jax.report.cells import CellRuns
from mha_jax.report.intervals import wilson
from mha_jax.store import StoredRun

Row = dict[str, Any]

FRONTIER_COLUMNS = (
    *("experiment", "task", "variant", "n_layers", "d_model", "n_heads", "n_kv_heads", "d_head"),
    *("d_ff", "match", "params_ratio", "n_params", "cache_dtype", "kv_bytes_per_token"),
    *("lr", "n_lrs", "lr_edge", "n_seeds", "n_steps", "metric", "mean", "ci_low", "ci_high"),
    *("median", "min", "max", "success_rate", "success_low", "success_high"),
    *("steps_to_threshold", "status", "diverged"),
    *("ceiling", "config_hash", "data_hash", "reason", "cell_label", "direction", "chance"),
    *("solved_at", "weight_decay", "validation_mean", "flops_per_token", "n_runs", "n_done"),
    *("n_diverged", "n_failed", "n_unfinished", "task_seed", "task_params", "n_selection"),
    *("state_bytes", "edge_gain", "twin_validation_mean", "twin_change", "twin_allowed"),
    *("start", "steps_before", "start_lr", "start_weight_decay", "initial_mean"),
    *("kv_bytes_resident", "kv_bytes_read_per_step", "pareto"),
    *head_columns.COLUMNS,
)
HEAD_COLUMNS = (
    *("experiment", "hash", "label", "task", "variant", "n_heads", "n_kv_heads", "seed"),
    *("layer", "of", "head", "kv_head", "role", "score", "value", "baseline", "corrected"),
    *("low", "high", "share", "n_rows"),
    *("data_seed", "lr", "weight_decay", "group_hash"),
)


def run_rows(runs: Sequence[StoredRun]) -> list[Row]:
    """One row for each run, whatever became of it."""
    rows = []
    for run in sorted(runs, key=cells.order):
        spec, static, summary = run.spec, run.run.static, run.summary
        final, best = summary.get("final", {}), summary.get("best") or {}
        result = cells.result(run, spec)
        rows.append(
            {
                **_identity(run),
                **cells.model_fields(static.model),
                **_task(static.task),
                "data_hash": static.task.data_hash,
                **config.to_json(static.train),
                **config.to_json(static.optim),
                **config.to_json(run.run.hypers),
                **_costs(run),
                **_start(static),
                "purpose": run.about["purpose"],
                "overrides": _compact(run.about.get("overrides")),
                "status": run.status,
                "step": summary.get("step"),
                "diverged_at": summary.get("diverged_at"),
                "bad_steps": summary.get("bad_steps"),
                "mixed": run.environment.get("mixed"),
                "metric": spec.metric,
                "direction": spec.direction,
                "chance": spec.chance,
                "solved_at": spec.solved_at,
                "ceiling": result.ceiling,
                "test": final.get(f"test/{spec.metric}"),
                "validation": final.get(f"eval/{spec.metric}"),
                "initial": result.initial,
                "solved": result.solved(spec) if result.is_done else None,
                "steps_to_threshold": result.steps_to_threshold,
                "best_step": best.get("step"),
                "best_validation": best.get(f"eval/{spec.metric}"),
                "error": summary.get("error"),
                **{key: final[key] for key in sorted(final) if key.startswith(("eval/", "test/"))},
                **_baselines(run),
            }
        )
    return _same_columns(rows)


def frontier_rows(gathered: Sequence[CellRuns]) -> list[Row]:
    """One row for each static config."""
    rows, on_front = [], pareto.fronts(gathered)
    for c in gathered:
        first, static = c.runs[0], c.static
        low, high = _success_interval(c.cell)
        row = {
            **_identity(first),
            **cells.model_fields(static.model),
            **_task(static.task),
            **_costs(first),
            **{f.name: getattr(c.cell, f.name) for f in dataclasses.fields(stats.Cell)},
            "lr": c.cell.lr,
            "weight_decay": c.cell.choice.weight_decay,
            "n_lrs": c.cell.choice.n_lrs,
            "lr_edge": c.cell.choice.edge,
            "edge_gain": c.cell.choice.edge_gain,
            "twin_validation_mean": c.cell.twin and c.cell.twin.validation_mean,
            "twin_change": c.cell.twin and c.cell.twin.change,
            "twin_allowed": c.cell.twin and c.cell.twin.allowed,
            "success_low": low,
            "success_high": high,
            "n_seeds": len(c.cell.seeds),
            "n_steps": static.train.n_steps,
            **_start(static),
            "metric": c.spec.metric,
            "config_hash": first.run.group_hash,
            "data_hash": static.task.data_hash,
            "cell_label": c.label,
            "direction": c.spec.direction,
            "chance": c.spec.chance,
            "solved_at": c.spec.solved_at,
            "pareto": on_front[c.static_hash],
            **head_columns.of_cell(c),
        }
        row = {name: row[name] for name in FRONTIER_COLUMNS}
        if len(c.cell.outputs) > 1:
            row |= {f"mean/{o}": v for o, v in zip(c.spec.outputs, c.cell.outputs, strict=True)}
        for run in c.runs:
            row |= _baselines(run)
        rows.append(row)
    return _same_columns(rows)


def head_rows(runs: Sequence[StoredRun]) -> tuple[list[Row], list[str]]:
    """The head scores of every run, and a line for each that could not be read."""
    rows, problems = [], []
    for run in sorted(runs, key=cells.order):
        scores, unreadable = run.heads()
        problems += unreadable
        known = {
            **_identity(run),
            **cells.model_fields(run.run.static.model),
            **config.to_json(run.run.hypers),
        }
        for score in sorted(scores, key=lambda s: (s["layer"], s["of"] == "k", s["head"])):
            row = known | score
            rows.append({name: row[name] for name in HEAD_COLUMNS})
    return rows, problems


def timing_rows(runs: Sequence[StoredRun]) -> list[Row]:
    """Everything that a clock measured or the machine decided."""
    rows = []
    for run in sorted(runs, key=cells.order):
        timing, environment = run.summary.get("timing") or {}, run.environment
        rows.append(
            {
                **_identity(run),
                "status": run.status,
                "attempts": run.summary.get("attempts"),
                "n_sessions": len(environment.get("sessions", [])),
                "mixed": environment.get("mixed"),
                **{name: environment.get(name) for name in ("device", "threads", "lane_mode")},
                **{name: timing[name] for name in sorted(timing)},
                **{f"version/{k}": v for k, v in sorted(environment.get("versions", {}).items())},
            }
        )
    return _same_columns(rows)


def to_csv(rows: Sequence[Row], columns: Sequence[str]) -> str:
    """Rows as CSV text: floats to six significant digits (`%.6g`), None as an empty field.

    Args:
      rows: all with the same keys.
      columns: the header where there is no row.
    """
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(rows[0] if rows else columns)
    writer.writerows([_text(value) for value in row.values()] for row in rows)
    return out.getvalue()


def _identity(run: StoredRun) -> Row:
    return {
        "experiment": run.about["experiment"],
        "label": run.label,
        "hash": run.run.hash,
        "group_hash": run.run.group_hash,
        "task": run.run.static.task.name,
        "variant": cells.variant(run),
    }


def _task(task: config.TaskRef) -> Row:
    return {"task_seed": task.seed, "task_params": _compact(config.to_json(task)["params"])}


def _costs(run: StoredRun) -> Row:
    return {
        name: run.about[name]
        for name in (
            *("match", "params_ratio", "n_params", "kv_bytes_per_token", "kv_bytes_resident"),
            *("kv_bytes_read_per_step", "state_bytes", "flops_per_token"),
        )
    }


def _start(static: config.StaticConfig) -> Row:
    start = static.start
    return {
        "start": planned.begins(static),
        "steps_before": static.steps_before,
        "start_lr": start and start.lr,
        "start_weight_decay": start and start.weight_decay,
    }


def _baselines(run: StoredRun) -> Row:
    told = run.summary.get("baselines") or {}
    return {f"baseline/{name}": told[name] for name in sorted(told)}


def _success_interval(cell: stats.Cell) -> tuple[float | None, float | None]:
    """Wilson interval of the success rate, in which a diverged seed is a failure."""
    if cell.success_rate is None:
        return None, None
    n = len(cell.seeds) + cell.diverged
    return wilson(round(cell.success_rate * n), n)


def _compact(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def _same_columns(rows: list[Row]) -> list[Row]:
    """Every row with every column, in the order of first appearance; what a row lacks is None."""
    columns = dict.fromkeys(name for row in rows for name in row)
    return [{name: row.get(name) for name in columns} for row in rows]


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.6g}"
    return value if isinstance(value, str) else _compact(value)

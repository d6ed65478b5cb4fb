"""`scripts/prune.py` as rows, text and JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mha_jax.prune import Plan, Point, Pruned
from mha_jax.run import LoadedRun
from mha_jax.shrink import Removed
from mha_jax.terminal import table

COLUMNS = (
    *("hash", "task", "step", "of", "method", "by", "seed", "lambda", "chosen_on", "measured_on"),
    *("n_heads", "n_kv_heads", "kv_bytes_per_token", "loss", "metric", "value", "gone"),
)
OF = {"n": "query heads", "k": "kv heads"}
_ORDERED = ("one-shot", "iterative", "random")
_CHOSEN_ON = {"one-shot": "validation", "iterative": "validation", "random": ""}  # others: train
_LINES = 9  # of a table


def rows(run: LoadedRun, plan: Plan, pruned: Pruned) -> list[dict[str, Any]]:
    """`pruning.csv`: one row for each point."""
    return [
        {
            "hash": run.run.hash,
            "task": run.run.static.task.name,
            "step": pruned.step,
            "of": OF[point.of],
            "method": point.method,
            "by": plan.by if _CHOSEN_ON.get(point.method) else None,
            "seed": point.seed,
            "lambda": point.lam,
            "chosen_on": _CHOSEN_ON.get(point.method, "train"),
            "measured_on": "test",
            "n_heads": point.n_heads,
            "n_kv_heads": point.n_kv_heads,
            "kv_bytes_per_token": point.kv_bytes_per_token,
            "loss": point.loss,
            "metric": run.spec.metric,
            "value": point.value,
            "gone": " ".join(point.gone),
        }
        for point in pruned.points
    ]


def to_text(run: LoadedRun, plan: Plan, pruned: Pruned) -> str:
    """Tables for a terminal."""
    metric, train = run.spec.metric, run.run.static.train
    lines = [
        f"{run.directory}, step {pruned.step}",
        f"{metric} on {train.n_test} test sequences; order by {plan.by}, on {train.n_probe} "
        "validation sequences; gates trained on training data",
    ]
    for of in pruned.gated:
        points = [point for point in pruned.points if point.of == of]
        lines += ["", f"{OF[of]}: {metric} and cache bytes per token against {OF[of]} that stay"]
        lines += table(
            ("stay", *(name for method in _ORDERED for name in (method, "bytes"))),
            _curve_lines(points, of),
        )
        lines += ["", _gates_heading(plan, of)]
        lines += table(
            ("lambda", "open", "bytes", metric, "loss", f"{metric} of the same heads, untrained"),
            _gate_lines(points, of),
        )
    return "\n".join([*lines, "", *_removed_lines(pruned.removed)])


def to_json(run: LoadedRun, plan: Plan, pruned: Pruned) -> dict[str, Any]:
    """The same, with all points and every gate."""
    removed = pruned.removed
    return {
        "run": str(run.directory),
        "points": rows(run, plan, pruned),
        "gates": {
            OF[of]: [
                {
                    "lambda": one.lam,
                    "open": one.n_open,
                    "open_probability": [x.tolist() for x in one.open_probability],
                    "gates": [x.tolist() for x in one.gates],
                    **one.metrics,
                }
                for one in gated
            ]
            for of, gated in pruned.gated.items()
        },
        "removed": removed._asdict() if isinstance(removed, Removed) else removed,
    }


def stay(point: Point) -> int:
    """Heads that are left, of what was pruned."""
    return point.n_heads if point.of == "n" else point.n_kv_heads


def _curve_lines(points: Sequence[Point], of: str) -> list[tuple[str, ...]]:
    """For some numbers of heads that stay, the mean of each method there."""
    ordered = [point for point in points if point.method in _ORDERED]
    counts = sorted({stay(point) for point in ordered}, reverse=True)
    chosen = np.linspace(0, len(counts) - 1, min(len(counts), _LINES)).round().astype(int)
    lines = []
    for count in (counts[i] for i in chosen):
        line = [str(count)]
        for method in _ORDERED:
            here = [point for point in ordered if point.method == method and stay(point) == count]
            line += _means([point.value for point in here], "{:.3f}")
            line += _means([point.kv_bytes_per_token for point in here], "{:.0f}")
        lines.append(tuple(line))
    return lines


def _means(values: Sequence[float], form: str) -> list[str]:
    return [form.format(np.mean(values)) if values else ""]


def _gates_heading(plan: Plan, of: str) -> str:
    trained = "alone, parameters as they are" if plan.frozen else "and parameters"
    return f"{OF[of]}: L0 gates {trained}, trained for {plan.gate_steps} steps at each lambda"


def _gate_lines(points: Sequence[Point], of: str) -> list[tuple[str, ...]]:
    trained = [point for point in points if point.method == "L0"]
    untrained = [point for point in points if point.method == "L0 mask"]
    return [
        (
            f"{a.lam:.3g}",
            str(stay(a)),
            str(a.kv_bytes_per_token),
            f"{a.value:.3f}",
            f"{a.loss:.3g}",
            f"{b.value:.3f}",
        )
        for a, b in zip(trained, untrained, strict=True)
    ]


def _removed_lines(removed: Removed | str) -> list[str]:
    if isinstance(removed, str):
        return [f"not removed: {removed}"]
    keep = ";".join(f"l{i}:{','.join(map(str, heads))}" for i, heads in enumerate(removed.keep))
    return [
        f"removed {', '.join(removed.gone)}; query heads that stay: {keep}",
        "  parameters {} -> {}, cache bytes per token {} -> {}".format(
            *removed.n_params, *removed.kv_bytes_per_token
        ),
        f"  outputs differ by {removed.difference:.1e} at most from those of the masked model, "
        f"which reach {removed.largest:.3g}",
    ]

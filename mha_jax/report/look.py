"""How cells look: colours, markers, line styles and words of the panels and the legend."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mha_jax.report import pareto
from mha_jax.report.cells import CellRuns, family_name
from mha_jax.tasks import TaskSpec

# Okabe and Ito's colours; the marker says the same again.
FAMILIES = {
    "MHA": ("#0072B2", "o", "MHA: every head has its own keys and values"),
    "GQA": ("#009E73", "^", "GQA-k: heads share k sets of keys and values"),
    "MQA": ("#D55E00", "s", "MQA: all heads share one set"),
    "other": ("#CC79A7", "D", "other mixers"),
}
METRICS = {
    "accuracy": "accuracy",
    "r2": "R²",
    "nmse": "NMSE",
    "bits_per_byte": "bits per byte",
    "bits_per_token": "bits per token",
}
LOG_METRICS = ("nmse",)
SMALL = 7.0  # points
SAME_HEADS = "0.75"  # colour of the line between cells that differ in kv heads only
FRONT = "#E69F00"  # colour of the Pareto front
CEILING, SOLVED, CHANCE = (0, (3, 1.5)), "-.", ":"  # line styles


def family(cell: CellRuns) -> str:
    """MHA, GQA, MQA or other."""
    name = family_name(cell.variant)
    return name if name in FAMILIES else "other"


def shows_solved(spec: TaskSpec) -> bool:
    """Whether the solved value has a line: on a linear axis it would lie on the ceiling."""
    return spec.metric in LOG_METRICS and spec.solved_at is not None


def marks(cells: Sequence[CellRuns]) -> list[Any]:
    """For the legend: colours of the variants that occur, and what the marks mean."""
    from matplotlib.lines import Line2D

    def mark(label: str, **style: Any) -> Any:
        return Line2D([], [], label=label, **{"color": "0.35", "linestyle": "none", **style})

    present = {family(c) for c in cells}
    handles = [
        mark(words, color=colour, marker=marker, markersize=6)
        for name, (colour, marker, words) in FAMILIES.items()
        if name in present
    ]
    handles += [
        mark(
            "hollow: not shown to be converged", marker="o", markerfacecolor="white", markersize=6
        ),
        mark("one seed", marker=".", color="0.1", markersize=4),
        mark("95 % interval over seeds", linestyle="-"),
    ]
    if len(present) > 1:
        handles.append(mark("same heads, other kv heads", linestyle="-", color=SAME_HEADS))
    if any(pareto.fronts(cells).values()):
        handles.append(mark("Pareto front of the converged", linestyle="-", color=FRONT))
    if any(c.cell.ceiling is not None for c in cells):
        handles.append(mark("best possible (ceiling)", linestyle=CEILING))
    if any(shows_solved(c.spec) for c in cells):
        handles.append(mark("counts as solved", linestyle=SOLVED))
    handles.append(mark("chance", linestyle=CHANCE))
    if any(c.cell.diverged for c in cells):
        handles.append(mark("diverged", marker="x", markersize=6))
    return handles

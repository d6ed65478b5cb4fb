"""The figure of a pruned run: the task's metric and the loss against heads and cache bytes that
stay. Reads the rows of `pruning.csv`, and imports no jax.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mha_jax.report import look, page
from mha_jax.tasks import TaskSpec

Row = dict[str, Any]

# Okabe and Ito's colours; the marker says the same again.
_METHODS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "random": ("0.65", "random order: the control", {"linewidth": 0.8, "zorder": 1}),
    "one-shot": ("#0072B2", "by importance, one-shot", {"marker": "o", "linewidth": 2.4}),
    "iterative": (
        "#D55E00",
        "by importance, estimated again",
        {"marker": "s", "linewidth": 1.2, "markersize": 3.5},
    ),
    "L0": ("#009E73", "L0 gates, parameters trained", {"marker": "D", "linestyle": "none"}),
    "L0 mask": (
        "#009E73",
        "the heads of L0, not trained",
        {"marker": "D", "linestyle": "none", "markerfacecolor": "white", "markersize": 4},
    ),
}
_COUNTS = {"query heads": "n_heads", "kv heads": "n_kv_heads"}
_PANEL = (3.1, 2.3)  # inches


def figure(rows: Sequence[Row], spec: TaskSpec, title: str) -> bytes:
    """A PNG file; the same rows give the same bytes.

    Args:
      rows: of `pruning.csv`, of one run.
      spec: its task.
      title: what the run is.
    """
    with page.style():
        return page.png(_draw(rows, spec, title))


def _draw(rows: Sequence[Row], spec: TaskSpec, title: str) -> Any:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    kinds = list(dict.fromkeys(row["of"] for row in rows))
    columns = [
        column
        for of in kinds
        for column in (
            (of, _COUNTS[of], f"{of} that stay"),
            (of, "kv_bytes_per_token", "KV cache, bytes per token"),
        )
    ]
    better = "higher" if spec.direction == "max" else "lower"
    qualities = (
        ("value", f"{look.METRICS[spec.metric]}, test ({better} is better)"),
        ("loss", "loss, test"),
    )
    width = max(_PANEL[0] * len(columns), 8.5)
    figure = Figure(figsize=(width, 2 * _PANEL[1] + 1.0), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(2, len(columns), squeeze=False, sharey="row")
    for line, (quality, name) in zip(panels, qualities, strict=True):
        for axes, (of, x, words) in zip(line, columns, strict=True):
            _panel(axes, [row for row in rows if row["of"] == of], x, quality)
            if quality == "value":
                axes.axhline(spec.chance, color="0.35", linestyle=look.CHANCE, zorder=0)
                axes.set_title(f"{of} pruned", loc="left", fontsize=9, fontweight="bold")
            axes.set_xlabel(words)
        line[0].set_ylabel(name)
        if quality == "value" and spec.metric in look.LOG_METRICS:
            line[0].set_yscale("log")
    handles = [
        Line2D([], [], color=colour, label=words, **style)
        for colour, words, style in _METHODS.values()
    ]
    chance: Any = look.CHANCE
    handles.append(Line2D([], [], color="0.35", linestyle=chance, label="chance"))
    figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False)
    figure.suptitle(title, fontsize=9.5)
    return figure


def _panel(axes: Any, rows: Sequence[Row], x: str, y: str) -> None:
    """A line for each order and method, a mark for each lambda."""
    for method, (colour, _, style) in _METHODS.items():
        of_method = [row for row in rows if row["method"] == method]
        for seed in dict.fromkeys(row["seed"] for row in of_method):
            line = [row for row in of_method if row["seed"] == seed]
            axes.plot([row[x] for row in line], [row[y] for row in line], color=colour, **style)

"""The training figure: for each cell the scores of its heads, the training loss and the quality,
one above the other over the same steps, so that what changes together stands together.
"""

from __future__ import annotations

import statistics
import textwrap
from collections.abc import Sequence
from typing import Any

from mha_jax.report import look, over_time
from mha_jax.report.over_time import TAUS, Key, OfCell, OfRun
from mha_jax.report.page import WIDTH, Page, render

MAX_PANELS = 9  # of a task
_MAX_LAYERS, _MAX_HEADS = 4, 8  # of a panel; heads of a layer
_N_COLUMNS = 3
# Inches.
_LEFT, _NAMES = 0.62, 0.98  # of a panel: axis labels, and the names of the lines
_SCORES, _CURVE, _GAP = 1.15, 0.62, 0.12
_LINE, _BELOW = 0.15, 0.55
LOWEST, HIGHEST = -0.1, 1.06  # of the axis of scores
TEXT = 0.105 * (HIGHEST - LOWEST) / _SCORES  # height of a label on that axis
_WRAP = 66  # letters of a line of a panel's title
# Okabe and Ito's colours, yellow left out, and grey.
_COLOURS = (
    *("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8A8A8A"),
)
_EXPLAINED = (
    "Scores are corrected: 0 is uniform attention, 1 the ideal head. A line is what its head came "
    "to do, in the lowest seed: the roles it ever had for .5 or more, else its highest score.",
    "Over a panel: steps to the first head of each role at .5 (dotted), median of the seeds and "
    "their range. Loss and quality of the other seeds are grey.",
)


def draw(panels: Sequence[OfCell]) -> dict[str, bytes]:
    """The content of an "svg" and of a "png" file.

    Args:
      panels: cells, at least one.
    """
    return render(lambda: _page(panels))


def _page(panels: Sequence[OfCell]) -> Page:
    tasks: dict[Any, list[OfCell]] = {}
    for panel in panels:
        tasks.setdefault(panel.cell.static.task, []).append(panel)
    rows = {
        task: [some[i : i + _N_COLUMNS] for i in range(0, min(len(some), MAX_PANELS), _N_COLUMNS)]
        for task, some in tasks.items()
    }
    top = 0.34 + 3 * _LINE + 0.1
    of_rows = sum(0.45 + sum(map(_height, lines)) for lines in rows.values())
    page = Page(top + of_rows)
    experiment = panels[0].cell.runs[0].about["experiment"]
    page.text(0.25, 0.34, f"{experiment}: heads while they train", size=13, weight="bold")
    for i, words in enumerate(_EXPLAINED):
        page.text(0.25, 0.34 + _LINE * (i + 1.4), words, color="0.3")
    for task, lines_of_panels in rows.items():
        page.text(0.25, top + 0.2, f"Task: {task.name}", size=11, weight="bold")
        if len(tasks[task]) > MAX_PANELS:
            words = f"{len(tasks[task]) - MAX_PANELS} further cells are left out: see over_time.csv"
            page.text(WIDTH - 0.2, top + 0.2, words, color="#8A3B00", ha="right")
        top += 0.45
        curves: list[list[Any]] = []
        for panels_of_line in lines_of_panels:
            title = max(len(_title(panel)) for panel in panels_of_line)
            for i, panel in enumerate(panels_of_line):
                drawn = _panel(page, panel, WIDTH / _N_COLUMNS * i, top + _LINE * title)
                curves.append(drawn)
            top += _height(panels_of_line)
        for same in zip(*curves, strict=True):
            _share_limits(same)
    return page


def _height(line: Sequence[OfCell]) -> float:
    """Inches of a line of panels."""
    strips = max(len(_layers(panel)[:_MAX_LAYERS]) for panel in line)
    title = _LINE * max(len(_title(panel)) for panel in line)
    return title + 0.06 + strips * (_SCORES + _GAP) + 2 * (_CURVE + _GAP) + _BELOW


def _layers(panel: OfCell) -> list[int]:
    """The layers with scores, of the run that is drawn."""
    return sorted({key.layer for key in panel.runs[0].heads})


def _title(panel: OfCell) -> list[str]:
    """The cell, when the first head of each role rose, and what is not drawn."""
    rises = over_time.first_rises(panel.runs)
    told = [f"{s.removeprefix('role/')} {_when(steps)}" for s, steps in rises.items()]
    words = "steps to .5: " + ";  ".join(told) if told else ""
    left_out = []
    if len(_layers(panel)) > _MAX_LAYERS:
        left_out.append(f"first {_MAX_LAYERS} of {len(_layers(panel))} layers")
    n_heads = max(layer.n_heads for layer in panel.cell.static.model.layers)
    if n_heads > _MAX_HEADS:
        left_out.append(f"{_MAX_HEADS} of {n_heads} heads, those that peak highest")
    shown = ["shown: " + ", ".join(left_out)] if left_out else []
    return [panel.cell.label, *textwrap.wrap(words, _WRAP), *shown]


def _panel(page: Page, panel: OfCell, left: float, top: float) -> list[Any]:
    """Draws a panel whose title ends at `top`.

    Returns:
      The axes of the loss and of the quality.
    """
    words = _title(panel)
    for i, line in enumerate(words):
        style = {"weight": "bold"} if i == 0 else {"color": "0.3", "size": look.SMALL}
        page.text(left + _LEFT, top - _LINE * (len(words) - 1 - i), line, **style)
    top += 0.06
    left, width = left + _LEFT, WIDTH / _N_COLUMNS - _LEFT - _NAMES
    first, *others = panel.runs
    leading = over_time.leading(first.heads)
    last: Any = None
    for layer in _layers(panel)[:_MAX_LAYERS]:
        last = page.axes(left, top, width, _SCORES, sharex=last)
        heads = [keys for (at, _), keys in leading.items() if at == layer]
        _scores(last, first, heads[:_MAX_HEADS] if len(heads) <= _MAX_HEADS else _top(first, heads))
        several = len(_layers(panel)) > 1
        last.set_ylabel(f"score, layer {layer}" if several else "score", fontsize=look.SMALL)
        last.tick_params(labelbottom=False)
        top += _SCORES + _GAP
    spec = panel.cell.spec
    for name, field, logarithmic in (
        ("train loss", "loss", False),
        (look.METRICS[spec.metric], "metric", spec.metric in look.LOG_METRICS),
    ):
        last = page.axes(left, top, width, _CURVE, sharex=last)
        for run in others:
            last.plot(*_xy(getattr(run, field)), color="0.75", linewidth=0.7)
        last.plot(*_xy(getattr(first, field)), color="0.15", linewidth=1.2)
        last.set_ylabel(name, fontsize=look.SMALL - 0.5)
        if logarithmic:
            last.set_yscale("log")
        last.tick_params(labelbottom=field == "metric")
        top += _CURVE + _GAP
    drawn = page.figure.axes[-2 - len(_layers(panel)[:_MAX_LAYERS]) :]
    for axes in drawn:
        axes.tick_params(labelsize=look.SMALL - 0.5, length=2)
        axes.grid(axis="x", color="0.92", linewidth=0.6)
        axes.set_axisbelow(True)
    last.set_xlim(0, panel.cell.static.train.n_steps)
    last.set_xlabel("steps", fontsize=look.SMALL)
    return drawn[-2:]


def _share_limits(all_axes: Sequence[Any]) -> None:
    """One range for the panels of a task."""
    limits = [axes.get_ylim() for axes in all_axes]
    for axes in all_axes:
        axes.set_ylim(min(low for low, _ in limits), max(high for _, high in limits))


def _scores(axes: Any, run: OfRun, heads: Sequence[Sequence[Key]]) -> None:
    """The leading scores of the heads of a layer, each with its name at its end."""
    ends = []
    for colour, keys in zip(_COLOURS, heads, strict=False):
        for i, key in enumerate(keys):
            steps, values = _xy(run.heads[key])
            axes.plot(steps, values, color=colour, linewidth=1.3, linestyle="--" if i else "-")
            words = f"{key.head} {key.score.removeprefix('role/')}"
            ends.append((min(max(values[-1], LOWEST), HIGHEST), words, colour))
    axes.set_ylim(LOWEST, HIGHEST)
    axes.set_yticks((0, 0.5, 1))
    axes.axhline(TAUS[1], color="0.5", linewidth=0.8, linestyle=":", zorder=0)
    ends.sort()
    for at, (value, words, colour) in zip(
        label_heights([end[0] for end in ends]), ends, strict=True
    ):
        axes.annotate(
            words,
            (1, value),
            xycoords=("axes fraction", "data"),
            xytext=(1.07, at),
            textcoords=("axes fraction", "data"),
            fontsize=look.SMALL - 0.5,
            color=colour,
            va="center",
            annotation_clip=False,
            arrowprops={
                "arrowstyle": "-",
                "color": colour,
                "linewidth": 0.5,
                "relpos": (0, 0.5),
                "shrinkA": 0,
                "shrinkB": 0,
            },
        )


def label_heights(values: Sequence[float]) -> list[float]:
    """A height for the label of each value, rising like them, none nearer to the next than a line
    of text: those without room stand around their middle.
    """
    blocks: list[list[float]] = []  # of neighbours that touch: their values
    for value in values:
        blocks.append([value])
        while len(blocks) > 1 and _span(blocks[-2])[1] > _span(blocks[-1])[0]:
            blocks[-2:] = [blocks[-2] + blocks[-1]]
    return [_span(block)[0] + TEXT * (i + 0.5) for block in blocks for i in range(len(block))]


def _span(block: Sequence[float]) -> tuple[float, float]:
    """Where the labels of a block begin and end, inside the axis."""
    half = TEXT * len(block) / 2
    middle = min(max(statistics.fmean(block), LOWEST + half), HIGHEST - half)
    return middle - half, middle + half


def _top(run: OfRun, heads: Sequence[Sequence[Key]]) -> list[Sequence[Key]]:
    """Those that peak highest, in their order."""
    peaks = sorted(heads, key=lambda keys: -max(v for _, v in run.heads[keys[0]]))
    return [keys for keys in heads if keys in peaks[:_MAX_HEADS]]


def _xy(curve: over_time.Curve) -> tuple[list[int], list[float]]:
    return [step for step, _ in curve], [value for _, value in curve]


def _when(steps: Sequence[int | None]) -> str:
    """When a role rose: the median of the seeds in which it did, their range, and how many."""
    known = [step for step in steps if step is not None]
    if not known:
        return "never"
    middle = f"{statistics.median_low(known):,}"
    if len(steps) == 1:
        return middle
    if len(set(known)) > 1:
        middle += f" ({min(known):,} to {max(known):,})"
    return middle if len(known) == len(steps) else f"{middle}, in {len(known)} of {len(steps)}"

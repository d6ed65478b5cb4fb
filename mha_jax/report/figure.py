"""The frontier figure: for each task a row with quality against KV-cache bytes, quality against
head count, quality by read-out head, and below it where each attention head looks.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

from mha_jax.report import look, maps, panels, verdict
from mha_jax.report.cells import CellRuns
from mha_jax.report.page import WIDTH, Page, render
from mha_jax.report.stats import MIN_SEEDS_RANKED

# Inches.
_LEFT, _RIGHT = 0.75, 0.2
_LINE = 0.2  # of text
_LEGEND_COLUMNS = 4
_PANEL = 2.55
_BELOW_PANEL = 0.62  # tick labels, axis label and air
_MAP_HEADING, _MAP_BELOW = 0.3, 0.66
_BETWEEN = 0.7  # between panels: tick labels and axis label
_WORDS = ("no", "one", "two", "three", "four")


_SPECIALIZATION = (
    "s: how far the heads divide the roles, 0 like chance, 1 evenly parted, mean over seeds (95 % "
    "interval); it says that heads differ, not that they are right"
)


def frontier(cells: Sequence[CellRuns], heads: Sequence[dict[str, Any]]) -> dict[str, bytes]:
    """The figure of an experiment.

    Args:
      cells: of every task, at least one with a finished run.
      heads: rows of `heads.csv`.

    Returns:
      The content of an "svg" and of a "png" file.
    """
    return render(lambda: _draw(cells, heads))


def illustration(cells: Sequence[CellRuns]) -> str:
    """How much evidence the cells of a task rest on: "one learning rate, 2 seeds: an illustration".

    They illustrate only if any of them has one learning rate, or fewer than five seeds.
    """
    finished = [c.cell for c in cells if c.cell.seeds]
    lrs = sorted({c.choice.n_lrs for c in finished})
    seeds = sorted({len(c.seeds) for c in finished})
    words = f"{_range(lrs, _WORDS)} learning rate{'s' * (lrs[-1] > 1)}, "
    words += f"{_range(seeds, ())} seed{'s' * (seeds[-1] > 1)}"
    if any(c.n_selection for c in finished):
        words += " apart from those that chose the rate"
    return f"{words}: an illustration" if lrs[0] == 1 or seeds[0] < MIN_SEEDS_RANKED else words


def _range(numbers: Sequence[int], words: Sequence[str]) -> str:
    ends = dict.fromkeys((numbers[0], numbers[-1]))
    return " to ".join(words[n] if n < len(words) else str(n) for n in ends)


def _draw(cells: Sequence[CellRuns], heads: Sequence[dict[str, Any]]) -> Page:
    tasks: dict[Any, list[CellRuns]] = {}
    for c in cells:
        tasks.setdefault(c.static.task, []).append(c)
    rows = [_Row(m, heads) for m in tasks.values() if any(c.cell.seeds for c in m)]
    empty = [task.name for task, m in tasks.items() if not any(c.cell.seeds for c in m)]
    marks = look.marks([c for row in rows for c in row.cells])
    top = 0.55 + _LINE * -(-len(marks) // _LEGEND_COLUMNS) + 0.2
    height = top + sum(row.height for row in rows)
    page = Page(height)
    experiment = cells[0].runs[0].about["experiment"]
    page.text(0.25, 0.34, f"{experiment}: what heads and kv heads buy", size=13, weight="bold")
    if empty:
        words = f"no finished run of: {', '.join(empty)}"
        page.text(WIDTH - _RIGHT, 0.34, words, color="0.3", ha="right")
    page.figure.legend(
        handles=marks,
        loc="upper left",
        bbox_to_anchor=(0.2 / WIDTH, 1 - 0.44 / height),
        ncols=_LEGEND_COLUMNS,
        frameon=False,
        columnspacing=1.6,
        borderaxespad=0,
        fontsize=8,
    )
    for row in rows:
        row.draw(page, top)
        top += row.height
    return page


class _Row:
    """The part of the figure that belongs to one task."""

    def __init__(self, cells: Sequence[CellRuns], heads: Sequence[dict[str, Any]]):
        self.cells, self.spec = cells, cells[0].spec
        self.maps, self.seed = maps.head_maps(cells, heads)
        if len(self.spec.roles) < 2:
            self.maps = []
        self.has_index = any(one.has_index for one in self.maps)
        self.lines = maps.flow(self.maps, WIDTH - _LEFT - _RIGHT) if self.maps else []

    @property
    def height(self) -> float:
        """Inches."""
        below = sum(sum(maps.line_height(line)) + _MAP_BELOW for line in self.lines)
        of_maps = self._map_heading + below if self.lines else 0
        return self._heading + _PANEL + _BELOW_PANEL + of_maps

    @property
    def _map_heading(self) -> float:
        return _MAP_HEADING + (_LINE if self.has_index else 0)

    @property
    def _heading(self) -> float:
        return 0.14 + _LINE * (1 + len(self._details())) + 0.36

    def draw(self, page: Page, top: float) -> None:
        task = self.cells[0].static.task
        page.text(0.25, top + 0.14, f"Task: {task.name}", size=11, weight="bold")
        page.text(0.25, top + 0.14 + _LINE, illustration(self.cells), color="#8A3B00", size=9.5)
        for i, line in enumerate(self._details()):
            page.text(0.25, top + 0.14 + _LINE * (2 + i), line, color="0.3")
        top += self._heading
        has_table = len(self.spec.outputs) > 1
        table = min(2.9, 0.62 * len(self.spec.outputs)) if has_table else 0
        names = (
            0.25 + 0.068 * max(len(c.label) for c in self.cells) if has_table else 0
        )  # left of it
        wide = (WIDTH - _LEFT - _RIGHT - _BETWEEN - table - names) / 2
        wide = min(wide, 5.2)
        panels.against_bytes(page.axes(_LEFT, top, wide, _PANEL), self.cells)
        panels.against_heads(page.axes(_LEFT + wide + _BETWEEN, top, wide, _PANEL), self.cells)
        if has_table:
            axes = page.axes(WIDTH - _RIGHT - table, top, table, _PANEL)
            maps.output_table(axes, self.cells)
            axes.set_title(
                f"{look.METRICS[self.spec.metric].capitalize()} of each answer", loc="left"
            )
        top += _PANEL + _BELOW_PANEL
        if self.lines:
            page.text(_LEFT, top + 0.08, "Where each head looks", size=9.5, weight="bold")
            page.text(
                _LEFT + 1.85,
                top + 0.08,
                "share of a head's attention that lands on the position each column asks for, "
                f"0 to 1; a row is a head, white lines part the kv groups ({self.seed})",
                color="0.3",
            )
            if self.has_index:
                page.text(_LEFT + 1.85, top + 0.08 + _LINE, _SPECIALIZATION, color="0.3")
            top += self._map_heading
        for line_of_maps in self.lines:
            left = _LEFT
            title, squares = maps.line_height(line_of_maps)
            for one in line_of_maps:
                maps.draw_map(page.axes(left, top + title, *one.size), one)
                left += one.step
            top += title + squares + _MAP_BELOW

    def _details(self) -> list[str]:
        """Lines under the task's name: matching, budget, sizes, and the cells that are not
        drawn.
        """
        static = self.cells[0].static
        matches = sorted({str(c.runs[0].about["match"]) for c in self.cells})
        matching = " and ".join(
            "not matched" if m == "none" else f"matched by {m}" for m in matches
        )
        steps = " or ".join(f"{n:,}" for n in sorted({c.static.train.n_steps for c in self.cells}))
        words = [f"parameters {matching}", f"{steps} steps"]
        params = ", ".join(f"{k} {v}" for k, v in static.task.params if v not in (0, False, ""))
        words += [params] if params else []
        missing = "; ".join(f"{c.label} ({_fate(c)})" for c in self.cells if not c.cell.seeds)
        lines = [f"not drawn: {missing}"] if missing else []
        open_cells = _open(self.cells)
        lines += [f"not shown to be converged: {open_cells}"] if open_cells else []
        return ["  ·  ".join(words), *(part for line in lines for part in textwrap.wrap(line, 170))]


def _open(cells: Sequence[CellRuns]) -> str:
    """The drawn cells that are not converged, by reason."""
    drawn = [c for c in cells if c.cell.seeds]
    by_reason: dict[str, list[str]] = {}
    for c in drawn:
        if c.cell.status != "converged":
            by_reason.setdefault(c.cell.reason, []).append(c.label)
    return "; ".join(
        f"{verdict.REASONS[reason]}: {'all' if len(labels) == len(drawn) else ', '.join(labels)}"
        for reason, labels in by_reason.items()
    )


def _fate(cell: CellRuns) -> str:
    """What became of the runs of a cell without a finished one."""
    counts = {
        "diverged": cell.cell.n_diverged,
        "failed": cell.cell.n_failed,
        "unfinished": cell.cell.n_unfinished,
    }
    return ", ".join(f"{n} {name}" for name, n in counts.items() if n)

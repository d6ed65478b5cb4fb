"""The heat maps of the frontier figure: quality by read-out head, and where each attention head
looks.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from mha_jax.report import head_columns
from mha_jax.report.cells import CellRuns
from mha_jax.report.look import FAMILIES, LOG_METRICS, SMALL, family

_COLOURS = "Blues"  # one hue, light to dark: its order survives every colour vision, and grey print
_SQUARE = 0.22  # inches: side of a square of a head map
_TALLEST = 2.6  # inches: many heads get flatter squares instead of a taller map
_ROLE = "role/"
_LETTER = 0.065  # inches, of a title
_GAP, _NAMES = 0.34, 0.22  # inches: between maps, and for the layer's name before a head's number


def output_table(axes: Any, cells: Sequence[CellRuns]) -> None:
    """Mean test metric of each read-out head, a row for each cell."""
    spec = cells[0].spec
    shown = [c for c in cells if c.cell.seeds]
    values = np.array([c.cell.outputs for c in shown])
    form = ".1e" if spec.metric in LOG_METRICS else ".3f"
    words = [[format(v, form) for v in row] for row in values]
    _squares(axes, _share_of_best(values, spec), words, SMALL + 1)
    axes.set_xticks(range(len(spec.outputs)), spec.outputs)
    axes.set_yticks(range(len(shown)), [c.label for c in shown])
    for tick, c in zip(axes.get_yticklabels(), shown, strict=True):
        tick.set_color(FAMILIES[family(c)][0])
    axes.tick_params(length=0)


def _share_of_best(values: np.ndarray, spec: Any) -> np.ndarray:
    """0 at chance, 1 at the best that is known: the solved value, or the best cell."""
    best = spec.solved_at
    if best is None:
        best = values.max() if spec.direction == "max" else values.min()
    chance = spec.chance
    if spec.metric in LOG_METRICS:
        values, best, chance = np.log(np.maximum(values, 1e-12)), math.log(best), math.log(chance)
    return (values - chance) / (best - chance) if best != chance else np.ones_like(values)


@dataclasses.dataclass(frozen=True)
class HeadMap:
    """Mean attention from valid rows to their pointers, for the heads of one run."""

    title: str
    roles: tuple[str, ...]
    heads: tuple[str, ...]
    mass: np.ndarray  # [heads of all layers, roles]
    edges: tuple[float, ...]  # before which row a new kv head begins
    layer_edges: tuple[float, ...]
    has_index: bool  # whether the title ends with the cell's specialization

    @property
    def size(self) -> tuple[float, float]:
        """Width and height of the squares, inches."""
        return _SQUARE * len(self.roles), min(_SQUARE * len(self.heads), _TALLEST)

    @property
    def step(self) -> float:
        """Inches from this map to the next."""
        title = _LETTER * max(map(len, self.title.split("\n"))) + _NAMES
        return max(self.size[0] + _GAP, title) + (_NAMES if self.layer_edges else 0)


def head_maps(
    cells: Sequence[CellRuns], heads: Sequence[dict[str, Any]]
) -> tuple[list[HeadMap], str]:
    """A map for each cell that has one, of its lowest seed, and which seed that is: "seed 0".

    Args:
      cells: of one task.
      heads: rows of `heads.csv`.
    """
    of_run: dict[str, list[dict[str, Any]]] = {}
    for row in heads:
        of_run.setdefault(row["hash"], []).append(row)
    maps, seeds = [], []
    for c in cells:
        if not c.cell.seeds:
            continue
        first = c.cell.seeds[0]
        own = [row for row in of_run.get(first.hash, ()) if row["of"] == "n"]
        rows = [row for row in own if row["score"].startswith(_ROLE)]
        if not rows:
            continue
        seeds.append(first.seed)
        roles = tuple(dict.fromkeys(row["score"].removeprefix(_ROLE) for row in rows))
        keys = list(dict.fromkeys((row["layer"], row["head"], row["kv_head"]) for row in rows))
        mass = {
            (row["layer"], row["head"], row["score"].removeprefix(_ROLE)): row["value"]
            for row in rows
        }
        several = len({layer for layer, _, _ in keys}) > 1
        pairs = list(zip(keys, keys[1:], strict=False))
        index = _index(c)
        maps.append(
            HeadMap(
                "\n".join([*c.label.split(", "), *index]),
                roles,
                tuple(f"l{layer}.n{head}" if several else str(head) for layer, head, _ in keys),
                np.array([[mass.get((*k[:2], role), math.nan) for role in roles] for k in keys]),
                tuple(i + 0.5 for i, (a, b) in enumerate(pairs) if (a[0], a[2]) != (b[0], b[2])),
                tuple(i + 0.5 for i, (a, b) in enumerate(pairs) if a[0] != b[0]),
                bool(index),
            )
        )
    return maps, f"seed {seeds[0]}" if len(set(seeds)) == 1 else "lowest seed of each"


def _index(c: CellRuns) -> list[str]:
    """The line of a map's title with the cell's specialization and its interval; none without."""
    told = head_columns.of_cell(c)
    ends = (told[f"specialization{end}"] for end in ("", "_low", "_high"))
    value, low, high = ("" if x is None else f"{x:.2f}".replace("0.", ".") for x in ends)
    return [f"s {value} ({low} to {high})"] if value and low and high else []


def flow(maps: Sequence[HeadMap], width: float) -> list[list[HeadMap]]:
    """Maps in lines that fit into `width` inches."""
    lines: list[list[HeadMap]] = [[]]
    used = 0.0
    for one in maps:
        if lines[-1] and used + one.size[0] > width:
            lines.append([])
            used = 0.0
        lines[-1].append(one)
        used += one.step
    return lines


def line_height(line: Sequence[HeadMap]) -> tuple[float, float]:
    """Inches that titles and squares of a line need."""
    n_words = max(one.title.count("\n") + 1 for one in line)
    return 0.13 * n_words + 0.06, max(one.size[1] for one in line)


def draw_map(axes: Any, one: HeadMap) -> None:
    """One head map; a white line separates heads with different keys and values."""
    height = one.size[1] / len(one.heads)
    words = [[f"{v:.2f}".removeprefix("0") for v in row] for row in one.mass]
    _squares(axes, one.mass, words, min(SMALL - 0.5, 62 * height))
    for edge in one.edges:
        axes.axhline(edge, color="white", linewidth=1.5)
    for edge in one.layer_edges:
        axes.axhline(edge, color="0.2", linewidth=1)
    axes.set_xticks(
        range(len(one.roles)), one.roles, rotation=45, ha="right", rotation_mode="anchor"
    )
    axes.set_yticks(range(len(one.heads)), one.heads)
    axes.tick_params(length=0, labelsize=min(SMALL, 62 * height), pad=2)
    axes.tick_params(axis="x", labelsize=SMALL)
    axes.set_title(one.title, fontsize=SMALL + 0.5, loc="left")


def _squares(axes: Any, shade: np.ndarray, words: Sequence[Sequence[str]], size: float) -> None:
    axes.imshow(shade, cmap=_COLOURS, vmin=0, vmax=1.15, aspect="auto", interpolation="nearest")
    for spine in axes.spines.values():
        spine.set_visible(False)
    for i, row in enumerate(words):
        for j, word in enumerate(row):
            dark = shade[i, j] > 0.6
            axes.text(
                j,
                i,
                word,
                ha="center",
                va="center",
                fontsize=size,
                color="white" if dark else "0.15",
            )

"""Places text beside points so that no label covers another label or a point."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

_AROUND = [(1, 0), (-1, 0), (0, -1), (0, 1), (1, -1), (-1, -1), (1, 1), (-1, 1)]
_DISTANCES = (
    7.0,
    13.0,
    21.0,
    30.0,
    40.0,
    52.0,
    66.0,
)  # points; beyond the first a thin line leads to the point
_MARKER = 5  # points from a marker's centre to its edge
_GAP = 1.5  # points between labels


def place(axes: Any, labels: Sequence[tuple[float, float, str, str]], size: float) -> None:
    """Writes each `(x, y, text, colour)` of `labels` near its point.

    Limits and position of `axes` must be final. Deterministic: labels are placed from the top
    right, each at the first free place, nearest first; where none is free, where it overlaps least.
    """
    from matplotlib.transforms import Bbox

    figure = axes.figure
    renderer = figure.canvas.get_renderer()
    px = figure.dpi / 72
    inside = axes.get_window_extent(renderer)
    at = [axes.transData.transform((x, y)) for x, y, _, _ in labels]
    reach = _MARKER * px
    taken = [Bbox.from_extents(x - reach, y - reach, x + reach, y + reach) for x, y in at]

    for i in sorted(
        range(len(labels)), key=lambda i: (-round(at[i][1]), -round(at[i][0]), labels[i][2])
    ):
        x, y, words, colour = labels[i]
        text = axes.annotate(
            words, (x, y), xytext=(0, 0), textcoords="offset points", fontsize=size
        )
        extent = text.get_window_extent(renderer)
        text.remove()
        width, height = extent.width / px, extent.height / px
        best: tuple[float, float, float, float, Any] | None = None
        for distance in _DISTANCES:
            for right, up in _AROUND:
                away = distance / math.hypot(right, up)
                left = right * away + (0 if right > 0 else -width if right < 0 else -width / 2)
                low = up * away + (0 if up > 0 else -height if up < 0 else -height / 2)
                corner = (at[i][0] + left * px, at[i][1] + low * px)
                box = Bbox.from_bounds(*corner, width * px, height * px).padded(_GAP * px)
                overlap = sum(_overlap(box, other) for j, other in enumerate(taken) if j != i)
                overlap += box.width * box.height - _overlap(box, inside)
                if best is None or overlap < best[0] - 1e-6:
                    best = (overlap, left, low, distance, box)
            if best is not None and best[0] <= 1e-6:
                break
        assert best is not None
        _, left, low, distance, box = best
        taken.append(box)
        line = {"arrowstyle": "-", "color": "0.6", "linewidth": 0.6, "shrinkA": 0, "shrinkB": 4}
        axes.annotate(
            words,
            (x, y),
            xytext=(left, low),
            textcoords="offset points",
            fontsize=size,
            color=colour,
            va="bottom",
            arrowprops=line if distance > _DISTANCES[0] else None,
            bbox={
                "boxstyle": "square,pad=0.05",
                "facecolor": "white",
                "edgecolor": "none",
                "alpha": 0.85,
            },
            zorder=2.5,
        )


def _overlap(a: Any, b: Any) -> float:
    """Shared area of two boxes."""
    width = min(a.x1, b.x1) - max(a.x0, b.x0)
    height = min(a.y1, b.y1) - max(a.y0, b.y0)
    return width * height if width > 0 and height > 0 else 0.0

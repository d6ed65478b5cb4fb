"""A page addressed in inches, and its bytes.

The same drawing gives the same bytes of SVG: no date, a fixed salt, matplotlib's own style whatever
the user's is.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Iterator
from typing import Any

WIDTH = 12.0  # inches
_STYLE: Any = {
    "font.size": 8.5,
    "axes.titlesize": 9.5,
    "axes.titleweight": "bold",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "svg.hashsalt": "mha_jax",
}


class Page:
    """A figure addressed in inches from its top left corner."""

    def __init__(self, height: float):
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        self.figure: Any = Figure(figsize=(WIDTH, height))
        FigureCanvasAgg(self.figure)
        self.height = height

    def axes(self, left: float, top: float, width: float, height: float, **style: Any) -> Any:
        """Axes with the upper left corner at (left, top)."""
        bottom = self.height - top - height
        return self.figure.add_axes(
            (left / WIDTH, bottom / self.height, width / WIDTH, height / self.height), **style
        )

    def text(self, left: float, top: float, words: str, **style: Any) -> None:
        """Words whose baseline begins at (left, top)."""
        self.figure.text(left / WIDTH, 1 - top / self.height, words, va="baseline", **style)


@contextlib.contextmanager
def style() -> Iterator[None]:
    """Our style and nothing of the user's, while a figure is drawn and written."""
    import matplotlib

    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_STYLE)
        yield


def png(figure: Any) -> bytes:
    """The content of a "png" file of a matplotlib figure, within `style`."""
    out = io.BytesIO()
    figure.savefig(out, format="png", dpi=150, metadata={"Software": None})
    return out.getvalue()


def render(draw: Callable[[], Page]) -> dict[str, bytes]:
    """The content of an "svg" and of a "png" file of what `draw` returns."""
    with style():
        figure = draw().figure
        svg = io.BytesIO()
        figure.savefig(svg, format="svg", metadata={"Date": None, "Creator": None})
        return {"svg": svg.getvalue(), "png": png(figure)}

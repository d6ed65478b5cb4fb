"""The scatter panels of the frontier figure: quality against KV-cache bytes, and against the number
of query heads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from mha_jax import config
from mha_jax.report import labels, look, pareto
from mha_jax.report.cells import CellRuns


def n_heads(cell: CellRuns) -> float:
    """Query heads of a layer; the mean over layers where they differ."""
    layers = cell.static.model.layers
    return sum(layer.n_heads for layer in layers) / len(layers)


def kv_bytes(cell: CellRuns) -> float:
    """KV-cache bytes per token, summed over layers; half a byte stands for none on a log axis."""
    return max(float(cell.runs[0].about["kv_bytes_per_token"]), 0.5)


def against_bytes(axes: Any, cells: Sequence[CellRuns]) -> None:
    """Quality against cache bytes. Cells of equal bytes stand side by side; a grey line joins cells
    that differ in kv heads only, and a step line is the Pareto front.
    """
    x = _beside(cells, kv_bytes, lambda c: c.label)
    _quality(axes, cells, x, kv_bytes)
    for joined in _series(
        cells, lambda c: (_shape(c, "n_heads", "d_head"), c.static.model.d_model, _rest(c))
    ):
        axes.plot(
            [x[c.label] for c in joined],
            [c.cell.mean for c in joined],
            color=look.SAME_HEADS,
            linewidth=1,
            zorder=1,
        )
    _front(axes, cells, x)
    dtypes = " and ".join(sorted({c.static.model.cache_dtype for c in cells}))
    axes.set_xlabel(f"KV cache, bytes per token ({dtypes}, all layers)")
    axes.set_title("Quality against KV cache", loc="left")
    labels.place(
        axes,
        [
            (x[c.label], _shown(c), c.label, look.FAMILIES[look.family(c)][0])
            for c in cells
            if c.cell.seeds
        ],
        look.SMALL,
    )


def against_heads(axes: Any, cells: Sequence[CellRuns]) -> None:
    """Quality against query heads. Solid lines join cells of equal n_heads * d_head, dashed ones
    cells of equal d_head.
    """
    x = _beside(cells, n_heads, lambda c: c.variant)
    _quality(axes, cells, x, n_heads)
    solid = _series(cells, lambda c: (c.variant, _width(c), c.static.model.d_model, _rest(c)))
    dashed = _series(cells, lambda c: (c.variant, _shape(c, "d_head"), _rest(c)))
    for style, all_joined in (("-", solid), ("--", dashed)):
        for joined in all_joined:
            axes.plot(
                [x[c.label] for c in joined],
                [c.cell.mean for c in joined],
                color=look.FAMILIES[look.family(joined[0])][0],
                linestyle=style,
                linewidth=1,
                alpha=0.7,
                zorder=1,
            )
    meanings = ["solid: equal n_heads × d_head"] if solid else []
    meanings += ["dashed: equal d_head"] if dashed else []
    axes.set_xlabel(f"query heads   ({', '.join(meanings)})" if meanings else "query heads")
    axes.set_title("Quality against number of heads", loc="left")
    shared = [c for c in cells if c.cell.seeds and look.family(c) in ("GQA", "other")]
    labels.place(
        axes,
        [(x[c.label], _shown(c), c.variant, look.FAMILIES[look.family(c)][0]) for c in shared],
        look.SMALL,
    )


def _quality(
    axes: Any, cells: Sequence[CellRuns], x: dict[str, float], exact: Callable[[CellRuns], float]
) -> None:
    """Axis, reference lines, seeds, intervals and means."""
    spec = cells[0].spec
    low, high = _limits(cells)
    axes.set_xscale("log", base=2)
    if spec.metric in look.LOG_METRICS:
        axes.set_yscale("log")
    axes.set_ylim(low, high)
    xs = sorted({exact(c) for c in cells})
    axes.set_xlim(xs[0] / 2**0.75, xs[-1] * 2**1.1)
    ticks = _ticks(xs)
    axes.set_xticks(ticks, [f"{value:,.6g}" if value >= 1 else "0" for value in ticks])
    axes.xaxis.minorticks_off()
    better = "higher" if spec.direction == "max" else "lower"
    axes.set_ylabel(f"{look.METRICS[spec.metric]}, test ({better} is better)")

    ceilings = {c.cell.ceiling for c in cells}
    if len(ceilings) == 1 and None not in ceilings:
        axes.axhline(ceilings.pop(), color="0.35", linestyle=look.CEILING, linewidth=1, zorder=0)
    else:
        for c in cells:
            if c.cell.ceiling is not None:
                ends = (x[c.label] / 2**0.18, x[c.label] * 2**0.18)
                at_ceiling = (c.cell.ceiling, c.cell.ceiling)
                axes.plot(
                    ends, at_ceiling, color="0.35", linestyle=look.CEILING, linewidth=1.2, zorder=0
                )
    if low < spec.chance < high:
        axes.axhline(spec.chance, color="0.35", linestyle=look.CHANCE, linewidth=1, zorder=0)
    if look.shows_solved(spec):
        axes.axhline(spec.solved_at, color="0.35", linestyle=look.SOLVED, linewidth=1, zorder=0)

    for c in cells:
        colour, marker, _ = look.FAMILIES[look.family(c)]
        at = x[c.label]
        if c.cell.ci_low is not None:
            axes.plot(
                (at, at),
                (max(c.cell.ci_low, low), c.cell.ci_high),
                color=colour,
                linewidth=1,
                alpha=0.6,
            )
        if c.cell.mean is not None:
            face = colour if c.cell.status == "converged" else "white"
            axes.plot(
                at, c.cell.mean, marker, color=colour, markerfacecolor=face, markersize=7, zorder=3
            )
        middle = (len(c.cell.seeds) - 1) / 2
        for i, seed in enumerate(c.cell.seeds):
            axes.plot(
                at * 2 ** (0.035 * (i - middle)),
                seed.test,
                ".",
                color="0.1",
                markersize=3,
                zorder=4,
            )
        if c.cell.diverged:
            worst = low if spec.direction == "max" else high
            axes.plot(at, worst, "x", color=colour, markersize=7, clip_on=False, zorder=5)


def _front(axes: Any, cells: Sequence[CellRuns], x: dict[str, float]) -> None:
    """The best that so many bytes buy, up to the right end of the axis."""
    on_front = pareto.fronts(cells)
    places = sorted((x[c.label], _shown(c)) for c in cells if on_front[c.static_hash])
    if places:
        xs, ys = zip(*places, (axes.get_xlim()[1], places[-1][1]), strict=True)
        axes.plot(xs, ys, drawstyle="steps-post", color=look.FRONT, linewidth=1.5, zorder=1)


def _limits(cells: Sequence[CellRuns]) -> tuple[float, float]:
    """Limits of the quality axis: all seeds, and the reference lines where they do not squeeze the
    data.
    """
    spec = cells[0].spec
    values = [seed.test for c in cells for seed in c.cell.seeds]
    values += [c.cell.ceiling for c in cells if c.cell.ceiling is not None]
    ends = [end for c in cells for end in (c.cell.ci_low, c.cell.ci_high) if end is not None]
    if spec.metric in look.LOG_METRICS:
        logs = [math.log10(max(v, 1e-12)) for v in [*values, spec.chance]]
        pad = 0.08 * (max(logs) - min(logs)) + 0.1
        return 10 ** (min(logs) - pad), 10 ** (max(logs) + pad)
    if spec.direction == "max":
        values.append(spec.chance)
    span = max(values) - min(values) or 0.1 * abs(values[0]) or 1.0
    # Wide intervals may ask for half as much room again, not for all of it: two seeds can have one
    # of any width.
    low = max(min([*values, *ends]), min(values) - 0.5 * span)
    high = min(max([*values, *ends]), max(values) + 0.5 * span)
    low, high = low - 0.08 * span, high + 0.16 * span
    # An interval may reach beyond what the metric can be; the axis does not.
    if spec.metric in ("accuracy", "r2"):
        high = min(high, 1.08)
    return (max(low, -0.04) if spec.metric == "accuracy" else low), high


def _shown(cell: CellRuns) -> float:
    assert cell.cell.mean is not None
    return cell.cell.mean


def _beside(
    cells: Sequence[CellRuns], exact: Callable[[CellRuns], float], kind: Callable[[CellRuns], str]
) -> dict[str, float]:
    """x of each cell: its exact value, moved a little so that different kinds at one value stand
    side by side.
    """
    kinds = list(dict.fromkeys(kind(c) for c in cells))
    out = {}
    for c in cells:
        here = [k for k in kinds if any(kind(d) == k and exact(d) == exact(c) for d in cells)]
        step = min(0.16, 0.6 / len(here))
        out[c.label] = exact(c) * 2 ** (step * (here.index(kind(c)) - (len(here) - 1) / 2))
    return out


def _series(cells: Sequence[CellRuns], key: Callable[[CellRuns], Any]) -> list[list[CellRuns]]:
    """Cells with equal keys, from two up, in head and byte order."""
    out: dict[str, list[CellRuns]] = {}
    for c in sorted(cells, key=lambda c: (n_heads(c), kv_bytes(c))):
        if c.cell.mean is not None:
            out.setdefault(repr(key(c)), []).append(c)
    return [joined for joined in out.values() if len(joined) > 1]


def _shape(cell: CellRuns, *fields: str) -> list[list[int]]:
    return [[getattr(layer, f) for layer in cell.static.model.layers] for f in fields]


def _width(cell: CellRuns) -> list[int]:
    return [layer.n_heads * layer.d_head for layer in cell.static.model.layers]


def _ticks(values: Sequence[float]) -> list[float]:
    """The values whose tick labels do not touch; powers of two are kept first."""
    room = 0.09 * (math.log2(values[-1] / values[0]) + 1.85)
    kept: list[float] = []
    for value in sorted(values, key=lambda v: (not math.log2(v).is_integer(), v)):
        if all(abs(math.log2(value / other)) >= room for other in kept):
            kept.append(value)
    return sorted(kept)


def _rest(cell: CellRuns) -> Any:
    """The static config without what a change of heads may bring with it."""
    static = config.to_json(cell.static)
    del static["model"]["d_model"]
    varies = ("n_heads", "n_kv_heads", "d_head", "d_ff")
    for layer in static["model"]["layers"]:
        for field in varies:
            del layer[field]
    start = cell.static.start
    if start is not None:
        static["start"] = [start.merge, start.align, start.keep, cell.static.steps_before]
    return static

"""The Pareto front: against another way to say it, and where it is told and drawn."""

import csv
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mha_jax import report, store
from mha_jax.report import cells, look, panels, pareto
from tests.synthetic import make_cell, make_run, static


def place(i: int, kept: int, mean: float, **fields: Any) -> Any:
    """What of a cell the front is made of."""
    told = {"status": "converged", "success_rate": None, **fields}
    return SimpleNamespace(
        static_hash=str(i),
        static=SimpleNamespace(task=told.pop("task", "a")),
        spec=SimpleNamespace(direction=told.pop("direction", "max")),
        runs=(SimpleNamespace(about={"kv_bytes_resident": kept}),),
        cell=SimpleNamespace(mean=mean, **told),
    )


@pytest.mark.parametrize("direction", ["max", "min"])
def test_the_front_is_what_no_budget_can_better(direction: str) -> None:
    """On it is who is the best of all that fit into its bytes, and the cheapest of all as good."""
    rng = random.Random(0)
    for _ in range(200):
        n = rng.randint(1, 7)
        points = [(rng.randint(1, 4), rng.randint(1, 4)) for _ in range(n)]  # ties are common
        sign = 1 if direction == "max" else -1
        want = {
            str(i): good == max(g for b, g in points if b <= kept)
            and kept == min(b for b, g in points if g >= good)
            for i, (kept, good) in enumerate(points)
        }
        gathered = [place(i, b, sign * g, direction=direction) for i, (b, g) in enumerate(points)]
        assert pareto.fronts(gathered) == want


def test_who_takes_part() -> None:
    """Only converged cells, each against its own task's; those that solve it are equally good."""
    gathered = [
        place(0, 8, 0.999, success_rate=1.0),
        place(1, 16, 1.0, success_rate=1.0),
        place(2, 4, 1.0, status="unconverged"),
        place(3, 4, 0.6, success_rate=0.0),
        place(4, 4, 0.7, success_rate=0.0, task="b"),
        place(5, 2, 0.1, status="unfinished", task="b"),
    ]
    want = {"0": True, "1": False, "2": None, "3": True, "4": True, "5": None}
    assert pareto.fronts(gathered) == want


def test_the_front_is_in_the_table_and_in_the_figure(tmp_path: Path) -> None:
    """R^2 at its ceiling is converged: .5 at 256 bytes a token, 1 at 512; .4 at 512 is beaten."""
    for n, k, ceiling in ((8, 4, 0.5), (8, 8, 1.0), (4, 4, 0.4)):
        make_cell(tmp_path, static("taps", n, k), [ceiling] * 3, ceiling=ceiling)
    make_run(tmp_path, static("taps", 2), 0.99)
    report.make(tmp_path, lambda line: None)
    with (tmp_path / "frontier.csv").open(newline="") as file:
        rows = {row["cell_label"]: row["pareto"] for row in csv.DictReader(file)}
    assert rows == {
        **{"8 heads, GQA-4": "true", "8 heads, MHA": "true"},
        **{"4 heads, MHA": "false", "2 heads, MHA": ""},
    }
    svg = (tmp_path / "figures" / "frontier.svg").read_text()
    assert "Pareto front of the converged" in svg

    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    drawn = Figure(figsize=(5, 3))
    FigureCanvasAgg(drawn)
    axes = drawn.add_subplot()
    panels.against_bytes(axes, cells.gather(store.read_sweep(tmp_path)[0]))
    (line,) = (one for one in axes.lines if one.get_color() == look.FRONT)
    assert list(line.get_ydata()) == [0.5, 1.0, 1.0] and line.get_drawstyle() == "steps-post"
    first, second, end = line.get_xdata()
    assert first == pytest.approx(256, rel=0.3) and second == pytest.approx(512, rel=0.3)
    assert end == axes.get_xlim()[1]


def test_without_a_converged_cell_there_is_none(tmp_path: Path) -> None:
    make_run(tmp_path, static("taps", 2), 0.99)
    report.make(tmp_path, lambda line: None)
    assert "Pareto" not in (tmp_path / "figures" / "frontier.svg").read_text()


def test_labels_and_families(tmp_path: Path) -> None:
    """A switch that is off goes without saying; what stands behind a variant is no family."""
    for model in ({}, {"gate": True}, {"share": "kv"}, {"kv_quant": "int8"}):
        make_run(tmp_path, static("copy", 4, model=model), 0.5)
    gathered = {c.label: look.family(c) for c in cells.gather(store.read_sweep(tmp_path)[0])}
    assert gathered == dict.fromkeys(
        ("4 heads, MHA", "4 heads, MHA, gate True", "4 heads, MHA, share kv", "4 heads, MHA, int8"),
        "MHA",
    )

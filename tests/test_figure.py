"""The frontier figure: what is on it, and that the same runs give the same bytes.

Texts are read from the SVG, in which matplotlib writes each string as a comment above its glyphs.
"""

import re
import warnings
from pathlib import Path

import matplotlib
import numpy as np
import pytest

from mha_jax import report, store
from mha_jax.report import cells, figure, labels, look, maps, panels, tables
from tests.synthetic import make_run, static

RELATIONS = {
    (1, 1): 0.5,
    (2, 2): 0.7,
    (4, 4): 1.0,
    (8, 8): 1.0,
    (4, 1): 1.0,
    (8, 1): 0.99,
    (16, 1): 0.6,
}


def relations(root: Path, shapes=tuple(RELATIONS), lrs=(3e-3,), seeds=(0, 1)) -> None:
    for n, k in shapes:
        for lr in lrs:
            for seed in seeds:
                score = RELATIONS[n, k] - 0.001 * seed
                mass = [[0.9 if r == i % 4 else 0.02 for r in range(4)] for i in range(n)]
                make_run(root, static("relations", n, k), [score] * 4, seed=seed, lr=lr, mass=mass)


def four_tasks(root: Path) -> None:
    shapes = [(n, k) for n in (1, 2, 4, 8) for k in (1, 2, 4, 8) if k <= n][:9]
    for i, (n, k) in enumerate(shapes):
        mass = [[0.1, 0.2, 0.3, 0.4]] * n
        make_run(root, static("relations", n, k), [i / 9] * 4, mass=mass)
        make_run(root, static("attr", n, k), i / 9, mass=mass)
        make_run(root, static("taps", n, k), i / 9, ceiling=0.95, mass=mass)
        make_run(root, static("d_retrieval", n, k, 8), 10.0**-i, mass=mass)


def draw(root: Path, told: list[str] | None = None) -> str:
    """The figure's SVG; any line told is an error unless it is asked for."""
    lines = [] if told is None else told
    written = report.make(root, lines.append)
    assert told is not None or not lines, lines
    assert written[-1].name == "frontier.png"
    assert written[-1].read_bytes().startswith(b"\x89PNG")
    return written[-2].read_text()


def texts(svg: str) -> list[str]:
    return [re.sub(r"\s+", " ", text).strip() for text in re.findall(r"<!-- (.*?) -->", svg, re.S)]


def test_one_task(tmp_path: Path) -> None:
    relations(tmp_path / "demo")
    words = texts(draw(tmp_path / "demo"))
    for label in ("1 head, MHA", "2 heads, MHA", "4 heads, MQA", "16 heads, MQA"):
        assert words.count(label) == 2, label  # beside its point, and in the table of answers
    assert "one learning rate, 2 seeds: an illustration" in words
    assert "accuracy, test (higher is better)" in words
    assert "KV cache, bytes per token (float32, all layers)" in words
    assert "Accuracy of each answer" in words and "0.700" in words
    assert "hollow: not shown to be converged" in words
    assert any(word.startswith("parameters not matched") for word in words)
    assert any(word.endswith("(seed 0)") for word in words)
    assert {"prev", "class", "word", "delimiter", "512", ".90"} <= set(words)


def test_the_same_runs_give_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever style the user has set, and whatever random state."""
    relations(tmp_path / "demo", shapes=((2, 2), (4, 1)))
    svg = draw(tmp_path / "demo")
    png = (tmp_path / "demo" / "figures" / "frontier.png").read_bytes()
    monkeypatch.setitem(matplotlib.rcParams, "axes.labelsize", 30.0)
    np.random.default_rng()
    assert draw(tmp_path / "demo") == svg
    assert (tmp_path / "demo" / "figures" / "frontier.png").read_bytes() == png
    assert matplotlib.rcParams["axes.labelsize"] == 30.0
    assert "<dc:date>" not in svg and "atplotlib v" not in svg


def test_four_tasks(tmp_path: Path) -> None:
    four_tasks(tmp_path)
    words = texts(draw(tmp_path))
    for task in ("attr", "d_retrieval", "relations", "taps"):
        assert f"Task: {task}" in words
    assert words.count("one learning rate, 1 seed: an illustration") == 4
    assert "NMSE, test (lower is better)" in words and "R², test (higher is better)" in words
    assert "best possible (ceiling)" in words and "counts as solved" in words


@pytest.mark.parametrize("task", ["text", "copy", "histogram"])
def test_a_single_cell(tmp_path: Path, task: str) -> None:
    make_run(tmp_path, static(task, 1), 0.75, mass=[[0.5]] if task == "copy" else None)
    words = texts(draw(tmp_path))
    assert "1 head, MHA" in words and "Where each head looks" not in words


def test_text_says_that_lower_is_better(tmp_path: Path) -> None:
    for n in (1, 4):
        for seed in (0, 1):
            make_run(
                tmp_path,
                static("text", n, n_layers=2),
                3 - 0.02 * n + 0.03 * seed,
                seed=seed,
                mass=[[0.1, 0.2]] * n,
            )
    words = texts(draw(tmp_path))
    assert "bits per byte, test (lower is better)" in words
    assert "l1.n3" in words and "previous" in words


def test_runs_that_ended_badly_are_on_the_figure(tmp_path: Path) -> None:
    relations(tmp_path, shapes=((2, 2), (4, 4)))
    make_run(tmp_path, static("relations", 2), seed=2, status="diverged")
    for seed in (0, 1):
        make_run(tmp_path, static("relations", 8), seed=seed, status="failed")
    make_run(tmp_path, static("relations", 8, 1), status="unfinished")
    make_run(tmp_path, static("copy", 8, 1), status="unfinished")
    words = texts(draw(tmp_path))
    assert "no finished run of: copy" in words and "Task: copy" not in words
    assert "not drawn: 8 heads, MHA (2 failed); 8 heads, MQA (1 unfinished)" in words
    assert "diverged" in words


def test_without_a_finished_run_there_is_no_figure(tmp_path: Path) -> None:
    make_run(tmp_path, static("copy", 1), status="unfinished")
    told: list[str] = []
    written = report.make(tmp_path, told.append)
    assert told == [f"{tmp_path}: no finished run, so there is no figure yet"]
    assert {path.suffix for path in written} == {".csv", ".txt"}
    assert not (tmp_path / "figures").exists()


@pytest.mark.parametrize(
    ("n_lrs", "n_seeds", "want"),
    [
        (1, 2, "one learning rate, 2 seeds: an illustration"),
        (4, 1, "four learning rates, 1 seed: an illustration"),
        (1, 5, "one learning rate, 5 seeds: an illustration"),
        (3, 5, "three learning rates, 5 seeds"),
        (6, 6, "6 learning rates, 6 seeds"),
    ],
)
def test_how_much_evidence(tmp_path: Path, n_lrs: int, n_seeds: int, want: str) -> None:
    lrs = [1e-3 * 2**i for i in range(n_lrs)]
    relations(tmp_path, ((4, 4),), lrs, range(n_seeds))
    gathered = cells.gather(store.read_sweep(tmp_path)[0])
    assert figure.illustration(gathered) == want


def test_cells_that_differ_in_evidence(tmp_path: Path) -> None:
    relations(tmp_path, ((4, 4),), (1e-3, 3e-3, 1e-2), range(6))
    relations(tmp_path, ((2, 2),), (1e-3, 3e-3), range(4))
    gathered = cells.gather(store.read_sweep(tmp_path)[0])
    assert figure.illustration(gathered) == (
        "two to three learning rates, 4 to 6 seeds: an illustration"
    )


def axes_of(root: Path, panel) -> object:
    """The axes of one panel, drawn alone."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    drawn = Figure(figsize=(5, 3))
    FigureCanvasAgg(drawn)
    axes = drawn.add_subplot()
    panel(axes, cells.gather(store.read_sweep(root)[0]))
    return axes


def markers(axes) -> dict[tuple[float, float], str]:
    """Face colour of each mean."""
    lines = [line for line in axes.lines if line.get_markersize() == 7 and line.get_marker() != "x"]
    return {
        (float(x.get_xdata()[0]), float(x.get_ydata()[0])): x.get_markerfacecolor() for x in lines
    }


def test_only_converged_cells_are_filled(tmp_path: Path) -> None:
    relations(tmp_path, ((4, 4), (2, 2)), (1e-3, 3e-3, 1e-2), (0, 1))
    faces = {y: face for (_, y), face in markers(axes_of(tmp_path, panels.against_heads)).items()}
    assert faces == {0.9995: look.FAMILIES["MHA"][0], 0.6995: "white"}


def test_seeds_means_and_interval(tmp_path: Path) -> None:
    relations(tmp_path, ((2, 2),))
    axes = axes_of(tmp_path, panels.against_bytes)
    dots = sorted(float(x.get_ydata()[0]) for x in axes.lines if x.get_marker() == ".")
    assert dots == pytest.approx([0.699, 0.7])
    bars = [list(line.get_ydata()) for line in axes.lines if len(line.get_ydata()) == 2]
    # t(0.975, 1) = 12.706; half the distance of two seeds is their standard error.
    assert [0.6995 - 12.706 * 0.0005, 0.6995 + 12.706 * 0.0005] in [
        pytest.approx(b, abs=1e-6) for b in bars
    ]
    assert axes.get_xscale() == "log" and axes.get_xlim()[0] < 512 < axes.get_xlim()[1]


def test_cells_of_equal_bytes_stand_side_by_side(tmp_path: Path) -> None:
    relations(tmp_path)
    places = sorted(x for x, _ in markers(axes_of(tmp_path, panels.against_bytes)))
    assert len(set(places)) == 7 and sum(300 < x < 900 for x in places) == 4


def test_a_mixer_without_a_cache_has_a_place(tmp_path: Path) -> None:
    relations(tmp_path, ((2, 2),))
    none = {"kv_bytes_per_token": 0, "variant": "recurrent"}
    make_run(tmp_path, static("relations", 2, d_head=8), [0.5] * 4, about=none)
    words = texts(draw(tmp_path))
    assert "0" in words and "512" in words and "2 heads, recurrent" in words
    assert "other mixers" in words


def test_errors_have_a_log_axis(tmp_path: Path) -> None:
    for n, k, score in ((1, 1, 5e-2), (4, 4, 3e-5), (4, 1, 4e-5)):
        make_run(tmp_path, static("d_retrieval", n, k, 8), score)
    axes = axes_of(tmp_path, panels.against_heads)
    low, high = axes.get_ylim()
    assert axes.get_yscale() == "log" and low < 3e-5 and high > 1
    make_run(tmp_path / "r2", static("taps", 2), 0.5, ceiling=0.54)
    assert axes_of(tmp_path / "r2", panels.against_heads).get_yscale() == "linear"


def test_head_map_is_that_of_the_lowest_seed_at_the_chosen_rate(tmp_path: Path) -> None:
    for lr, seed, test in ((1e-3, 0, 0.1), (3e-3, 3, 0.9), (3e-3, 2, 0.9), (1e-2, 0, 0.1)):
        mass = [[lr * 100 + seed / 100, 0, 0, 0]] * 4
        make_run(tmp_path, static("relations", 4, 2), [test] * 4, seed=seed, lr=lr, mass=mass)
    runs = store.read_sweep(tmp_path)[0]
    (one,), seed = maps.head_maps(cells.gather(runs), tables.head_rows(runs)[0])
    assert seed == "seed 2" and one.mass.shape == (4, 4)
    assert one.mass[0, 0] == pytest.approx(0.32)
    assert one.roles == ("prev", "class", "word", "delimiter")
    assert one.edges == (1.5,) and one.layer_edges == ()


def test_labels_cover_neither_points_nor_each_other() -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    drawn = Figure(figsize=(4.3, 2.6))
    FigureCanvasAgg(drawn)
    axes = drawn.add_axes((0.1, 0.1, 0.85, 0.85))
    axes.set_xlim(0, 10)
    axes.set_ylim(0, 1.2)
    points = [(3 + 0.4 * i, 1.0, f"{i + 10} heads, MQA", "k") for i in range(6)] + [
        (9.9, 0.5, "8 heads, MHA", "k")
    ]
    labels.place(axes, points, 7)
    drawn.canvas.draw()
    renderer = drawn.canvas.get_renderer()
    # The extent of an annotation includes the line to its point; its background does not.
    boxes = [text.get_bbox_patch().get_window_extent(renderer) for text in axes.texts]
    assert len(boxes) == 7
    for i, a in enumerate(boxes):
        assert not any(a.overlaps(b) for b in boxes[i + 1 :])
        frame = axes.get_window_extent(renderer)
        assert frame.x0 <= a.x0 and a.x1 <= frame.x1 and frame.y0 <= a.y0 and a.y1 <= frame.y1
        assert not any(a.contains(*axes.transData.transform(point[:2])) for point in points)


def test_no_warning_from_any_figure(tmp_path: Path) -> None:
    """A figure is made at the end of hours of work: nothing on the way may raise."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for i, (test, n_seeds) in enumerate([(0.0, 1), (1.0, 2), (-5.0, 2), (1e9, 1)]):
            root = tmp_path / str(i)
            for task in ("taps", "copy", "text", "d_retrieval"):
                for seed in range(n_seeds):
                    make_run(root, static(task, 2), test, seed=seed)
            draw(root)

"""Head scores over training time: the steps of rise, the tables, the figure."""

import csv
import json
import re
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from mha_jax import load_sweep, report, store
from mha_jax.config import StaticConfig
from mha_jax.report import cells, over_time, training
from mha_jax.report.over_time import Key
from tests.synthetic import make_run, static

STEPS = tuple(range(0, 3001, 500))
RISES = (0.0, 0.05, 0.2, 0.6, 0.95, 0.9, 0.9)
FALLS = (0.0, 0.5, 0.8, 0.3, 0.1, 0.0, -0.1)
LOSS = (None, 4.0, 3.8, 2.0, 1.0, 1.0, 0.0)  # nothing is trained before step 0


def read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def silent(line: str) -> None:
    raise AssertionError(line)


def followed_run(
    root: Path, spec: StaticConfig, heads: dict[str, Sequence[float]], **fields: Any
) -> Path:
    """A run directory with scores over time, by the name that follows "heads/"."""
    directory = make_run(root, spec, 0.75, **fields)
    with (directory / "metrics.jsonl").open("w") as file:
        for i, step in enumerate(STEPS):
            row: dict[str, Any] = {f"heads/{name}": values[i] for name, values in heads.items()}
            metric = spec.task.spec.metric
            rows = [{f"eval/{metric}": 0.2 + 0.1 * i}, row]
            rows += [{"train/loss": LOSS[i]}] if LOSS[i] is not None else []
            file.writelines(json.dumps({"step": step} | one) + "\n" for one in rows)
    return directory


def values(numbers: Sequence[float]) -> list[tuple[int, float]]:
    return list(zip(STEPS, numbers, strict=True))


@pytest.mark.parametrize(
    ("numbers", "tau", "step"),
    [
        (RISES, 0.5, 1500),
        (FALLS, 0.5, 500),  # reached exactly, and lost again
        ((0.1,) * 7, 0.5, None),
        ((0.7,) * 7, 0.5, 0),  # risen before the first step
        ((0.0,) * 6 + (0.5,), 0.5, 3000),
    ],
)
def test_step_of_rise(numbers: Sequence[float], tau: float, step: int | None) -> None:
    assert over_time.step_of_rise(values(numbers), tau) == step


def test_nothing_recorded_never_rises() -> None:
    assert over_time.step_of_rise([], 0.5) is None


def test_drop_share() -> None:
    loss = [(10, 4.0), (20, 3.0), (30, 1.0), (40, 0.0)]
    assert over_time.drop_share(loss, 20, 30) == 0.5
    assert over_time.drop_share(loss, 29, 40) == 0.75  # the newest record at a step: that of 20
    assert over_time.drop_share(loss, 20, 20) == 0
    assert over_time.drop_share(loss, 20, None) is over_time.drop_share(loss, None, 20) is None
    assert over_time.drop_share(loss, 5, 30) is None  # no loss is known there
    assert over_time.drop_share([], 5, 30) is None
    assert over_time.drop_share([(10, 1.0), (20, 0.5), (30, 1.0)], 10, 20) is None  # did not fall


def test_head_curves_come_in_the_order_of_the_heads() -> None:
    records = [
        {"step": 20, "heads/l0.n10/role/a": 0.2, "heads/l0.n2/role/a": 0.3},
        {"step": 10, "heads/l0.n2/role/a": 0.1, "train/loss": 1.0},  # n10 is undefined there
    ]
    assert over_time.head_curves(records) == {
        Key(0, 2, "role/a"): [(10, 0.1), (20, 0.3)],
        Key(0, 10, "role/a"): [(20, 0.2)],
    }
    assert list(over_time.head_curves(records)) == [Key(0, 2, "role/a"), Key(0, 10, "role/a")]


def test_leading_scores() -> None:
    heads = {
        Key(0, 0, "role/a"): values(FALLS),  # two roles, one after the other
        Key(0, 0, "role/b"): values(RISES),
        Key(0, 0, "offset/-1"): values((1.0,) * 7),  # what it does is said by its roles
        Key(0, 1, "role/a"): values((0.4,) * 7),  # no role: the highest, whatever it is
        Key(0, 1, "offset/-1"): values((0.45,) * 7),
        Key(0, 1, "normalised_entropy"): values((0.9,) * 7),
        Key(0, 1, "score_variance"): values((8.0,) * 7),
        Key(1, 0, "same_token"): values((0.3,) * 7),  # equal: the role
        Key(1, 0, "role/a"): values((0.3,) * 7),
    }
    assert over_time.leading(heads) == {
        (0, 0): [Key(0, 0, "role/b"), Key(0, 0, "role/a")],
        (0, 1): [Key(0, 1, "offset/-1")],
        (1, 0): [Key(1, 0, "role/a")],
    }


def test_tables(tmp_path: Path) -> None:
    heads = {
        "l0.n0/role/previous": RISES,
        "l0.n0/normalised_entropy": RISES,
        "l0.n0/score_variance": RISES,
        "l0.n1/role/previous": FALLS,
    }
    run = followed_run(tmp_path / "demo", static("copy", 2), heads, seed=3)
    report.make(tmp_path / "demo", silent)
    rows = read(tmp_path / "demo" / "over_time.csv")
    assert tuple(rows[0]) == ("run", "seed", "step", "layer", "head", "score", "value")
    assert len(rows) == 4 * len(STEPS)
    at = {(row["head"], row["score"], row["step"]): row["value"] for row in rows}
    assert at["1", "role/previous", "1000"] == "0.8"
    assert {(row["run"], row["seed"], row["layer"]) for row in rows} == {(run.name[-10:], "3", "0")}

    rises = read(tmp_path / "demo" / "rises.csv")
    assert [(row["head"], row["score"]) for row in rises] == [(n, "role/previous") for n in "01"]
    names = [f"step_of_rise_at_{tau}" for tau in (0.1, 0.5, 0.9)]
    assert [[row[name] for name in names] for row in rises] == [
        ["1000", "1500", "2000"],
        ["500", "500", ""],
    ]
    assert [(row["peak"], row["last"]) for row in rises] == [("0.95", "0.9"), ("0.8", "-0.1")]
    assert [row["drop_share"] for row in rises] == ["0.7", ""]  # (3.8 - 1) / (4 - 0)
    assert rises[0]["cell"] == "2 heads, MHA" and rises[0]["seed"] == "3"
    assert len(load_sweep(tmp_path / "demo").rises()) == len(rises)


def test_runs_that_chose_a_rate_are_not_told_of(tmp_path: Path) -> None:
    heads = {"l0.n0/role/previous": RISES}
    about = {"purpose": "selection"}
    followed_run(tmp_path, static("copy", 1), heads, seed=7, about=about, label="chose")
    followed_run(tmp_path, static("copy", 1), heads, seed=0)
    report.make(tmp_path, silent)
    for name in ("over_time.csv", "rises.csv"):
        assert {row["seed"] for row in read(tmp_path / name)} == {"0"}


@pytest.mark.parametrize("records", ["", '{"step": 0, "heads/l0.n0/role/previous": 0.1}\n'])
def test_without_scores_over_time_there_is_no_file(tmp_path: Path, records: str) -> None:
    run = make_run(tmp_path, static("copy", 1), 0.5)
    with (run / "metrics.jsonl").open("a") as file:
        file.write(records)
    written = [path.name for path in report.make(tmp_path, silent)]
    assert "frontier.png" in written
    for name in ("over_time.csv", "rises.csv", "figures/training.png", "figures/training.svg"):
        assert not (tmp_path / name).exists() and Path(name).name not in written


def test_a_torn_record_is_told_of(tmp_path: Path) -> None:
    run = followed_run(tmp_path, static("copy", 1), {"l0.n0/role/previous": RISES})
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 3000, "heads/l0.n0/ro')
    told: list[str] = []
    report.make(tmp_path, told.append)
    assert len(told) == 1 and "line skipped" in told[0]
    assert len(read(tmp_path / "over_time.csv")) == len(STEPS)


def figure(root: Path) -> list[str]:
    """The texts of a sweep's figure, in the order in which they are drawn."""
    gathered = cells.gather(store.read_sweep(root)[0])
    svg = training.draw(over_time.followed(gathered)[0])["svg"].decode()
    return [re.sub(r"\s+", " ", text).strip() for text in re.findall(r"<!-- (.*?) -->", svg, re.S)]


def test_figure(tmp_path: Path) -> None:
    """Two layers of heads, two seeds of which only one rises, and the same bytes again."""
    spec = static("induction", 2, n_layers=2)
    rest = {f"l{i}.n{n}/role/induction": (0.1,) * 7 for i in (0, 1) for n in (0, 1)}
    heads = rest | {"l1.n1/role/induction": RISES, "l0.n0/role/previous": FALLS}
    followed_run(tmp_path, spec, heads, seed=0)
    followed_run(tmp_path, spec, rest | {"l0.n0/role/previous": RISES}, seed=1)
    words = figure(tmp_path)
    told = "steps to .5: induction 1,500, in 1 of 2; previous 500 (500 to 1,500)"
    assert re.sub(r"\s+", " ", " ".join(words)).count(told) == 1
    assert {"0 previous", "1 induction", "score, layer 0", "score, layer 1"} <= set(words)
    assert {"train loss", "accuracy", "steps", "Task: induction", "2 heads, MHA"} <= set(words)
    written = report.make(tmp_path, silent)
    assert [path.name for path in written[-2:]] == ["training.svg", "training.png"]
    before = written[-2].read_bytes()
    assert report.make(tmp_path, silent) == written and written[-2].read_bytes() == before


@pytest.mark.parametrize("ends", [[0.5], [0.1, 0.8], [0.4, 0.41, 0.5], [0.0] * 8, [1.06] * 5])
def test_names_of_lines_do_not_touch(ends: list[float]) -> None:
    heights = training.label_heights(ends)
    gaps = [b - a for a, b in pairwise(heights)]
    assert all(gap > training.TEXT * 0.999 for gap in gaps)  # rounding
    assert heights[0] > training.LOWEST and heights[-1] < training.HIGHEST
    apart = all(b - a > training.TEXT for a, b in pairwise(ends)) and max(ends) < 1
    assert heights == (pytest.approx(ends) if apart else heights)


def many_cells(root: Path) -> None:
    for d_head in range(1, 12):
        followed_run(root, static("copy", 1, d_head=d_head), {"l0.n0/role/previous": RISES})


def many_heads(root: Path) -> None:
    heads = {f"l0.n{n}/role/previous": (0.01 * n,) * 7 for n in range(10)}
    followed_run(root, static("copy", 10, d_head=4), heads)


@pytest.mark.parametrize(
    ("make", "told", "missing"),
    [
        (many_cells, "2 further cells are left out: see over_time.csv", "1 head, MHA, d_head 11"),
        (many_heads, "shown: 8 of 10 heads, those that peak highest", "1 previous"),
    ],
)
def test_limits_of_the_figure(
    tmp_path: Path, make: Callable[[Path], None], told: str, missing: str
) -> None:
    make(tmp_path)
    words = figure(tmp_path)
    assert told in words and missing not in words

"""comparisons.csv: which cells are compared, and with which others p is adjusted."""

import csv
import dataclasses
from pathlib import Path

import pytest

from mha_jax import config, store
from mha_jax.report import cells, pairs, tables
from mha_jax.report.compare import holm
from tests.synthetic import make_cell, static

SOLVED = [1.0, 0.999, 1.0, 0.998, 1.0]
BOUND = [0.538, 0.536, 0.537, 0.538, 0.536]  # at a ceiling of .54


def read(root: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(written(root).splitlines()))


def written(root: Path) -> str:
    """As `report.make` writes it, without the figure."""
    runs, _ = store.read_sweep(root)
    return tables.to_csv(pairs.comparison_rows(cells.gather(runs)), pairs.COLUMNS)


def with_budget(spec: config.StaticConfig, n_steps: int, batch_size: int) -> config.StaticConfig:
    train = dataclasses.replace(spec.train, n_steps=n_steps, batch_size=batch_size)
    return dataclasses.replace(spec, train=train)


def other_seed(spec: config.StaticConfig) -> config.StaticConfig:
    return dataclasses.replace(spec, task=dataclasses.replace(spec.task, seed=1))


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, str]]:
    """Relations: three cells that are ranked and one that is not; with other constants, two that
    are. Text: two that are not.
    """
    root = tmp_path_factory.mktemp("demo")
    make_cell(root, static("relations", 2), BOUND, ceiling=0.54)
    make_cell(root, static("relations", 4), SOLVED)
    make_cell(root, static("relations", 8), SOLVED[::-1])
    make_cell(root, static("relations", 1), [0.3, 0.31, 0.33, 0.32, 0.3])
    make_cell(root, other_seed(static("relations", 2)), BOUND, ceiling=0.54)
    make_cell(root, other_seed(static("relations", 4)), SOLVED)
    make_cell(root, static("text", 1), [2.9, 2.8, 2.9, 2.9, 2.8])
    make_cell(root, static("text", 2), [2.5, 2.4, 2.5, 2.5, 2.6])
    return read(root)


def test_every_pair_of_a_task(rows: list[dict[str, str]]) -> None:
    assert tuple(rows[0]) == pairs.COLUMNS
    found = [(r["task"], r["cell_a"][0], r["cell_b"][0]) for r in rows]
    heads = [("1", "2"), ("1", "4"), ("1", "8"), ("2", "4"), ("2", "8"), ("4", "8")]
    assert found == [("relations", a, b) for a, b in heads] + [
        ("relations", "2", "4"),
        ("text", "1", "2"),
    ]
    assert rows[0]["cell_a"] == "1 head, MHA" and rows[0]["n_pairs"] == "5"
    assert rows[0]["config_hash_b"] == rows[3]["config_hash_a"] == static_hash(2)
    assert [r["metric"] for r in rows] == ["accuracy"] * 7 + ["bits_per_byte"]


def static_hash(n_heads: int) -> str:
    return config.static_hash(static("relations", n_heads))


def test_verdicts(rows: list[dict[str, str]]) -> None:
    words = [r["verdict"] for r in rows]
    assert words[:3] == ["not ranked: A unverified (no_twin)"] * 3
    assert words[3:5] == ["B is better"] * 2
    assert words[5] == "not ranked: both solved"
    assert words[6] == "B is better"
    assert words[7] == "not ranked: A unverified (no_twin), B unverified (no_twin)"


def test_p_is_adjusted_over_the_ranked_pairs_of_a_task(rows: list[dict[str, str]]) -> None:
    ranked = rows[3:5]
    want = holm([float(r["p"]) for r in ranked])
    assert [float(r["p_holm"]) for r in ranked] == pytest.approx(want, rel=1e-4)
    assert {r["p_holm"] for r in rows[:3] + rows[5:6] + rows[7:]} == {""}
    assert rows[6]["p_holm"] == rows[6]["p"] != "0"
    assert all(float(r["ci_low"]) < float(r["mean_difference"]) for r in rows)


def test_only_cells_of_one_task_and_budget(tmp_path: Path) -> None:
    """The number of training sequences is the budget; another constant of the task is another."""
    specs = [
        with_budget(static("copy", 2), 1000, 64),
        with_budget(static("copy", 4), 2000, 32),
        with_budget(static("copy", 4), 2000, 64),
        other_seed(static("copy", 1)),
        static("copy", 1, length=20),
    ]
    for spec in specs:
        make_cell(tmp_path, spec, [0.5])
    (row,) = read(tmp_path)
    assert (row["cell_a"], row["cell_b"][:7]) == ("2 heads, MHA", "4 heads")
    assert row["config_hash_b"] == config.static_hash(specs[1])


@pytest.mark.parametrize(
    ("doubled", "verdict"),
    [(0.801, "B is better"), (0.808, "not ranked: a doubled budget would reorder them")],
)
def test_twins_take_part(tmp_path: Path, doubled: float, verdict: str) -> None:
    """Neither cell moves by .01, so both are converged, but together they move as far as they
    differ.
    """
    noise = [0.0, 0.001, -0.001, 0.0005, -0.0005]
    for n_heads, test, twin in ((2, 0.8, doubled), (4, 0.812, 0.807)):
        spec = static("copy", n_heads)
        make_cell(tmp_path, spec, [test + d for d in noise])
        twins = [twin - d for d in noise]
        make_cell(tmp_path, config.doubled(spec), twins, about={"purpose": "twin"})
    (row,) = read(tmp_path)
    assert row["verdict"] == verdict


def test_no_pair_leaves_a_header(tmp_path: Path) -> None:
    make_cell(tmp_path, static("copy", 1), [0.5])
    assert written(tmp_path) == ",".join(pairs.COLUMNS) + "\n"

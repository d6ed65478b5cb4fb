"""comparisons.csv: which cells are compared, and with which others p is adjusted."""

import csv
import dataclasses
import json
import math
from pathlib import Path

import pytest

from mha_jax import config, store
from mha_jax.report import cells, documents, order, pairs, tables
from mha_jax.report.compare import holm
from tests.synthetic import make_cell, make_run, static

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
    assert row["cell_a"] == "2 heads, MHA, 1000 steps"
    assert row["cell_b"] == "4 heads, MHA, 2000 steps, batch_size 32"
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


def test_cells_are_compared_under_each_policy_of_matching(tmp_path: Path) -> None:
    """The reference itself, which no policy changes, takes part under all of them."""
    values = [0.50, 0.52, 0.49, 0.51, 0.50]
    for n_kv_heads, match, ratio, d_ff in (
        (8, "none", 1.0, 64),
        (1, "none", 0.7, 64),
        (1, "d_ff", 1.0, 120),
        (2, "d_ff", 0.999, 110),
        (1, "d_model", 1.01, 65),
    ):
        spec = static("copy", 8, n_kv_heads)
        layer = dataclasses.replace(spec.model.layers[0], d_ff=d_ff)
        spec = dataclasses.replace(spec, model=dataclasses.replace(spec.model, layers=(layer,)))
        make_cell(tmp_path, spec, values, about={"match": match, "params_ratio": ratio})
    found = [(r["match"], r["cell_a"], r["cell_b"]) for r in read(tmp_path)]
    short = [(match, a.split(", ")[1], b.split(", ")[1]) for match, a, b in found]
    assert short == [
        ("none", "MHA", "MQA"),
        ("d_ff", "MHA", "GQA-2"),
        ("d_ff", "MHA", "MQA"),
        ("d_ff", "GQA-2", "MQA"),
        ("d_model", "MHA", "MQA"),
    ]


def told(root: Path) -> str:
    gathered = cells.gather(store.read_sweep(root)[0])
    return order.text(gathered, pairs.comparison_rows(gathered))


def test_the_order_says_which_steps_hold(tmp_path: Path) -> None:
    make_cell(tmp_path, static("relations", 2), BOUND, ceiling=0.54)
    make_cell(tmp_path, static("relations", 4), SOLVED)
    make_cell(tmp_path, static("relations", 8), [v - 0.001 for v in SOLVED])
    make_cell(tmp_path, static("relations", 1), [0.3, 0.31, 0.33, 0.32, 0.3])
    make_run(tmp_path, static("relations", 16), status="failed")
    make_run(tmp_path, static("copy", 1), 0.5)
    blocks = told(tmp_path).split("\n\n")
    assert blocks[0].splitlines() == [
        "copy (accuracy, higher is better)",
        "not ranked: 1 head, MHA 0.5 (one learning rate)",
    ]
    assert blocks[1].splitlines() == [
        "relations (accuracy, higher is better)",
        "  4 heads, MHA  0.9994",
        "    not ranked: both solved",
        "  8 heads, MHA  0.9984",
        "    better than the next by 0.46 (95 % interval 0.46 to 0.46)",
        "  2 heads, MHA  0.537",
        "not ranked: 1 head, MHA 0.312 (no result of twice the steps)",
        "no result: 16 heads, MHA (no finished run)",
    ]


def test_the_order_of_errors_is_that_of_their_decades(tmp_path: Path) -> None:
    """One seed with a large error has the worse mean, and is better on every other seed."""
    spec = static("d_retrieval", 4)
    low, high = [1e-3] * 4 + [0.12], [2e-2, 2.2e-2, 1.9e-2, 2.1e-2, 2e-2]
    for at, n_steps in ((spec, 3000), (spec, 6000)):
        make_cell(tmp_path, dataclasses.replace(at, train=_steps(at, n_steps)), low)
    other = static("d_retrieval", 3, d_head=16)
    for n_steps in (3000, 6000):
        make_cell(tmp_path, dataclasses.replace(other, train=_steps(other, n_steps)), high)
    lines = told(tmp_path).splitlines()
    assert lines[0] == "d_retrieval (NMSE, lower is better)"
    assert lines[1].split()[:2] == ["4", "heads,"] and float(lines[1].split()[-1]) > 0.0204
    assert lines[2].startswith("    not distinguishable")


def _steps(spec: config.StaticConfig, n_steps: int) -> config.TrainSpec:
    return dataclasses.replace(spec.train, n_steps=n_steps)


def test_a_step_that_is_seen_over_two(tmp_path: Path) -> None:
    """Neighbours differ by .03 with noise of .03; the ends by .06, which is seen."""
    noise = [0.03, -0.03, 0.02, -0.03, 0.01]
    for n_heads, mean, sign in ((1, 0.50, 0), (2, 0.53, 1), (4, 0.56, 0)):
        for n_steps in (3000, 6000):
            spec = static("copy", n_heads, n_steps=n_steps)
            make_cell(tmp_path, spec, [mean + sign * e for e in noise])
    text = told(tmp_path)
    assert text.count("not distinguishable") >= 2
    assert "  and 4 heads, MHA" in text and "is better than 1 head, MHA" in text


def test_documents_of_a_text(tmp_path: Path) -> None:
    """Bits per token of each document, mean over seeds; their bootstrap in comparisons.csv."""
    for n_heads, bits in ((1, 3.0), (2, 2.5)):
        spec = static("text", n_heads)
        make_cell(tmp_path, spec, [bits] * 2)
        for path in tmp_path.glob("*/summary.json"):
            summary = json.loads(path.read_text())
            if "documents" not in summary:
                nats = bits * math.log(2)
                summary["documents"] = {"b": [10 * nats, 10], "a": [40 * nats, 20]}
                path.write_text(json.dumps(summary))
    (row,) = read(tmp_path)
    assert row["n_documents"] == "2"
    assert float(row["documents_low"]) == pytest.approx(0.5)  # document b, drawn twice
    assert float(row["documents_high"]) == pytest.approx(1.0)
    found = documents.rows(cells.gather(store.read_sweep(tmp_path)[0]))
    assert [(r["cell"], r["document"], r["n_tokens"], r["n_seeds"]) for r in found] == [
        ("1 head, MHA", "a", 20, 2),
        ("1 head, MHA", "b", 10, 2),
        ("2 heads, MHA", "a", 20, 2),
        ("2 heads, MHA", "b", 10, 2),
    ]
    assert [r["bits"] for r in found] == pytest.approx([6, 3, 5, 2.5])
    assert told(tmp_path).splitlines() == [
        "text (bits per byte, lower is better)",
        "not ranked: 2 heads, MHA 2.5 (no result of twice the steps)",
        "    at this budget ahead of the next by 0.5 (95 % interval 0.5 to 0.5, over 2 documents"
        " 0.5 to 1); 0 is seen with 80% power",
        "not ranked: 1 head, MHA 3 (no result of twice the steps)",
    ]

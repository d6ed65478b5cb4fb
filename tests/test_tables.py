"""The tables: what they hold, and that nothing but the runs decides their bytes."""

import csv
import json
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from mha_jax import report
from mha_jax.report import tables
from mha_jax.report.intervals import wilson
from tests.synthetic import make_run, static

ROOT = Path(__file__).resolve().parent.parent
FIRST_COLUMNS = (
    "experiment, task, variant, n_layers, d_model, n_heads, n_kv_heads, d_head, d_ff, match, "
    "params_ratio, n_params, cache_dtype, kv_bytes_per_token, lr, n_lrs, lr_edge, n_seeds, "
    "n_steps, metric, mean, ci_low, ci_high, median, min, max, success_rate, success_low, "
    "success_high, steps_to_threshold, status, diverged, ceiling, config_hash, data_hash"
)
DETERMINISTIC = ("runs.csv", "frontier.csv", "comparisons.csv", "heads.csv")


def read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def silent(line: str) -> None:
    raise AssertionError(line)


def make_sweep(root: Path, order: random.Random | None = None, timing: float = 1.0) -> Path:
    """Two tasks, three learning rates, one diverged, one failed and one unfinished run."""
    todo = []
    for n, k in ((1, 1), (4, 4), (4, 1)):
        for i, lr in enumerate((1e-3, 3e-3, 1e-2)):
            for seed in (0, 1):
                test = [min(1.0, n / 4 + 0.001 * seed)] * 4
                status = "diverged" if (n, i, seed) == (1, 2, 1) else "done"
                todo.append((static("relations", n, k), test, seed, lr, status, [[0.25] * 4] * n))
    todo.append((static("text", 2, n_layers=2), 3.123456789, 0, 3e-3, "done", [[0.3, 0.1]] * 2))
    todo.append((static("text", 2, n_layers=2), None, 1, 3e-3, "failed", None))
    todo.append((static("text", 1), None, 0, 3e-3, "unfinished", None))
    if order:
        order.shuffle(todo)
    for spec, test, seed, lr, status, mass in todo:
        label = f"lr={lr},seed={seed}"
        make_run(
            root, spec, test, seed=seed, lr=lr, status=status, mass=mass, timing=timing, label=label
        )
    return root


def test_runs(tmp_path: Path) -> None:
    report.make(make_sweep(tmp_path / "demo"), silent)
    rows = read(tmp_path / "demo" / "runs.csv")
    assert len(rows) == 21
    status = [row["status"] for row in rows]
    assert [status.count(s) for s in ("done", "diverged", "failed", "unfinished")] == [18, 1, 1, 1]
    row = next(r for r in rows if r["task"] == "relations" and r["n_kv_heads"] != r["n_heads"])
    assert row["experiment"] == "demo" and row["variant"] == "MQA"
    assert row["label"] == "lr=0.001,seed=0" and len(row["hash"]) == len(row["group_hash"]) == 10
    assert (row["lr"], row["seed"], row["kv_bytes_per_token"]) == ("0.001", "0", "128")
    assert (row["test"], row["test/accuracy"], row["test/accuracy/word"]) == ("1", "1", "1")
    assert (row["solved"], row["residual"], row["metric"]) == ("true", "false", "accuracy")
    assert json.loads(row["task_params"])["n_classes"] == 6
    assert json.loads(row["overrides"]) == {"model.n_heads": 4}
    text = next(r for r in rows if r["task"] == "text" and r["status"] == "done")
    assert (text["test"], text["n_layers"], text["data_hash"]) == ("3.12346", "2", "c0ffee")
    assert (text["test/bits_per_byte"], text["test/accuracy"]) == ("3.12346", "")
    assert row["test/bits_per_byte"] == ""
    names = [name for name in row if "/" in name and not name.endswith("bits_per_byte")]
    assert names == sorted(names)
    failed = next(r for r in rows if r["status"] == "failed")
    assert failed["error"] == "out of memory" and failed["test"] == ""
    assert next(r for r in rows if r["status"] == "diverged")["diverged_at"] == "7"


def test_frontier(tmp_path: Path) -> None:
    report.make(make_sweep(tmp_path / "demo"), silent)
    rows = read(tmp_path / "demo" / "frontier.csv")
    header = ", ".join(rows[0])
    assert header.startswith(f"{FIRST_COLUMNS}, reason, cell_label, ")
    assert [row["cell_label"] for row in rows] == [
        *("1 head, MHA", "4 heads, MHA", "4 heads, MQA", "1 head, MHA", "2 heads, MHA"),
    ]
    one = rows[0]
    assert (one["n_lrs"], one["n_seeds"], one["n_runs"], one["n_diverged"]) == ("3", "2", "6", "1")
    assert one["diverged"] == "0" and one["success_rate"] == "0"
    assert (one["success_low"], one["success_high"]) == ("0", "0.65762")
    assert (rows[1]["success_low"], rows[1]["success_high"]) == ("0.34238", "1")
    assert rows[1]["status"] == "converged" and rows[1]["reason"] == "solved"
    assert rows[1]["mean/delimiter"] == "1"
    empty = rows[3]
    assert (empty["status"], empty["mean"], empty["n_unfinished"]) == ("unfinished", "", "1")
    assert rows[4]["success_rate"] == rows[4]["success_low"] == rows[4]["success_high"] == ""
    assert rows[4]["reason"] == "failed_runs" and rows[4]["ci_low"] == ""


def test_a_diverged_seed_is_a_failure_in_the_success_interval(tmp_path: Path) -> None:
    for seed in range(3):
        status = "diverged" if seed == 2 else "done"
        make_run(tmp_path, static("relations", 4), [1.0] * 4, seed=seed, status=status)
    (row,) = read_frontier(tmp_path)
    low, high = wilson(2, 3)
    assert row["success_rate"] == "0.666667"
    assert (row["success_low"], row["success_high"]) == (f"{low:.6g}", f"{high:.6g}")


def test_order_of_the_rows(tmp_path: Path) -> None:
    """Cells stay together, and what was swept rises."""
    for lr in (1e-2, 1e-3):
        for seed in (10, 2):
            for n_steps in (2000, 1000):
                make_run(tmp_path, static("copy", 2, n_steps=n_steps), 0.5, lr=lr, seed=seed)
    make_run(tmp_path, static("copy", 16), 0.5)
    make_run(tmp_path, static("copy", 2, 1), 0.5)
    report.make(tmp_path, silent)
    rows = read(tmp_path / "runs.csv")
    assert [row["variant"] for row in rows] == ["MHA"] * 9 + ["MQA"]
    assert [row["n_heads"] for row in rows] == ["2"] * 8 + ["16", "2"]
    for four in (rows[:4], rows[4:8]):
        assert len({row["group_hash"] for row in four}) == 1
        assert [(row["lr"], row["seed"]) for row in four] == [
            *(("0.001", "2"), ("0.001", "10"), ("0.01", "2"), ("0.01", "10")),
        ]


def test_layers_that_differ(tmp_path: Path) -> None:
    layers = [static("copy", n).model.layers[0] for n in (4, 4, 2)]
    make_run(tmp_path, static("copy", 4, model={"layers": tuple(layers)}), 0.5)
    (row,) = read_frontier(tmp_path)
    assert (row["n_layers"], row["n_heads"], row["d_head"]) == ("3", "4,4,2", "16,16,32")
    assert row["cell_label"] == "4,4,2 heads, MHA"


def test_heads_and_timing(tmp_path: Path) -> None:
    report.make(make_sweep(tmp_path / "demo", timing=1.5), silent)
    rows = read(tmp_path / "demo" / "heads.csv")
    assert list(rows[0])[:21] == [
        *("experiment", "hash", "label", "task", "variant", "n_heads", "n_kv_heads", "seed"),
        *("layer", "of", "head", "kv_head", "role", "score", "value", "baseline", "corrected"),
        *("low", "high", "share", "n_rows"),
    ]
    assert len(rows) == 6 * (1 + 4 + 4) * 4 + 2 * 2 * 2
    mqa = [r for r in rows if r["variant"] == "MQA"]
    assert {r["kv_head"] for r in mqa} == {"0"} and {r["head"] for r in mqa} == set("0123")
    # The order of roles is the task's.
    roles = ("prev", "class", "word", "delimiter")
    assert [r["score"] for r in rows[:4]] == [f"role/{role}" for role in roles]
    timing = read(tmp_path / "demo" / "timing.csv")
    assert len(timing) == 21 and timing[0]["train_s"] == "1.5" and timing[0]["device"] == "cpu"


def test_bytes_depend_on_the_runs_alone(tmp_path: Path) -> None:
    """Not on the order in which they were made or finished, nor on the clock."""
    first = make_sweep(tmp_path / "a" / "demo")
    second = make_sweep(tmp_path / "b" / "demo", random.Random(1), timing=7.0)
    report.make(first, silent)
    report.make(second, silent)
    report.make(second, silent)
    for name in DETERMINISTIC:
        assert (first / name).read_bytes() == (second / name).read_bytes(), name
        assert b"\r" not in (first / name).read_bytes()
    assert (first / "timing.csv").read_bytes() != (second / "timing.csv").read_bytes()


def test_resumed_sweep_equals_unbroken_one(tmp_path: Path) -> None:
    whole = make_sweep(tmp_path / "a" / "demo")
    report.make(whole, silent)
    part = tmp_path / "b" / "demo"
    shutil.copytree(whole, part)
    gone = sorted(part.glob("*/summary.json"))[::2]
    for path in gone:
        path.rename(path.with_suffix(".later"))
    report.make(part, silent)
    assert (part / "frontier.csv").read_bytes() != (whole / "frontier.csv").read_bytes()
    for path in gone:
        path.with_suffix(".later").rename(path)
    report.make(part, silent)
    for name in DETERMINISTIC:
        assert (part / name).read_bytes() == (whole / name).read_bytes(), name


def test_cells_of_one_name_say_what_differs(tmp_path: Path) -> None:
    for d_head in (16, 32):
        make_run(tmp_path, static("relations", 2, d_head=d_head), 0.5)
    make_run(tmp_path, static("relations", 2, 1), 0.5)
    make_run(tmp_path, static("relations", 2, 1, n_classes=8), 0.5)  # another task: its own row
    labels = [row["cell_label"] for row in read_frontier(tmp_path)]
    assert labels == [
        *("2 heads, MHA, d_head 16", "2 heads, MHA, d_head 32"),
        *("2 heads, MQA", "2 heads, MQA"),
    ]


def read_frontier(root: Path) -> list[dict[str, str]]:
    report.make(root, silent)
    return read(root / "frontier.csv")


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.1 + 0.2, "0.3"), (1e-5 / 3, "3.33333e-06"), (1.0, "1"), (True, "true"), (None, "")]
    + [(float("nan"), "nan"), (7, "7"), ([1, 2], '"[1,2]"'), ("a,b", '"a,b"'), (3, "3")],
)
def test_how_values_are_written(value: object, text: str) -> None:
    assert tables.to_csv([{"x": value, "y": 0}], ()) == f"x,y\n{text},0\n"


def test_no_head_scores_leave_a_header(tmp_path: Path) -> None:
    make_run(tmp_path, static("histogram", 1), 0.9)
    report.make(tmp_path, silent)
    assert (tmp_path / "heads.csv").read_text() == ",".join(tables.HEAD_COLUMNS) + "\n"


def test_what_cannot_be_read_is_told(tmp_path: Path) -> None:
    directory = make_run(tmp_path, static("copy", 1), 0.9, mass=[[0.5]])
    (directory / "run.json").write_text("{")
    with (directory / "heads.csv").open("a") as file:
        file.write("torn\n")
    told: list[str] = []
    report.make(tmp_path, told.append)
    assert len(told) == 2 and "run.json" in told[0] and "heads.csv:3" in told[1]


@pytest.mark.parametrize("argument", ["nothing", "empty", None])
def test_the_command_refuses_bad_input(tmp_path: Path, argument: str | None) -> None:
    (tmp_path / "empty").mkdir()
    arguments = [] if argument is None else [str(tmp_path / argument)]
    done = command(*arguments)
    assert done.returncode == 2 and done.stdout == ""
    assert len(done.stderr.splitlines()) == 1 and "report.py" in done.stderr


def test_the_command(tmp_path: Path) -> None:
    make_run(tmp_path, static("copy", 1), status="unfinished")
    done = command(str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [
        str(tmp_path / name)
        for name in ("runs.csv", "frontier.csv", "comparisons.csv", "order.txt", "heads.csv")
        + ("timing.csv",)
    ]
    assert done.stderr == f"{tmp_path}: no finished run, so there is no figure yet\n"
    assert command("--help").returncode == 0


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, str(ROOT / "scripts" / "report.py"), *arguments]
    return subprocess.run(line, capture_output=True, text=True, cwd=ROOT)

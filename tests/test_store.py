"""Reading run directories: what is refused, what is left out and named, what a sweep gives."""

import json
import math
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import mha_jax
from mha_jax import files, store
from mha_jax.report.data import SweepData
from tests.synthetic import make_run, static


def test_a_whole_run(tmp_path: Path) -> None:
    directory = make_run(
        tmp_path, static(), [1.0, 0.9, 0.8, 0.7], seed=3, label="n=4", mass=[[0.5] * 4] * 4
    )
    run = store.read_run(directory)
    assert (run.status, run.label, run.run.hypers.seed) == ("done", "n=4", 3)
    assert run.run.static == static() and run.spec.metric == "accuracy"
    assert run.summary["final"]["test/accuracy/class"] == 0.9
    assert run.environment["device"] == "cpu" and not run.problems
    assert run.history() == (
        [{"step": 0, "train/loss": 1.0}, {"step": 3000, "train/loss": 1.0}],
        [],
    )
    heads, problems = run.heads()
    assert len(heads) == 16 and not problems
    assert heads[0] == {
        **{"layer": 0, "of": "n", "head": 0, "kv_head": 0, "role": "mixed", "score": "role/prev"},
        **{"value": 0.5, "baseline": 0.1, "corrected": 0.5, "low": 0.4, "high": 0.6},
        **{"share": 1.0, "n_rows": 100},
    }


def test_an_unfinished_run_is_a_run(tmp_path: Path) -> None:
    run = store.read_run(make_run(tmp_path, static(), status="unfinished"))
    assert run.status == "unfinished" and run.heads() == ([], [])


@pytest.mark.parametrize("change", ["content", "directory", "recorded"])
def test_a_run_that_is_not_what_its_name_says_is_refused(tmp_path: Path, change: str) -> None:
    directory = make_run(tmp_path, static(), 1.0)
    data = json.loads((directory / "config.json").read_text())
    if change == "content":
        data["hypers"]["lr"] = 1e-2
    if change == "recorded":
        data["hash"] = "0" * 10
    (directory / "config.json").write_text(json.dumps(data))
    if change == "directory":
        directory = directory.rename(tmp_path / "run-0123456789")
    with pytest.raises(ValueError, match="hash") as caught:
        store.read_run(directory)
    assert "\n" not in str(caught.value) and str(directory) in str(caught.value)
    with pytest.raises(ValueError, match="hash"):
        store.read_sweep(tmp_path)


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"schema_version": 99}', '{"schema_version": 1}', "\0"]
)
def test_a_broken_config_is_refused_in_one_line(tmp_path: Path, content: str) -> None:
    directory = make_run(tmp_path, static(), 1.0)
    (directory / "config.json").write_text(content)
    with pytest.raises(ValueError, match="config.json") as caught:
        store.read_run(directory)
    assert "\n" not in str(caught.value)


def test_a_task_that_is_not_here_is_refused_in_one_line(tmp_path: Path) -> None:
    directory = make_run(tmp_path, static(), 1.0)
    run = store.read_run(directory)
    for name, params in (("gone", ()), ("relations", (("n_words", 3),))):
        task = type(run.run.static.task)(name, 0, params, "")
        other = type(run.run.static)(
            task, *[getattr(run.run.static, f) for f in ("model", "train", "optim")]
        )
        changed = type(run)(directory, type(run.run)(other, run.run.hypers), {}, {}, {}, ())
        with pytest.raises(ValueError, match=f"task '{name}' cannot be loaded") as caught:
            _ = changed.spec
        assert "\n" not in str(caught.value)


def test_damaged_lines_are_named_and_skipped(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    lines = [
        b'{"step": 0, "train/loss": 1.5, "eval/loss": "nan"}',
        b'{"step": 1, "train/lo',  # torn
        b"",
        b'{"step": 2.5, "train/loss": 1}',
        b'{"step": true}',
        b'{"step": 3, "train/loss": "high"}',
        b'{"step": 4, "train/loss": null}',
        b"[1, 2]",
        b'{"step": 5, "train/loss": "\xff"}',
        b'{"step": 6, "train/loss": "-inf", "x": 2}',
    ]
    path.write_bytes(b"\n".join(lines))
    rows, problems = store.read_records(path)
    assert [row["step"] for row in rows] == [0, 6]
    assert math.isnan(rows[0]["eval/loss"]) and rows[1]["train/loss"] == -math.inf
    assert [p.split(":")[-2] for p in problems] == [str(i) for i in range(2, 10)]


def test_damaged_head_rows_are_named_and_skipped(tmp_path: Path) -> None:
    directory = make_run(tmp_path, static("relations", 2), 1.0, mass=[[0.5] * 4] * 2)
    path = directory / "heads.csv"
    lines = path.read_text().splitlines()
    lines[2] = "0,n,0,0,mixed,role/class,high,0.1,0.5,0.4,0.6,1,100"
    lines[3] = "0,n,0,0,mixed,role/word"
    lines[4] += ",7"
    lines[5] = "0,n,1,1,mixed,role/prev,0.5,0.1,,,,0,0"
    path.write_text("\n".join(lines))
    rows, problems = store.read_heads(path)
    assert len(rows) == 5 and [p.split(":")[-2] for p in problems] == ["3", "4", "5"]
    assert math.isnan(rows[1]["corrected"])


@pytest.mark.parametrize("content", ['{"status": "done", "fi', '{"status": "fine"}', "7"])
def test_an_unreadable_summary_is_named_and_the_run_counts_as_unfinished(
    tmp_path: Path, content: str
) -> None:
    directory = make_run(tmp_path, static(), 1.0)
    (directory / "summary.json").write_text(content)
    runs, problems = store.read_sweep(tmp_path)
    assert runs[0].status == "unfinished" and "summary.json" in problems[0] and len(problems) == 1


def test_non_finite_numbers_of_a_summary(tmp_path: Path) -> None:
    directory = make_run(tmp_path, static(), status="diverged")
    summary = json.loads((directory / "summary.json").read_text())
    summary["final"] = {"test/accuracy": "nan", "test/loss": "inf"}
    (directory / "summary.json").write_text(json.dumps(summary))
    final = store.read_run(directory).summary["final"]
    assert math.isnan(final["test/accuracy"]) and final["test/loss"] == math.inf


def test_every_json_file_knows_itself_again(tmp_path: Path) -> None:
    directory = make_run(tmp_path, static(), 1.0)
    for name in ("config.json", "run.json", "summary.json"):
        files.write_signed(directory / name, json.loads((directory / name).read_text()))
    assert not store.read_run(directory).problems
    for name, old, new in (
        ("run.json", '"mixed": false', '"mixed": true'),
        ("summary.json", "1.0", "1.1"),
    ):
        text = (directory / name).read_text()
        assert old in text
        (directory / name).write_text(text.replace(old, new, 1))
        run = store.read_run(directory)
        assert run.problems == (f"{directory / name}: damaged: its SHA-256 differs; left out",)
        assert (run.summary if name == "summary.json" else run.environment) == {}
        (directory / name).write_text(text)
    path = directory / "config.json"
    path.write_text(path.read_text().replace('"n_params": 20000', '"n_params": 20001'))
    with pytest.raises(ValueError, match="config.json: damaged: its SHA-256 differs"):
        store.read_run(directory)


def test_records_that_changed_after_the_end_are_not_believed(tmp_path: Path) -> None:
    directory = make_run(tmp_path, static(), 1.0, mass=[[0.5] * 4] * 4)
    summary = json.loads((directory / "summary.json").read_text())
    names = ("metrics.jsonl", "heads.csv", "indices.json")
    (directory / "indices.json").write_text("{}")
    summary["files"] = {name: files.fingerprint(directory / name) for name in names}
    files.write_signed(directory / "summary.json", summary)
    run = store.read_run(directory)
    assert not run.problems and run.history()[1] == run.heads()[1] == []
    for name, read, old in (("metrics.jsonl", run.history, "1.0"), ("heads.csv", run.heads, "0.5")):
        path = directory / name
        text = path.read_text()
        path.write_text(text.replace(old, "0.7", 1))  # still a row of numbers
        assert read() == (
            [],
            [f"{path}: changed after the run ended: its SHA-256 differs; left out"],
        )
        path.write_text(f"{text}torn")
        rows, problems = read()
        assert rows and len(problems) == 2 and "line skipped" in problems[0]
        path.unlink()
        assert read() == ([], [f"{path}: missing, although the run is over"])
        path.write_text(text)
    (directory / "indices.json").write_text("[]")
    (problem,) = store.read_run(directory).problems
    assert "indices.json: changed after the run ended" in problem


def test_a_sweep_is_read_in_one_order(tmp_path: Path) -> None:
    for seed in (2, 0, 1):
        make_run(tmp_path, static("copy", 2), 0.5, seed=seed, label="zxy"[seed])
    make_run(tmp_path, static("attr"), 0.5, label="zz")
    (tmp_path / "figures").mkdir()
    (tmp_path / "run-0123456789").mkdir()
    runs, problems = store.read_sweep(tmp_path)
    assert [run.run.static.task.name for run in runs] == ["attr", "copy", "copy", "copy"]
    hashes = [run.run.hash for run in runs[1:]]
    assert hashes == sorted(hashes)
    assert problems == [f"{tmp_path / 'run-0123456789'}: no config.json; left out"]


def test_where_there_is_no_sweep(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no such directory"):
        store.read_sweep(tmp_path / "nothing")
    make_run(tmp_path / "quick", static(), 1.0)
    with pytest.raises(ValueError, match=f"did you mean {tmp_path / 'quick'}"):
        mha_jax.load_sweep(tmp_path)


def sweep(root: Path) -> SweepData:
    for n_heads in (1, 4):
        for seed in (0, 1):
            make_run(
                root,
                static("relations", n_heads),
                0.25 * n_heads,
                seed=seed,
                mass=[[0.5] * 4] * n_heads,
            )
    path = next(root.glob("*/metrics.jsonl"))
    path.write_text(path.read_text() + '{"step"')
    return mha_jax.load_sweep(root)


def test_frames(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    data = sweep(tmp_path)
    tables = [data.runs(), data.cells(), data.comparisons(), data.heads(), data.history()]
    assert all(isinstance(table, pandas.DataFrame) for table in tables)
    assert [len(table) for table in tables] == [4, 2, 1, 2 * (1 + 4) * 4, 8]
    assert data.cells().set_index("cell_label")["mean"].to_dict() == {
        "1 head, MHA": 0.25,
        "4 heads, MHA": 1.0,
    }
    assert data.history()["step"].max() == 3000
    assert len(data.problems) == 1 and "metrics.jsonl:3" in data.problems[0]
    assert "4 runs" in repr(data)


def test_lists_where_there_is_no_pandas(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    data = sweep(tmp_path)
    for table in (data.runs(), data.cells(), data.comparisons(), data.heads(), data.history()):
        assert isinstance(table, list) and isinstance(table[0], dict)


@pytest.mark.smoke
def test_import_is_lazy_and_sets_nothing(tmp_path: Path) -> None:
    """`import mha_jax`, reading a sweep and its tables load no jax."""
    make_run(tmp_path, static("copy", 2), 0.5)
    code = f"""
import sys
sys.modules.update(dict.fromkeys(("jax", "flax", "matplotlib", "pandas", "scipy")))
import mha_jax
modules = {{"Attention", "LatentAttention", "TiedAttention"}}
assert set(dir(mha_jax)) == {{*modules, "load_run", "load_sweep", "__version__"}}
assert sum(name.startswith("mha_jax") for name in sys.modules) == 1
rows = mha_jax.load_sweep({str(tmp_path)!r}).cells()
assert rows[0]["mean"] == 0.5
try:
    mha_jax.attention_is_all
except AttributeError as error:
    assert "attention_is_all" in str(error)
else:
    raise AssertionError
"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_public_names_lead_somewhere() -> None:
    from mha_jax.attention.grouped import Attention
    from mha_jax.run import load_run

    assert mha_jax.Attention is Attention and mha_jax.load_run is load_run
    assert mha_jax.__version__.count(".") == 2


def test_a_copy_of_a_run_is_no_second_seed(tmp_path):
    original = make_run(tmp_path, static(), 0.5)
    shutil.copytree(original, tmp_path / f"backup-{original.name[-10:]}")
    runs, problems = store.read_sweep(tmp_path)
    assert len(runs) == 1
    assert len(problems) == 1 and "a copy of another run" in problems[0]

"""Two sweeps compared: which cells are matched, what is said to differ, and what is refused."""

import dataclasses
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from mha_jax import config
from mha_jax.report import pairs
from mha_jax.report.across import Across, across
from mha_jax.report.across_text import to_text
from mha_jax.report.compare import compare
from tests.synthetic import make_cell, make_run, static

ROOT = Path(__file__).resolve().parent.parent
SOLVED = [1.0, 0.999, 1.0, 0.998, 1.0]
BOUND = [0.538, 0.536, 0.537, 0.538, 0.536]  # at a ceiling of .54
ROPE = {"positions": "rope"}
LEARNED = {"positions": "learned"}


def one_seed(root: Path, *specs: config.StaticConfig, **fields) -> Path:
    for spec in specs:
        make_run(root, spec, 0.5, **fields)
    return root


def keys(result: Across) -> list[dict]:
    return [match.key for match in result.matches]


def replaced(spec: config.StaticConfig, part: str, **fields) -> config.StaticConfig:
    return dataclasses.replace(spec, **{part: dataclasses.replace(getattr(spec, part), **fields)})


@pytest.fixture(scope="module")
def sweeps(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Learned positions against rotary ones: two cells shared, of which one is better in B."""
    root = tmp_path_factory.mktemp("results")
    a, b = root / "learned", root / "rotary"
    make_cell(a, static("relations", 1, model=LEARNED), [0.3])
    make_cell(a, static("relations", 2, model=LEARNED), [0.537, *BOUND], ceiling=0.54)
    make_cell(a, static("relations", 4, model=LEARNED), SOLVED)
    make_cell(b, static("relations", 2, model=ROPE), SOLVED, first_seed=1)
    make_cell(b, static("relations", 4, model=ROPE), SOLVED[::-1])
    make_cell(b, static("relations", 8, model=ROPE), [0.5])
    return a, b


def test_shared_cells_are_compared(sweeps: tuple[Path, Path]) -> None:
    result = across(*sweeps)
    assert result.differs == ["model.positions learned -> rope"]
    assert keys(result) == [{"model.n_heads": 2}, {"model.n_heads": 4}]
    assert [found.n_pairs for found in result.found] == [5, 5]
    assert [[c.label for c in alone] for alone in result.alone] == [
        ["1 head, MHA"],
        ["8 heads, MHA"],
    ]
    assert result.found == tuple(compare([pairs.pair(m.a, m.b) for m in result.matches]))


def test_the_text(sweeps: tuple[Path, Path]) -> None:
    lines = to_text(across(*sweeps)).splitlines()
    assert lines[:4] == [
        f"A: {sweeps[0]}",
        f"B: {sweeps[1]}",
        "B differs: model.positions learned -> rope",
        "",
    ]
    assert lines[4].split("  ")[0] == "task" and lines[4].endswith("verdict")
    assert lines[5].startswith("relations  2        accuracy  0.003  0.003  0.537  0.999  5 ")
    assert lines[5].endswith("  B is better")
    assert lines[6].endswith("not ranked: both solved")
    assert lines[-2:] == ["only in A: relations, 1 head, MHA", "only in B: relations, 8 heads, MHA"]


def test_each_cell_at_its_own_rate(tmp_path: Path) -> None:
    for lr, test in ((1e-3, 0.7), (3e-3, 0.6)):
        make_run(tmp_path / "a", static("copy", 2), test, lr=lr)
        make_run(tmp_path / "b", static("copy", 2, model=ROPE), 1.2 - test, lr=lr)
    (match,) = across(tmp_path / "a", tmp_path / "b").matches
    assert (match.a.cell.lr, match.b.cell.lr) == (1e-3, 3e-3)


def test_mha_against_mqa(tmp_path: Path) -> None:
    """kv heads follow from the heads in one sweep: they are what is compared."""
    a = one_seed(tmp_path / "a", *(static("copy", n) for n in (1, 2, 4)))
    b = one_seed(tmp_path / "b", *(static("copy", n, 1) for n in (1, 2, 4)))
    result = across(a, b)
    assert keys(result) == [{"model.n_heads": n} for n in (1, 2, 4)]
    assert result.differs == ["model.n_kv_heads 2, 4 -> 1"]


def test_kv_heads_that_are_swept_are_matched(tmp_path: Path) -> None:
    a = one_seed(tmp_path / "a", *(static("copy", 4, k) for k in (1, 2, 4)))
    b = one_seed(tmp_path / "b", *(static("copy", n, 1, model=ROPE) for n in (2, 4)))
    (match,) = across(a, b).matches
    assert match.key == {"model.n_heads": 4, "model.n_kv_heads": 1}


def test_a_size_set_by_matching_is_not_matched_by(tmp_path: Path) -> None:
    def specs(sizes: tuple[int, ...]) -> list[config.StaticConfig]:
        out = []
        for n_heads, d_ff in zip((2, 4), sizes, strict=True):
            layer = dataclasses.replace(static("copy", n_heads).model.layers[0], d_ff=d_ff)
            out.append(static("copy", n_heads, model={"layers": (layer,)}))
        return out

    for policy in ("d_ff", "none"):
        about = {"match": policy}
        a = one_seed(tmp_path / policy / "a", *specs((100, 90)), about=about)
        b = one_seed(tmp_path / policy / "b", *specs((80, 70)), about=about)
        if policy == "d_ff":
            assert across(a, b).differs == ["model.d_ff 100, 90 -> 80, 70"]
        else:
            with pytest.raises(ValueError, match="share no cell.*model.n_heads, model.d_ff"):
                across(a, b)


def test_tasks_are_matched_one_by_one(tmp_path: Path) -> None:
    """Each has its own budget and its own axes; a task that one sweep lacks is listed."""
    a = one_seed(tmp_path / "a", static("copy", 2), static("histogram", 2, n_steps=500))
    one_seed(a, static("text", 1))
    b = one_seed(
        tmp_path / "b",
        *(static("copy", n, model=ROPE) for n in (2, 4)),
        static("histogram", 2, n_steps=500, model=ROPE),
    )
    result = across(a, b)
    assert [(m.a.static.task.name, m.key) for m in result.matches] == [
        ("copy", {"model.n_heads": 2}),
        ("histogram", {}),
    ]
    assert [c.static.task.name for c in result.alone[0]] == ["text"]


COPY = static("copy", 2)


@pytest.mark.parametrize(
    ("other", "told"),
    [
        (replaced(COPY, "task", seed=1), "task.seed 0 -> 1"),
        (replaced(COPY, "task", data_hash="f00"), "task.data_hash none -> f00"),
        (static("copy", 2, length=20), "task.copy.length 12 -> 20"),
        (replaced(COPY, "train", n_steps=6000), "train.n_steps 3000 -> 6000"),
        (
            replaced(COPY, "train", n_steps=6000, batch_size=32),
            "train.n_steps 3000 -> 6000; train.batch_size 64 -> 32",
        ),
        (static("relations", 2), "task.name copy -> relations"),
    ],
)
def test_unlike_sweeps_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], other: config.StaticConfig, told: str
) -> None:
    a, b = one_seed(tmp_path / "a", COPY), one_seed(tmp_path / "b", other)
    assert script().main([str(a), str(b)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"compare.py: {a} and {b} are no like with like: {told}")
    assert "--anyway" in line
    assert script().main([str(a), "--anyway", str(b)]) == 0
    assert f"B differs: {told.split(';')[0]}\n" in capsys.readouterr().out


def test_another_probe_is_no_reason_to_refuse(tmp_path: Path) -> None:
    a = one_seed(tmp_path / "a", COPY)
    b = one_seed(tmp_path / "b", replaced(COPY, "train", n_probe=8))
    assert across(a, b).differs == ["train.n_probe 256 -> 8"]


def test_metrics_cannot_be_mixed(tmp_path: Path) -> None:
    a, b = one_seed(tmp_path / "a", COPY), one_seed(tmp_path / "b", static("text", 2))
    with pytest.raises(ValueError, match="cannot be subtracted: accuracy and bits_per_byte"):
        across(a, b, anyway=True)


def test_json(sweeps: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert script().main([*map(str, sweeps), "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert (data["a"], data["b"]) == tuple(map(str, sweeps))
    assert data["b_differs"] == ["model.positions learned -> rope"]
    row = data["comparisons"][1]
    found = across(*sweeps).found[1]
    assert row["matched_by"] == {"model.n_heads": 4} and row["verdict"] == found.verdict
    assert (row["p_holm"], row["ci_low"]) == (found.p_holm, found.ci_low)
    assert (row["mean_a"], row["metric"], row["lr_b"]) == (pytest.approx(0.9994), "accuracy", 3e-3)
    assert data["only_in_b"] == ["relations, 8 heads, MHA"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "takes two directories, <workdir>/<experiment>; got nothing"),
        (["{a}"], "takes two directories"),
        (["{a}", "{b}", "{a}"], "takes two directories"),
        (["{a}", "{a}/../a"], "the same directory twice"),
        (["{a}", "nowhere"], "nowhere: no such directory"),
        (["{empty}", "{b}"], "holds no run"),
        (["{a}", "{b}", "--anway"], "--anway is no flag; did you mean --anyway?"),
        (["{a}", "{b}", "--quick"], "--quick is no flag; --help lists the flags"),
        (["{a}", "{c}"], "share no cell; the fields that vary, model.n_heads, never agree"),
    ],
)
def test_bad_input(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], told: str
) -> None:
    one_seed(tmp_path / "a", static("copy", 2), static("copy", 4))
    one_seed(tmp_path / "b", static("copy", 2, model=ROPE))
    one_seed(tmp_path / "c", static("copy", 8))
    (tmp_path / "empty").mkdir()
    named = {name: tmp_path / name for name in ("a", "b", "c", "empty")}
    assert script().main([text.format(**named) for text in arguments]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("compare.py: ") and err.count("\n") == 1
    assert told in err


def test_what_cannot_be_read_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = one_seed(tmp_path / "a", COPY), one_seed(tmp_path / "b", static("copy", 2, model=ROPE))
    next(b.glob("*/run.json")).write_text("{")
    assert script().main([str(a), str(b)]) == 0
    assert "run.json" in capsys.readouterr().err


def test_a_reader_may_leave() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, str(ROOT / "scripts" / "compare.py"), "--help"]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True)
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")


def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("compare", ROOT / "scripts" / "compare.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module

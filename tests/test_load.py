"""Config files and the command line: what is read, from where, and what the user is told."""

import hashlib
import json
import os
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest
from cases import write_config
from ml_collections import ConfigDict

from mha_jax import cli, load
from mha_jax.load import LoadedConfig

ROOT = Path(__file__).resolve().parent.parent


def loaded(path: Path, *overrides: str, arg: str | None = None) -> LoadedConfig:
    found = load.load(str(path), arg, overrides)
    assert not found.problems, [str(problem) for problem in found.problems]
    return found


def test_a_file_is_read(tmp_path: Path) -> None:
    path = write_config(tmp_path / "mine.py", "c.model.n_heads = 8")
    found = loaded(path)
    assert found.config is not None and found.config["model"]["n_heads"] == 8
    assert found.name == found.config["experiment"] == "mine"
    assert found.sweep is None and found.arg is None
    assert found.source_sha == hashlib.sha256(path.read_bytes()).hexdigest()


def test_the_experiment_may_be_named(tmp_path: Path) -> None:
    found = loaded(write_config(tmp_path / "mine.py", "c.experiment = 'other'"))
    assert found.name == "other"
    found = loaded(write_config(tmp_path / "mine.py"), "experiment=third")
    assert found.name == "third"


def test_the_argument_reaches_get_config(tmp_path: Path) -> None:
    path = write_config(tmp_path / "mine.py", "c.train.n_steps = 9 if arg == 'quick' else 99")
    assert loaded(path, arg="quick").config["train"]["n_steps"] == 9
    assert loaded(path).config["train"]["n_steps"] == 99
    bare = write_config(tmp_path / "bare.py", arg="")
    assert loaded(bare).config["train"]["n_steps"] == 3000
    required = write_config(
        tmp_path / "required.py", "c.train.n_steps = 1 + (arg is None)", arg="arg"
    )
    assert loaded(required).config["train"]["n_steps"] == 2


def test_overrides_are_read_by_the_kind_of_their_key(tmp_path: Path) -> None:
    path = write_config(tmp_path / "mine.py")
    given = {
        "model.n_heads=8": 8,
        "model.n_kv_heads=none": None,
        "model.d_ff=16,32": "16,32",
        "optim.lr=1e-3": 0.001,
        "optim.clip=2": 2.0,
        "model.bias=true": True,
        "match.to=n_heads=8,n_kv_heads=8": "n_heads=8,n_kv_heads=8",
        "task.text.path=none": "none",
        "task.taps.length=99": 99,
    }
    found = loaded(path, *given)
    for text, value in given.items():
        key = text.partition("=")[0]
        place: Any = found.config
        for part in key.split("."):
            place = place[part]
        assert place == value and type(place) is type(value), text
        assert found.overrides[key] == value


def test_a_file_is_read_from_any_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_config(tmp_path / "mine.py")
    (tmp_path / "configs").mkdir()  # a folder of the same name there must not stand in the way
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if Path(p or ".").resolve() != ROOT])
    for name in [name for name in sys.modules if name.split(".")[0] == "configs"]:
        monkeypatch.delitem(sys.modules, name)
    assert loaded(Path("mine.py")).name == "mine"


def test_an_edited_file_is_read_anew_and_leaves_no_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    path = write_config(tmp_path / "mine.py", "c.train.seed = 1")
    assert loaded(path).config["train"]["seed"] == 1
    stamp = path.stat()
    write_config(path, "c.train.seed = 2")
    os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))  # as an edit within one tick
    assert loaded(path).config["train"]["seed"] == 2
    assert list(tmp_path.iterdir()) == [path]


def test_what_the_file_prints_is_kept_from_our_output(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    path = write_config(
        tmp_path / "mine.py", "print('in get_config')", "print('in sweep')\nadd({})"
    )
    assert cli.main([f"--config={path}", "--dry_run", "--json"]) == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out)["n_runs"] == 1
    assert shown.err == "in get_config\nin sweep\n"


def test_a_bool_on_a_float_is_given_back_as_it_was_set(tmp_path: Path) -> None:
    body = "c.optim.lr = True\nc.optim.b1 = True\nc.optim.b1 = 0.5\nc.model.bias = True"
    found = loaded(write_config(tmp_path / "mine.py", body)).config
    assert found is not None and found["optim"]["lr"] is True
    assert (found["optim"]["b1"], found["model"]["bias"]) == (0.5, True)
    before = ConfigDict({"x": 1.0})
    before.x = True  # nobody else's ConfigDict is touched
    assert before.x == 1.0 and type(before.x) is float


def test_a_file_may_hold_dataclasses(tmp_path: Path) -> None:
    path = write_config(tmp_path / "mine.py")
    header = "from __future__ import annotations\nimport dataclasses\n"
    body = "\n\n@dataclasses.dataclass\nclass Size:\n    n: int = 4\n"
    path.write_text(header + path.read_text() + body)
    assert loaded(path).name == "mine"


def test_the_users_own_frame_is_named(tmp_path: Path) -> None:
    path = write_config(tmp_path / "mine.py", "import json\njson.loads('{')")
    (problem,) = load.load(str(path)).problems
    assert f"{path}:7 raised JSONDecodeError" in str(problem)


def test_an_exception_that_cannot_be_shown_is_still_named(tmp_path: Path) -> None:
    body = "class E(Exception):\n    def __str__(self):\n        1 / 0\nraise E"
    (problem,) = load.load(str(write_config(tmp_path / "mine.py", body))).problems
    assert str(problem).endswith("mine.py:9 raised E")


@pytest.mark.parametrize(
    ("argv", "config"),
    [
        (["--config=a.py"], ("a.py", None)),
        (["--config=a.py:quick"], ("a.py", "quick")),
        (["--config", "a/b.py:x=1,y:2"], ("a/b.py", "x=1,y:2")),
        (["--config=C:a.py"], ("C:a.py", None)),
        (["--config=a.txt:quick"], ("a.txt:quick", None)),
    ],
)
def test_the_config_flag_is_split_at_the_ending(argv: list[str], config: tuple) -> None:
    assert cli.parse_args(argv).config == config


def test_flags_take_a_value_behind_a_space_or_an_equals_sign() -> None:
    argv = ["--config", "a.py", "--workdir", "w", "--workers=2", "--config.model.n_heads=8"]
    args = cli.parse_args([*argv, "--dry-run"])
    assert args.flags == {"--config": "a.py", "--workdir": "w", "--workers": "2", "--dry_run": ""}
    assert args.overrides == ["model.n_heads=8"] and not args.problems


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, Path, int | None]]:
    """What would have been launched."""
    calls: list[tuple[Any, Path, int | None]] = []

    def launch(sweep: Any, workdir: Path, workers: int | None = None) -> int:
        calls.append((sweep, workdir, workers))
        return 1

    monkeypatch.setitem(sys.modules, "mha_jax.launch", types.SimpleNamespace(launch=launch))
    return calls


def test_a_sweep_is_launched_and_its_exit_code_returned(
    tmp_path: Path, launched: list[Any]
) -> None:
    path = write_config(
        tmp_path / "mine.py", sweep="for s in range(3):\n    add({'train.seed': s})"
    )
    argv = [f"--config={path}", f"--workdir={tmp_path}/w", "--workers=2", "--config.optim.lr=0.1"]
    assert cli.main(argv) == 1
    assert cli.main(argv, single=True) == 1
    (sweep, workdir, options), (single, _, _) = launched
    assert (len(sweep.runs), workdir, options.workers) == (3, tmp_path / "w", 2)
    assert len(single.runs) == 1 and single.runs[0].run == sweep.runs[0].run
    assert {planned.run.hypers.lr for planned in sweep.runs} == {0.1}
    assert not (tmp_path / "w").exists()  # it is the launcher's to make


@pytest.mark.parametrize("single", [False, True])
def test_help(single: bool, capsys: pytest.CaptureFixture) -> None:
    assert cli.main(["--help", "--nonsense"], single=single) == 0
    shown = capsys.readouterr().out
    assert ("train.py" if single else "sweep.py") in shown and "examples:" in shown
    for flag in ("--config", "--workdir", "--dry_run", "--json", "--workers"):
        assert flag in shown
    assert all(len(line) <= 100 for line in shown.splitlines())


@pytest.mark.parametrize("script", ["sweep.py", "train.py"])
@pytest.mark.parametrize("argv", [["--help"], ["--dry_run"], ["--dry_run", "--json"]])
def test_the_scripts_answer_without_jax(script: str, argv: list[str], tmp_path: Path) -> None:
    path = write_config(tmp_path / "mine.py", sweep="add({'model.n_heads': 2})")
    code = (
        "import runpy, sys\n"
        f"sys.argv = ['{script}', '--config={path}', *{argv}]\n"
        f"try:\n    runpy.run_path('{ROOT}/scripts/{script}', run_name='__main__')\n"
        "finally:\n    assert not {'jax', 'flax', 'numpy.random'} & set(sys.modules)\n"
    )
    command = [sys.executable, "-W", "error", "-c", code]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0 and done.stderr == "", done.stderr
    assert "mine" in done.stdout or "usage:" in done.stdout


def test_a_reader_that_leaves_is_no_error(tmp_path: Path) -> None:
    path = write_config(
        tmp_path / "mine.py", sweep="for s in range(2000):\n    add({'train.seed': s})"
    )
    command = f"{sys.executable} {ROOT}/scripts/sweep.py --config={path} --dry_run | head -1"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True)
    assert done.returncode == 0 and done.stderr == "", done.stderr
    assert done.stdout.startswith("mine: 2000 runs in 1 group")


def test_a_config_may_import_a_module_beside_it(tmp_path: Path) -> None:
    (tmp_path / "beside_it.py").write_text("HEADS = 2\n")
    (tmp_path / "mine.py").write_text(
        "from beside_it import HEADS\nfrom configs import base\n\n"
        "def get_config(arg=None):\n    config = base.get_config()\n"
        "    config.model.n_heads = HEADS\n    return config\n"
    )
    loaded = load.load(str(tmp_path / "mine.py"), None, [])
    assert not loaded.problems and loaded.config["model"]["n_heads"] == 2

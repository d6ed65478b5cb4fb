"""The two commands of a newcomer, the environment they make, and the locks it is made from."""

import ast
import importlib.util
import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import mha_jax

ROOT = Path(__file__).resolve().parent.parent
PYTHONS = ("3.11", "3.12", "3.13")
SCRIPTS = ("quickstart", "test", "lock", "bootstrap.py")


@pytest.fixture
def bootstrap(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """scripts/bootstrap.py, freshly loaded, making its environment under tmp_path."""
    monkeypatch.setenv("MHA_JAX_VENV", str(tmp_path / "venv"))
    module = load_script("bootstrap.py")
    monkeypatch.setitem(sys.modules, "bootstrap", module)
    return module


@pytest.fixture
def ran(bootstrap: ModuleType, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The commands that the set-up ran; they are not run, only an interpreter is put down."""
    commands: list[str] = []

    def run(command: list) -> bool:
        commands.append(" ".join(map(str, command)))
        if command[1:3] == ["-m", "venv"]:
            (command[3] / "bin").mkdir(parents=True)
            (command[3] / "bin" / "python").touch()
        return True

    monkeypatch.setattr(bootstrap, "_run", run)
    return commands


def test_old_python_gets_one_line(tmp_path: Path) -> None:
    """The scripts can be parsed by Python 3.6, and what runs there first is the version check."""
    # Should the check ever be passed: a directory that the set-up refuses at once.
    (tmp_path / "mine").touch()
    env = os.environ | {"MHA_JAX_VENV": str(tmp_path)}
    for name in SCRIPTS:
        ast.parse((ROOT / "scripts" / name).read_text(encoding="utf-8"), feature_version=(3, 6))
        code = f"""
import runpy, sys
sys.version_info = (3, 8, 18, "final", 0)
sys.path.insert(0, "scripts")
sys.argv = ["scripts/{name}"]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
        command = [sys.executable, "-c", code]
        done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
        assert done.returncode == 2
        assert re.fullmatch(r"mha_jax needs Python 3\.11 .* is Python 3\.8; .*\n", done.stderr)


def test_environment_is_made_once(bootstrap: ModuleType, ran: list[str], tmp_path: Path) -> None:
    assert bootstrap.python_of("core") == tmp_path / "venv" / "bin" / "python"
    for part, command in zip(
        ("-m venv", "uv.txt", "lock-core.txt", "--editable"), ran, strict=True
    ):
        assert part in command
    assert all("--require-hashes" in command for command in ran[1:3])
    assert "--no-deps" in ran[3] and "--no-build-isolation" in ran[3]
    ran.clear()
    bootstrap.python_of("core")
    assert ran == []


def test_dev_environment_serves_both(bootstrap: ModuleType, ran: list[str]) -> None:
    bootstrap.python_of("core")
    ran.clear()
    bootstrap.python_of("dev")
    assert any("lock-dev.txt" in command for command in ran)
    assert not any("-m venv" in command for command in ran), "the core one is added to"
    ran.clear()
    bootstrap.python_of("core")
    assert ran == []


def test_changed_lock_is_installed(
    bootstrap: ModuleType, ran: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    locks = tmp_path / "requirements"
    locks.mkdir()
    for name in ("uv.txt", "lock-core.txt", "lock-dev.txt"):
        (locks / name).touch()
    monkeypatch.setattr(bootstrap, "REQUIREMENTS", locks)
    bootstrap.python_of("core")
    ran.clear()
    (locks / "lock-core.txt").write_text("jax==9\n")
    bootstrap.python_of("core")
    assert "lock-core.txt" in ran[1] and not any("-m venv" in command for command in ran)


@pytest.mark.parametrize("cut", [0, 9, None])
def test_killed_setup_is_made_again(
    cut: int | None, bootstrap: ModuleType, ran: list[str], tmp_path: Path
) -> None:
    """Killed while it installed, or in the middle of writing its stamp."""
    bootstrap.python_of("core")
    stamp = tmp_path / "venv" / bootstrap.STAMP
    stamp.write_text(json.dumps(json.loads(stamp.read_text()) | {"done": False})[:cut])
    (tmp_path / "venv" / "half").touch()
    ran.clear()
    bootstrap.python_of("core")
    assert "-m venv" in ran[0] and not (tmp_path / "venv" / "half").exists()


@pytest.mark.parametrize("key", ["python", "root"])
def test_environment_of_another_python_or_place_is_made_again(
    key: str, bootstrap: ModuleType, ran: list[str], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    bootstrap.python_of("core")
    stamp = tmp_path / "venv" / bootstrap.STAMP
    stamp.write_text(json.dumps(json.loads(stamp.read_text()) | {key: "another"}))
    ran.clear()
    bootstrap.python_of("core")
    assert "-m venv" in ran[0]
    assert re.search(r"again: it .* another", capsys.readouterr().err)


def test_foreign_directory_is_left_alone(
    bootstrap: ModuleType, ran: list[str], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    (tmp_path / "venv").mkdir()
    (tmp_path / "venv" / "mine").write_text("work")
    with pytest.raises(SystemExit) as stop:
        bootstrap.python_of("core")
    assert stop.value.code == 2 and ran == []
    assert "was not made by this script" in capsys.readouterr().err
    assert (tmp_path / "venv" / "mine").read_text() == "work"


def test_plain_pip_where_uv_fails(
    bootstrap: ModuleType, ran: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = bootstrap._run
    monkeypatch.setattr(bootstrap, "_run", lambda c: run(c) and not str(c[0]).endswith("/uv"))
    bootstrap.python_of("core")
    assert "-m pip install" in ran[-2] and "--require-hashes" in ran[-2]
    assert "lock-core.txt" in ran[-2] and "--editable" in ran[-1]


def test_failed_update_keeps_what_works(
    bootstrap: ModuleType, ran: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a network `scripts/test` fails; what `scripts/quickstart` made goes on to work."""
    bootstrap.python_of("core")
    monkeypatch.setattr(bootstrap, "_run", lambda command: False)
    with pytest.raises(SystemExit):
        bootstrap.python_of("dev")
    bootstrap.python_of("core")


def test_quickstart_runs_the_sweep_and_shows_its_files(
    bootstrap: ModuleType,
    ran: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:
    monkeypatch.chdir(ROOT)
    commands = fake_processes(monkeypatch, lambda command: 0)
    (tmp_path / "quickstart" / "figures").mkdir(parents=True)
    (tmp_path / "quickstart" / "figures" / "frontier.png").touch()
    monkeypatch.setattr(sys, "argv", ["quickstart", "--workdir", str(tmp_path), "--workers=1"])
    assert load_script("quickstart").main() == 0
    assert commands == [
        f"{bootstrap.python_of('core')} {ROOT}/scripts/sweep.py --config=experiments/quickstart.py "
        f"--workdir={tmp_path} --workers=1"
    ]
    shown = capsys.readouterr().out
    assert "figures/frontier.png" in shown and "frontier.csv" not in shown
    assert f"tensorboard --logdir {tmp_path}/quickstart" in shown


def test_test_command_goes_on_after_a_failure(
    bootstrap: ModuleType, ran: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    commands = fake_processes(monkeypatch, lambda command: "ruff" in command)
    monkeypatch.setattr(sys, "argv", ["test", "-k", "heads"])
    assert load_script("test").main() == 1
    workers = f"-n {min(4, os.cpu_count() or 1)} --dist=loadfile"
    pytest_command = f"pytest {workers} -k heads"
    for part, command in zip(
        ("ruff check --output-format=concise", "ruff format --check", "mypy", pytest_command),
        commands,
        strict=True,
    ):
        assert command.endswith(part)
    commands.clear()
    monkeypatch.setattr(sys, "argv", ["test", "--smoke"])
    assert load_script("test").main() == 0
    assert len(commands) == 1 and commands[0].endswith(f"-m pytest {workers} -m smoke")


@pytest.mark.parametrize("python", PYTHONS)
def test_locks_hold_what_the_project_asks_for(python: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    groups = project["dependency-groups"]
    core = [*project["project"]["dependencies"], *groups["build"]]
    for lock, asked in (("core", core), ("dev", core + groups["dev"])):
        pinned = versions(lock, python)
        for requirement in map(Requirement, asked):
            version = pinned[canonicalize_name(requirement.name)]
            assert requirement.specifier.contains(version), f"{requirement} in lock-{lock}.txt"
    assert versions("core", python).items() <= versions("dev", python).items()
    assert versions("core", python)["jax"].startswith("0.10.2" if python == "3.11" else "0.12.")


def test_every_locked_file_has_a_hash() -> None:
    for name in ("uv.txt", "lock-core.txt", "lock-dev.txt"):
        for requirement, hashes in entries(name):
            assert hashes, f"{requirement} in requirements/{name}"
            assert all(re.fullmatch(r"--hash=sha256:[0-9a-f]{64}", text) for text in hashes)


@pytest.mark.smoke
def test_project_is_importable_from_anywhere(tmp_path: Path) -> None:
    code = "import mha_jax, configs, experiments; print(mha_jax.__file__)"
    done = subprocess.run(
        [sys.executable, "-I", "-c", code], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.stdout.strip() == str(ROOT / "mha_jax" / "__init__.py"), done.stderr


def test_commands_can_be_run() -> None:
    for path in (*(ROOT / "scripts" / name for name in SCRIPTS[:3]), ROOT / ".ci" / "run"):
        assert os.access(path, os.X_OK), f"chmod +x {path}"
    assert subprocess.run(["bash", "-n", ROOT / ".ci" / "run"]).returncode == 0


def test_version_and_license_are_told_alike() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert citation["license"] == project["license"] == "Apache-2.0"
    assert str(citation["version"]) == project["version"] == mha_jax.__version__
    assert {"cff-version", "message", "title", "authors"} <= citation.keys()


def load_script(name: str) -> ModuleType:
    """A file of scripts/, with or without a suffix, as a module."""
    loader = SourceFileLoader(name.removesuffix(".py"), str(ROOT / "scripts" / name))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def fake_processes(monkeypatch: pytest.MonkeyPatch, code: Callable[[list], int]) -> list[str]:
    """From now on subprocess.run only notes its command; returns the notes."""
    commands: list[str] = []

    def run(command: list, **options: object) -> SimpleNamespace:
        commands.append(" ".join(map(str, command)))
        return SimpleNamespace(returncode=int(code(command)))

    monkeypatch.setattr(subprocess, "run", run)
    return commands


def entries(name: str) -> Iterator[tuple[Requirement, list[str]]]:
    """(requirement, its hash options) of a file in requirements/."""
    text = (ROOT / "requirements" / name).read_text(encoding="utf-8").replace("\\\n", " ")
    for line in text.splitlines():
        requirement, *hashes = re.split(r"\s+(?=--hash)", line.strip())
        yield Requirement(requirement), [text.strip() for text in hashes]


def versions(lock: str, python: str) -> dict[str, str]:
    """Name -> version of what a lock installs on Linux under this Python."""
    environment = {"python_version": python, "python_full_version": f"{python}.0"}
    environment |= {"sys_platform": "linux", "platform_python_implementation": "CPython"}
    return {
        canonicalize_name(requirement.name): str(requirement.specifier).removeprefix("==")
        for requirement, _ in entries(f"lock-{lock}.txt")
        if requirement.marker is None or requirement.marker.evaluate(environment)
    }

"""What a process is made of before jax starts, and what is recorded of it."""

import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mha_jax import host

ROOT = Path(__file__).resolve().parents[1]
GLIBC = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="settings of glibc's malloc")

# Says what it finds each time it is started, so that a second start is seen.
STARTS = """
import json, os, sys
print(json.dumps({"tunables": os.environ.get("GLIBC_TUNABLES", ""), "argv": sys.argv[1:]}), flush=1)
from mha_jax import host
host.restart()
print(json.dumps({**host.prepare(None), "jax": "jax" in sys.modules}))
"""


def starts(**env: str) -> list[dict[str, Any]]:
    kept = {key: value for key, value in os.environ.items() if key != "GLIBC_TUNABLES"}
    done = subprocess.run(
        [sys.executable, "-c", STARTS, "a word", "--flag"],
        env={**kept, "JAX_PLATFORMS": "cpu", **env},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


@GLIBC
def test_a_script_starts_itself_again_once() -> None:
    first, second, settings = starts()
    assert first == {"tunables": "", "argv": ["a word", "--flag"]}
    assert second == {"tunables": host.HUGE_PAGES, "argv": ["a word", "--flag"]}
    assert settings["malloc"] and not settings["pinned"] and not settings["jax"]


@GLIBC
def test_what_the_user_has_set_stays() -> None:
    own = "glibc.malloc.perturb=0"
    _, second, _ = starts(GLIBC_TUNABLES=own)
    assert second["tunables"] == f"{own}:{host.HUGE_PAGES}"
    only, settings = starts(GLIBC_TUNABLES="glibc.malloc.hugetlb=0")
    assert only["tunables"] == "glibc.malloc.hugetlb=0" and not settings["huge_pages"]


@pytest.mark.parametrize("env", [{"MHA_JAX_HOST": "plain"}, {"JAX_PLATFORMS": "cuda"}], ids=str)
def test_a_process_that_is_left_alone(env: dict[str, str]) -> None:
    """The user said so, or it works for an accelerator."""
    only, settings = starts(**env)
    assert only["tunables"] == "" and not settings["malloc"] and not settings["huge_pages"]


@GLIBC
def test_the_environment_of_a_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    monkeypatch.delenv("MHA_JAX_HOST", raising=False)
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)
    monkeypatch.setenv("PYTHONPATH", "elsewhere")
    env = host.child_environment(tmp_path)
    assert env["GLIBC_TUNABLES"] == host.HUGE_PAGES
    assert env["JAX_COMPILATION_CACHE_DIR"] == str(tmp_path)
    assert env["PYTHONPATH"] == f"{ROOT}{os.pathsep}elsewhere"
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "own")
    assert host.child_environment(tmp_path)["JAX_COMPILATION_CACHE_DIR"] == "own"


def test_every_script_that_computes_starts_itself_again() -> None:
    """A launch leaves that to its workers, and the others compute nothing."""
    text = {path.stem: path.read_text() for path in (ROOT / "scripts").glob("*.py")}
    starts_again = {name for name in text if "\n    restart()\n    leave(" in text[name]}
    assert starts_again == {"attend", "bench", "decode", "heads", "prune", "sinks", "slots"}

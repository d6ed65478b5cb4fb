"""Signals, stuck workers, checkpoints that cannot be used, links: nothing is lost, and it is said
in one line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from launched import ROOT, finish, start, tables, write

from mha_jax import directories, files, host, lane, runner, runstate
from mha_jax.load import load
from mha_jax.sweep import expand


@pytest.fixture(scope="module")
def sweep(tmp_path_factory):
    """A config file, and the directory of its launch as a whole: four runs of a few seconds, with a
    checkpoint at the end alone."""
    directory = tmp_path_factory.mktemp("stopping")
    config = write(directory, n_steps=600)
    text = config.read_text()
    for old, new in (
        ("batch_size = 8", "batch_size = 256"),
        ("checkpoint_every = 20", "checkpoint_every = 10**6"),
        ("eval_every = 20", "eval_every = 200"),
        ("confirm = True", "confirm = False"),
    ):
        assert old in text
        text = text.replace(old, new)
    config.write_text(text)
    finish(start(config, directory / "whole", "--workers=2"))
    return config, directory / "whole"


def _patched(directory: Path, patch: str) -> str:
    """A PYTHONPATH with which every Python process runs `patch` at its start."""
    directory.mkdir(exist_ok=True)
    (directory / "sitecustomize.py").write_text(patch)
    return str(directory)


def _rows(root: Path) -> dict[str, list[dict]]:
    """The record of every run, without what a clock measured."""
    return {
        path.parent.name: [
            {k: v for k, v in json.loads(line).items() if not k.startswith("time/")}
            for line in path.read_text().splitlines()
        ]
        for path in root.glob("*/metrics.jsonl")
    }


def _wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def _at_work(workdir: Path) -> list[Path]:
    """The runs that are in the middle of their steps."""
    return [
        records.parent
        for records in workdir.glob("small/*/metrics.jsonl")
        if b'"train/loss"' in records.read_bytes()
        and not list(records.parent.glob("checkpoints/600"))
    ]


def _steps_saved(workdir: Path) -> dict[str, list[str]]:
    """The steps of the checkpoints of every run."""
    found: dict[str, list[str]] = {}
    for path in workdir.glob("small/*/checkpoints/*/manifest.json"):
        found.setdefault(path.parents[2].name, []).append(path.parent.name)
    return found


def test_a_signal_saves_what_is_at_work_and_the_rest_is_as_unbroken(sweep):
    config, whole = sweep
    workdir = config.parent / "stopped"
    for n, signum in enumerate((signal.SIGTERM, signal.SIGINT)):
        launched = start(config, workdir, "--workers=2")
        before = _rows(workdir / "small")
        _wait_for(
            lambda told=before: any(
                len(_rows(workdir / "small")[run.name]) > len(told.get(run.name, [])) + 3
                for run in _at_work(workdir)
            )
        )
        launched.send_signal(signum)
        out, err = launched.communicate(timeout=60)
        assert launched.returncode == 128 + signum, (out, err)
        (line,) = err.splitlines()
        assert f"stopped by {signum.name}: " in line and "launch again to continue" in line
        assert " runs in work are saved where they stood" in line
        # Not only at the end, and where the signal met them rather than at a row.
        steps = [int(step) for of_run in _steps_saved(workdir).values() for step in of_run]
        assert len([step for step in steps if 0 < step < 600]) > n
    finish(start(config, workdir, "--workers=2"))
    assert tables(workdir) == tables(whole)
    assert _rows(workdir / "small") == _rows(whole / "small")


def test_workers_heed_a_signal_of_their_own(tmp_path, sweep):
    """SIGTERM to a worker alone: its runs are saved, and go on in the next worker."""
    config, whole = sweep
    workdir = tmp_path / "out"
    launched = start(config, workdir, "--workers=1")
    _wait_for(lambda: _at_work(workdir))
    children = Path(f"/proc/{launched.pid}/task/{launched.pid}/children").read_text().split()
    os.kill(int(children[0]), signal.SIGTERM)
    out, _ = finish(launched)
    assert "exit code 143: " in out and "handed out again" in out
    for summary in (workdir / "small").glob("*/summary.json"):
        assert json.loads(summary.read_text())["attempts"] == 0
    assert tables(workdir)["frontier.csv"] == tables(whole)["frontier.csv"]


def test_a_second_signal_does_not_wait(sweep, tmp_path):
    """The worker cannot save: it hangs in its next dispatch."""
    config, _ = sweep
    patch = """
import sys, time
if "mha_jax.worker" in sys.orig_argv:
    from mha_jax import group
    train_chunk = group.Group.train_chunk
    def slow(self, state, hypers, n):
        print("hangs", file=sys.stderr, flush=True)
        time.sleep(1000)
    group.Group.train_chunk = slow
"""
    workdir = tmp_path / "out"
    path = _patched(tmp_path / "patch", patch)
    launched = start(config, workdir, "--workers=1", PYTHONPATH=path)
    log = workdir / "small" / "logs" / "workers.log"
    _wait_for(lambda: log.exists() and "hangs" in log.read_text())
    launched.send_signal(signal.SIGTERM)
    time.sleep(0.2)
    launched.send_signal(signal.SIGTERM)
    _, err = launched.communicate(timeout=60)
    assert launched.returncode == 143 and len(err.splitlines()) == 1


def test_a_worker_that_tells_nothing_is_ended_and_its_run_tried_once_more(tmp_path):
    config = write(tmp_path)
    config.write_text(config.read_text().replace("(0, 1)", "(0,)").replace("(1, 2)", "(1,)"))
    patch = """
import sys, time
if "mha_jax.worker" in sys.orig_argv:
    from mha_jax import group
    group.Group.train_chunk = lambda *args: time.sleep(1000)
"""
    path = _patched(tmp_path / "patch", patch)
    launched = start(config, tmp_path / "out", "--stuck_after=15", PYTHONPATH=path)
    out, err = launched.communicate(timeout=300)
    assert launched.returncode == 1, (out, err)
    assert out.count("the worker ended, since it told nothing for 15 s") == 2
    (summary,) = (tmp_path / "out" / "small").glob("*/summary.json")
    told = json.loads(summary.read_text())
    assert told["attempts"] == 2 and "told nothing for 15 s" in told["error"]


def test_checkpoints_of_which_none_can_be_used_end_with_3_and_stay_as_they_are(sweep, tmp_path):
    config, whole = sweep
    workdir = tmp_path / "out"
    subprocess.run(["cp", "-r", str(whole), str(workdir)], check=True)
    run = sorted((workdir / "small").glob("*-*"))[0]
    (run / "summary.json").unlink()
    for data in run.glob("checkpoints/*/data-*/**/*"):
        if data.is_file():
            data.write_bytes(b"")
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "sweep.py"), f"--config={config}"]
        + [f"--workdir={workdir}", "--workers=1"],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 3 and "Traceback" not in done.stdout + done.stderr
    (line,) = [line for line in done.stdout.splitlines() if "nothing was changed" in line]
    assert run.name.rpartition("-")[0] in line and "checkpoint" in line and "skipped" in line
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


def test_a_run_whose_directory_is_gone_leaves_the_others_alone(sweep, tmp_path):
    config, _ = sweep
    workdir = tmp_path / "out"
    launched = start(config, workdir, "--workers=1")
    _wait_for(lambda: _at_work(workdir))
    run = _at_work(workdir)[0]
    subprocess.run(["rm", "-rf", str(run)], check=True)
    out, err = launched.communicate(timeout=300)
    assert launched.returncode == 1 and "Traceback" not in out + err, (out, err)
    others = [path for path in (workdir / "small").glob("*-*") if path.is_dir() and path != run]
    assert len(others) >= 3 and all((other / "summary.json").exists() for other in others)


def test_links_that_lead_out_are_refused(sweep, tmp_path):
    config, whole = sweep
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "small").symlink_to(tmp_path / "elsewhere")
    launched = start(config, tmp_path / "out")
    _, err = launched.communicate(timeout=60)
    assert (
        launched.returncode == 2 and len(err.splitlines()) == 1 and "a link that leads out" in err
    )
    assert not list((tmp_path / "elsewhere").iterdir())

    workdir = tmp_path / "other"
    subprocess.run(["cp", "-r", str(whole), str(workdir)], check=True)
    run = sorted((workdir / "small").glob("*-*"))[0]
    run.rename(tmp_path / "elsewhere" / run.name)
    run.symlink_to(tmp_path / "elsewhere" / run.name)
    launched = start(config, workdir)
    _, err = launched.communicate(timeout=60)
    assert launched.returncode == 2 and len(err.splitlines()) == 1 and str(run) in err


def test_links_of_files_are_refused_too(sweep, tmp_path):
    """What is written in place would be written elsewhere."""
    config, _ = sweep
    outside = tmp_path / "mine.txt"
    for name in (".lock", "logs", "figures"):
        outside.write_text("mine")
        root = tmp_path / name / "small"
        root.mkdir(parents=True)
        (root / name).symlink_to(outside)
        _, err = start(config, root.parent).communicate(timeout=60)
        assert str(root / name) in err and len(err.splitlines()) == 1
        assert outside.read_text() == "mine"


def test_records_that_are_changed_while_a_run_writes_them_are_not_believed(tmp_path):
    config = write(tmp_path)
    (tmp_path / "small").mkdir()
    planned = expand(load(str(config))).runs[:1]
    (directory,) = directories.place(planned, tmp_path / "small").values()
    records, told = directory / "metrics.jsonl", []

    def emit(event):
        told.append(event)
        if event["event"] == "progress" and event["step"] == 20:
            raw = bytearray(records.read_bytes())
            raw[raw.index(b"0.") + 2] ^= 1  # another digit
            records.write_bytes(raw)

    runner.run_group([directory], emit, host.describe("cpu", {}))
    (failed,) = [event for event in told if event["event"] == "failed"]
    assert str(records) in failed["error"] and "changed while" in failed["error"]
    assert not runstate.read(directory).done


def test_a_run_that_was_mixed_stays_so(tmp_path):
    told = {"device": "cpu", "threads": 1}
    lane._record_environment(tmp_path, None, told, print)
    assert not json.loads((tmp_path / "run.json").read_text())["mixed"]
    (tmp_path / "run.json").write_text("{")
    for _ in range(2):  # what came before is not known, and from then on that is
        lane._record_environment(tmp_path, tmp_path, told, lambda event: None)
        assert json.loads((tmp_path / "run.json").read_text())["mixed"]


def test_within(tmp_path):
    (tmp_path / "in").mkdir()
    assert files.within(tmp_path, tmp_path / "in" / "new") == tmp_path / "in" / "new"
    (tmp_path / "in" / "back").symlink_to(tmp_path)
    assert files.within(tmp_path, tmp_path / "in" / "back")
    with pytest.raises(ValueError, match="leads out of"):
        files.within(tmp_path / "in", tmp_path / "in" / "back")

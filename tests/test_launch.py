"""From a config file to tables, with everything in between: kills, failures, launching again."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mha_jax import directories, jobs, parts, runstate
from mha_jax.engines.base import End
from mha_jax.engines.local import Local
from mha_jax.load import load
from mha_jax.parts import WHOLE
from mha_jax.pool import Hand, Pool
from mha_jax.progress import Progress
from mha_jax.sweep import expand

ROOT = Path(__file__).parents[1]
CONFIG = """
from configs import base

def get_config(arg=None):
    config = base.get_config()
    config.experiment = "small"
    config.model.d_model = 8
    config.model.n_heads = 2
    config.train.n_steps = {n_steps}
    config.train.batch_size = 8
    config.train.eval_every = 20
    config.train.n_eval = config.train.n_test = config.train.n_probe = 16
    config.optim.warmup_steps = 5
    config.log.every = 10
    config.log.checkpoint_every = 20
    return config

def sweep(add):
    for n_kv_heads in (1, 2):
        for seed in range({seeds}):
            add({{"model.n_kv_heads": n_kv_heads, "train.seed": seed}})
"""
TABLES = ("runs.csv", "frontier.csv", "comparisons.csv", "heads.csv")


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """One compile cache for all: the shapes are the same."""
    return tmp_path_factory.mktemp("cache")


def _write(directory: Path, n_steps: int = 60, seeds: int = 2) -> Path:
    path = directory / "small.py"
    path.write_text(CONFIG.format(n_steps=n_steps, seeds=seeds))
    return path


def _command(config: Path, workdir: Path) -> list[str]:
    script = ROOT / "scripts" / "sweep.py"
    return [sys.executable, str(script), f"--config={config}", f"--workdir={workdir}"]


def _sweep(config: Path, workdir: Path, cache: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        _command(config, workdir),
        env={**os.environ, "JAX_COMPILATION_CACHE_DIR": str(cache)},
        capture_output=True,
        text=True,
        timeout=300,
    )


def _tables(root: Path) -> dict[str, str]:
    return {name: (root / name).read_text() for name in TABLES}


@pytest.mark.smoke
def test_a_killed_sweep_continues_and_ends_like_an_unbroken_one(tmp_path, cache):
    config = _write(tmp_path, n_steps=400)
    done = _sweep(config, tmp_path / "whole", cache)
    assert done.returncode == 0, done.stderr
    whole = tmp_path / "whole" / "small"
    assert (whole / "figures" / "frontier.svg").exists()
    timing = (whole / "timing.csv").read_text().splitlines()[0].split(",")
    assert {"decode_tokens_per_s", "decode_kv_bytes", "train_s"} <= set(timing)

    broken = tmp_path / "broken" / "small"
    for _ in range(3):
        process = subprocess.Popen(
            _command(config, tmp_path / "broken"),
            env={**os.environ, "JAX_COMPILATION_CACHE_DIR": str(cache)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        before = len(list(broken.glob("*/checkpoints/*/manifest.json")))
        deadline = time.monotonic() + 120
        while (  # a kill in the middle: some checkpoints have been added, the sweep is not over
            len(list(broken.glob("*/checkpoints/*/manifest.json"))) < before + 2
            and process.poll() is None
            and time.monotonic() < deadline
        ):
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
        process.wait()
    finished = {path: path.stat().st_mtime_ns for path in broken.glob("*/summary.json")}
    done = _sweep(config, tmp_path / "broken", cache)
    assert done.returncode == 0, done.stderr
    assert {path: path.stat().st_mtime_ns for path in finished} == finished  # not run again
    assert _tables(broken) == _tables(whole)
    for directory in whole.glob("*/metrics.jsonl"):
        assert _untimed(broken / directory.parent.name / "metrics.jsonl") == _untimed(directory)


def _untimed(path: Path) -> list[dict[str, float]]:
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return [{k: v for k, v in row.items() if not k.startswith("time/")} for row in rows]


def test_extending_a_sweep_runs_only_what_is_new(tmp_path, cache):
    config = _write(tmp_path, seeds=1)
    assert _sweep(config, tmp_path / "out", cache).returncode == 0
    root = tmp_path / "out" / "small"
    first = {path: path.stat().st_mtime_ns for path in root.glob("*/summary.json")}
    assert len(first) == 2
    done = _sweep(_write(tmp_path, seeds=2), tmp_path / "out", cache)
    assert "2 of 4 runs were finished before" in done.stdout
    assert {path: path.stat().st_mtime_ns for path in first} == first
    assert len(list(root.glob("*/summary.json"))) == 4
    # another budget is another run, never a stale hit
    done = _sweep(_write(tmp_path, seeds=1, n_steps=80), tmp_path / "out", cache)
    assert "finished before" not in done.stdout
    assert len(list(root.glob("*/summary.json"))) == 6


def test_a_later_launch_may_say_otherwise_about_its_runs(tmp_path, cache):
    """What counts as converged is no part of a run; a run that is over is not run again."""
    config = _write(tmp_path, seeds=1)
    assert _sweep(config, tmp_path / "out", cache).returncode == 0
    root = tmp_path / "out" / "small"
    first = {path: path.stat().st_mtime_ns for path in root.glob("*/summary.json")}
    config.write_text(
        config.read_text().replace("    return", "    config.converge.tol = 0.5\n    return")
    )
    done = _sweep(config, tmp_path / "out", cache)
    assert done.returncode == 0 and "2 of 2 runs were finished before" in done.stdout
    assert {path: path.stat().st_mtime_ns for path in first} == first
    about = [json.loads(path.read_text())["about"] for path in root.glob("*/config.json")]
    assert {one["converge"]["tol"] for one in about} == {0.5}


def test_unfinished_runs_of_another_plan_are_named(tmp_path, cache):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "small").mkdir()
    directories.place(expand(load(str(_write(tmp_path, seeds=2)))).runs, tmp_path / "out" / "small")
    done = _sweep(_write(tmp_path, seeds=1), tmp_path / "out", cache)
    assert done.returncode == 0, done.stderr
    assert "2 unfinished runs of an earlier plan" in done.stdout


@pytest.mark.parametrize("keep", [0, 100])
def test_a_damaged_config_json_is_named(tmp_path, keep):
    planned = expand(load(str(_write(tmp_path, seeds=1)))).runs
    of = directories.place(planned, tmp_path)
    path = of[planned[0].run.hash] / "config.json"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ValueError, match=str(path)):
        directories.place(planned, tmp_path)
    assert len(path.read_bytes()) == keep


def test_a_diverged_run_is_recorded_and_the_others_are_as_without_it(tmp_path, cache):
    config = _write(tmp_path, seeds=1)
    assert _sweep(config, tmp_path / "calm", cache).returncode == 0
    # each step multiplies the matrices by 1 - lr * weight_decay = -99
    config.write_text(
        config.read_text() + '    add({"optim.lr": 10.0, "optim.weight_decay": 10.0})\n'
    )
    done = _sweep(config, tmp_path / "wild", cache)
    assert done.returncode == 0, done.stderr
    rows = [
        {row["hash"]: row for row in csv.DictReader((tmp_path / name).read_text().splitlines())}
        for name in ("calm/small/runs.csv", "wild/small/runs.csv")
    ]
    calm, wild = rows
    (lost,) = wild.keys() - calm.keys()
    assert wild[lost]["status"] == "diverged" and int(wild[lost]["diverged_at"]) > 0
    assert "lr=10.0" in done.stdout and ": diverged" in done.stdout
    assert wild[lost]["test/accuracy"] in ("", "nan")  # the argmax of NaN is no answer
    for run, row in calm.items():
        assert wild[run]["status"] == "done"
        assert wild[run]["test/accuracy"] == row["test/accuracy"]


def test_workers_that_cannot_start_end_the_launch_and_blame_no_run(tmp_path):
    config = _write(tmp_path, seeds=1)
    done = subprocess.run(
        _command(config, tmp_path / "out"),
        env={**os.environ, "JAX_PLATFORMS": "cpux"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 1
    assert "before its first job" in done.stderr and "workers.log" in done.stderr
    assert "Traceback" not in done.stderr and len(done.stderr.splitlines()) == 1
    assert not list((tmp_path / "out" / "small").glob("*/summary.json"))


def test_a_second_launch_is_kept_out(tmp_path):
    config = _write(tmp_path, seeds=1)
    with parts.locked(tmp_path / "out" / "small"):
        done = subprocess.run(
            _command(config, tmp_path / "out"), capture_output=True, text=True, timeout=120
        )
    assert done.returncode == 2
    assert f"pid {os.getpid()}" in done.stderr and len(done.stderr.splitlines()) == 1
    with parts.locked(tmp_path / "out" / "small"):
        pass


@pytest.mark.parametrize("workdir", ["/proc/none", "a" * 300])
def test_a_directory_that_cannot_be_made_is_one_line(tmp_path, workdir):
    command = _command(_write(tmp_path), Path(workdir))
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2 and "Traceback" not in done.stderr


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"status": "wat"}', '{"status": "failed"}'])
def test_an_unreadable_summary_is_none(tmp_path, text):
    (tmp_path / "summary.json").write_text(text)
    assert runstate.read(tmp_path) == runstate.RunState()


def test_failures_of_other_source_code_do_not_count(tmp_path, monkeypatch):
    runstate.record_failure(tmp_path, "out of memory")
    assert runstate.record_failure(tmp_path, "out of memory").given_up
    monkeypatch.setattr(runstate.host, "source_digest", lambda: "mended")
    assert not runstate.read(tmp_path).given_up


def test_a_failed_run_is_tried_twice_and_an_identical_failure_once(tmp_path):
    assert not runstate.record_failure(tmp_path, "out of memory").given_up
    assert runstate.record_failure(tmp_path, "disk full").given_up
    other = tmp_path / "other"
    other.mkdir()
    runstate.record_failure(other, "out of memory")
    state = runstate.record_failure(other, "out of memory")
    assert state.repeated and state.given_up and runstate.read(other) == state
    assert runstate.read(tmp_path / "none") == runstate.RunState()


def test_cores_depend_on_the_sweep_and_not_on_what_is_left(monkeypatch):
    monkeypatch.setattr(jobs.host, "cores", lambda: [0, 1, 2])
    monkeypatch.setattr(jobs.host, "accelerator", lambda: False)
    assert jobs.cpus(n_runs=5, workers=None) == [0, 1, 2]
    assert jobs.cpus(n_runs=1, workers=None) == [None]
    assert jobs.cpus(n_runs=5, workers=1) == [None]
    assert jobs.cpus(n_runs=5, workers=4) == [0, 1, 2, 0]
    monkeypatch.setattr(jobs.host, "accelerator", lambda: True)
    assert jobs.cpus(n_runs=5, workers=None) == [None]


def test_groups_are_split_only_when_workers_would_stand_idle(tmp_path):
    planned = expand(load(str(_write(tmp_path, seeds=4)), None, [])).runs
    assert sorted(map(len, jobs.jobs_of(planned, 2))) == [4, 4]
    assert sorted(map(len, jobs.jobs_of(planned, 4))) == [2, 2, 2, 2]
    assert sorted(map(len, jobs.jobs_of(planned, 1))) == [4, 4]
    together = [run for job in jobs.jobs_of(planned, 64) for run in job]
    assert len(together) == 8


def test_progress_on_a_pipe_is_plain_lines(tmp_path, capsys):
    (planned,) = expand(load(str(_write(tmp_path, seeds=1)), None, [])).runs[:1]
    with Progress(2) as progress:
        event = {"event": "progress", "step": 5, "n_steps": 10, "loss": 1.0}
        progress.show(planned, {**event, "name": "accuracy", "metric": None})
        done = {"event": "done", "name": "accuracy", "metric": 0.5, "diverged": False}
        progress.show(planned, done)
    lines = capsys.readouterr().out.splitlines()
    assert "step 5/10" in lines[0]
    assert lines[1].startswith("[1/2]") and "accuracy 0.5" in lines[1]


@pytest.fixture
def lost(tmp_path):
    """`lost(end)`: a pool whose worker has three runs, has begun the first, and ends so."""
    planned = expand(load(str(_write(tmp_path, seeds=3)), None, [])).runs[:3]
    of = {one.run.hash: tmp_path / one.run.hash for one in planned}
    for directory in of.values():
        directory.mkdir()
    log = tmp_path / "workers.log"
    engine = Local(WHOLE, tmp_path, log)
    pool = Pool([planned], of, engine, [None], log, Progress(3))

    def end(how: End, begun: bool = True) -> tuple[Pool, list[int]]:
        started = {planned[0].run.hash} if begun else set()
        hand = Hand(None, job=pool.jobs.pop(), started=started, begun=begun)
        pool._lost(hand, how)
        return pool, [runstate.read(of[one.run.hash]).attempts for one in planned]

    return end


def test_a_dead_worker_costs_only_the_run_it_had_begun_an_attempt(lost, capsys):
    pool, attempts = lost(End("exit code 9", was_ready=True))
    assert attempts == [1, 0, 0]
    assert list(map(len, pool.jobs)) == [1, 2]
    assert "the worker died (exit code 9)" in capsys.readouterr().out


def test_a_worker_that_dies_before_it_has_begun_costs_all_its_runs_an_attempt(lost):
    """Else the job would be handed out for ever."""
    pool, attempts = lost(End("exit code -9", was_ready=True), begun=False)
    assert attempts == [1, 1, 1] and list(map(len, pool.jobs)) == [1, 1, 1]


def test_a_worker_that_was_told_to_leave_costs_no_run_an_attempt(lost):
    pool, attempts = lost(End("exit code 143", was_ready=True))
    assert attempts == [0, 0, 0] and list(map(len, pool.jobs)) == [3]


def test_a_run_that_is_over_is_no_longer_in_the_hands_of_its_worker(tmp_path, capsys):
    planned = expand(load(str(_write(tmp_path, seeds=2)))).runs[:2]
    of = {one.run.hash: tmp_path / one.run.hash for one in planned}
    for directory in of.values():
        directory.mkdir()
    engine = Local(WHOLE, tmp_path, tmp_path / "workers.log")
    pool = Pool([list(planned)], of, engine, [None], tmp_path / "workers.log", Progress(2))
    pool.jobs.clear()
    a, b = (one.run.hash for one in planned)
    hand = Hand(None, job=list(planned))
    for event in ("start", "failed"):
        pool._report(hand, {"event": event, "run": a, "error": "out of memory"})
    pool._report(hand, {"event": "start", "run": b})
    pool._lost(hand, End("exit code -9", was_ready=True))
    assert runstate.read(of[a]).attempts == 0  # the worker records that itself
    assert runstate.read(of[b]).attempts == 1
    assert [[one.run.hash for one in job] for job in pool.jobs] == [[a], [b]]


def test_a_lost_machine_costs_no_run_an_attempt(lost, capsys):
    pool, attempts = lost(End("a node was lost", was_ready=True, place_lost=True))
    assert attempts == [0, 0, 0]
    assert list(map(len, pool.jobs)) == [3]
    assert "a node was lost: 3 runs are handed out again" in capsys.readouterr().out

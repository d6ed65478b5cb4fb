"""The flags that choose where workers run, and what an engine does without a pool."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest

from mha_jax import cli, host
from mha_jax.engines import options
from mha_jax.engines.base import End, WorkerError
from mha_jax.engines.hosts import Hosts
from mha_jax.parts import Part


def test_options_of_a_command_line():
    read, problems = options.read({"--part": "2/8", "--workers": "3"})
    assert (read.part, read.workers, read.engine, problems) == (Part(2, 8), 3, "local", [])
    assert read.log_name == "workers-2-of-8.log"
    read, problems = options.read({"--hosts": "10.0.0.1:9911,1,4"})
    assert read.hosts == "10.0.0.1:9911,1,4" and read.log_name == "workers-2-of-4.log"
    assert options.read({}) == (options.Options(), [])


def test_ray_that_is_not_installed_is_one_line(monkeypatch, capsys):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        options.importlib.util, "find_spec", lambda name: None if name == "ray" else find(name)
    )
    arguments = ["--config=experiments/quickstart.py", "--workdir=results", "--engine=ray"]
    assert cli.main(arguments) == 2
    (_, line) = capsys.readouterr().err.splitlines()
    assert "needs Ray, which is not installed; pip install -e .[ray]" in line


def test_cores_are_handed_out_once(tmp_path, monkeypatch):
    monkeypatch.setattr(host, "cores", lambda: [3, 5])
    assert [host.free_core(tmp_path), host.free_core(tmp_path)] == [3, 5]
    assert host.free_core(tmp_path) in (3, 5)  # all are taken


class FakeProcess:
    """Stands for the worker of a host."""

    def __init__(self, flags, cache, log, listen):
        self.listen, self.said = listen, []
        listen({"event": "ready", "process": 1, "processes": 2})

    def say(self, job):
        self.said.append(job)

    def give(self, directories):
        self.say(directories)

    def stop(self):
        self.say("stop")

    def kill(self):
        self.say("killed")

    def wait(self, timeout_s):
        pass


def test_the_worker_of_a_host_serves_one_pool_after_another(tmp_path, monkeypatch):
    monkeypatch.setattr("mha_jax.engines.hosts.Process", FakeProcess)
    with Hosts("auto", tmp_path, tmp_path / "log") as engine:
        assert engine.part == Part(2, 2) and engine.slots(9, None) == [None]
        for job in ("first", "second"):
            heard: list = []
            worker = engine.start(None, heard.append)
            assert heard == [{"event": "ready"}]
            worker.give(job)
            worker.close()
            assert heard[1:] == [End("let go", was_ready=True)]
        process = engine._process
    assert process.said == ["first", "second", {"leave": True}]


def test_a_host_whose_worker_is_gone_cannot_go_on(tmp_path, monkeypatch):
    monkeypatch.setattr("mha_jax.engines.hosts.Process", FakeProcess)
    engine, heard = Hosts("auto", tmp_path, tmp_path / "log"), list[Any]()
    with pytest.raises(WorkerError, match="another host is gone; launch again on every"), engine:
        engine.start(None, heard.append)
        engine._process.listen(End("exit code -6", was_ready=True))
        assert heard[1:] == [End("exit code -6", was_ready=True, place_lost=True)]
        engine.start(None, heard.append)
    assert engine._process.said == ["killed"]

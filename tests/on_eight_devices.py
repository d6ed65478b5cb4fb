"""Lanes over eight virtual CPU devices. Their number is fixed when jax starts, so
`tests/test_devices.py` runs this file in a process of its own."""

from __future__ import annotations

import dataclasses
import functools
import json
import re
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec
from synthetic import make_run, static

from mha_jax import runner
from mha_jax.checkpoint import Checkpoints
from mha_jax.config import Hypers, StaticConfig
from mha_jax.group import Group
from mha_jax.kernel_choice import Choice
from mha_jax.placement import n_lanes

HYPERS = [Hypers(seed, seed % 3, (3e-3, 1e-3)[seed % 2], 0.1 * (seed % 2)) for seed in range(11)]
COLLECTIVES = (
    "all-reduce|all-gather|all-to-all|collective-permute|collective-broadcast|reduce-scatter"
)
ENVIRONMENT = {"device": "cpu", "threads": 2, "source": "", "versions": {}}


def small(task: str = "relations", **changes: Any) -> StaticConfig:
    """A config whose programs compile quickly."""
    sizes = {"batch_size": 8, "n_eval": 8, "n_test": 8, "n_probe": 8, "eval_every": 10}
    spec = static(task, 2, n_steps=20, model={"d_model": 16}, d_head=8, **changes)
    return dataclasses.replace(spec, train=dataclasses.replace(spec.train, **sizes))


@functools.cache
def group_of(mode: str, n_devices: int, lanes: int) -> Group:
    """Compiled once for all tests."""
    return Group(small(), lanes, mode, jax.local_devices()[:n_devices])


def trained(group: Group, hypers: list[Hypers]) -> Any:
    """The states after 20 steps."""
    arrays = group.hypers(hypers)
    return group.train_chunk(group.init(arrays), arrays, 20)


def lanes_of(group: Group, hypers: list[Hypers]) -> list[Any]:
    """The state of each run after 20 steps, [1, ...]."""
    found = []
    for start in range(0, len(hypers), group.lanes):
        batch = hypers[start : start + group.lanes]
        state = trained(group, batch)
        found += [jax.device_get(group.lane(state, r)) for r in range(len(batch))]
    return found


def assert_apart(group: Group) -> None:
    """No program of a group has a collective."""
    for compiled in group.executables:
        text = compiled.as_text()
        assert "num_partitions=" in text
        assert not re.findall(COLLECTIVES, text)


def close(one: Any, other: Any) -> None:
    """A program of partitions sums in another order, and so do batched products: 1e-7 a step."""
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), one, other)


def test_there_are_eight() -> None:
    assert jax.local_device_count() == 8


@pytest.mark.parametrize("mode", ["sequential", "vmap"])
def test_lanes_are_the_runs_alone(mode: str) -> None:
    group, alone = group_of(mode, 8, n_lanes(11, mode, 8)), group_of("sequential", 1, 1)
    for one, other in zip(lanes_of(group, HYPERS), lanes_of(alone, HYPERS), strict=True):
        close(one.params, other.params)
    assert_apart(group)


@pytest.mark.parametrize("mode, per_device", [("sequential", 1), ("vmap", 2)])
def test_a_device_computes_the_same_beside_others(mode: str, per_device: int) -> None:
    some = HYPERS[: 2 * per_device]
    few = lanes_of(group_of(mode, 2, 2 * per_device), some)
    many = lanes_of(group_of(mode, 8, 8 * per_device), some)
    jax.tree.map(np.testing.assert_array_equal, few, many)


def test_each_device_holds_its_lanes_and_no_more() -> None:
    devices, group = jax.local_devices(), group_of("vmap", 8, 16)
    arrays, state = group.hypers(HYPERS), trained(group, HYPERS)
    for x in jax.tree.leaves((arrays, state)):
        assert x.sharding.spec == PartitionSpec("run")
        shards = {shard.device: shard for shard in x.addressable_shards}
        for i, device in enumerate(devices):
            assert shards[device].data.shape == (2, *x.shape[1:])
            assert shards[device].index[0] == slice(2 * i, 2 * i + 2)
    for r in range(16):
        own = group.lane(state, r)
        for x, y in zip(jax.tree.leaves(own), jax.tree.leaves(state), strict=True):
            assert x.device == devices[r // 2]
            np.testing.assert_array_equal(x, np.asarray(y)[r : r + 1])


def test_lanes_that_do_not_divide_are_refused() -> None:
    with pytest.raises(ValueError, match="lanes=11 must be a multiple of the 8 devices"):
        Group(small(), 11, "vmap", jax.local_devices())
    with pytest.raises(ValueError, match="one lane a device, of which there are 8"):
        Group(small(), 16, "sequential", jax.local_devices())


def planned(root: Any, spec: StaticConfig, hypers: list[Hypers]) -> list[Any]:
    """Run directories that no worker has opened yet."""
    about = {
        "log": {"every": 10, "checkpoint_every": 10, "keep": 3, "tensorboard": False, "n_images": 0}
    }
    made = []
    for one in hypers:
        fields = {"seed": one.seed, "lr": one.lr, "weight_decay": one.weight_decay}
        directory = make_run(root, spec, status="unfinished", about=about, **fields)
        (directory / "metrics.jsonl").unlink()
        (directory / "run.json").unlink()
        made.append(directory)
    return made


def saved(directory: Any, template: Any) -> Any:
    """The last state of a run."""
    config_hash = json.loads((directory / "config.json").read_text())["hash"]
    restored = Checkpoints(directory, keep=3, config_hash=config_hash).restore(template)
    assert restored is not None and restored.step == 20
    return restored.state


@pytest.fixture
def groups(monkeypatch: pytest.MonkeyPatch) -> list[Group]:
    """The groups that the runner makes."""
    made: list[Group] = []

    def make(*args: Any) -> Group:
        made.append(Group(*args))
        return made[-1]

    monkeypatch.setattr(runner, "Group", make)
    return made


def test_runs_go_on_under_another_number_of_devices(tmp_path: Any, groups: list[Group]) -> None:
    spec, events = small(), list[dict[str, Any]]()
    whole, broken, alone = (
        planned(tmp_path / name, spec, HYPERS[:3]) for name in ("whole", "broken", "alone")
    )
    runner.run_group(whole, events.append, ENVIRONMENT)
    assert_apart(groups[0])
    runner.run_group(alone[:1], events.append, ENVIRONMENT)
    assert [e["event"] for e in events].count("done") == 4

    def stop(event: dict[str, Any]) -> None:
        if event["event"] == "progress" and event["step"] == 20:
            raise RuntimeError("stopped")

    runner.run_group(broken, stop, ENVIRONMENT)
    events.clear()
    runner.run_group(broken[:2], events.append, ENVIRONMENT)  # on two devices of three
    assert not [e for e in events if e["event"] in ("note", "failed")]
    (template,) = lanes_of(group_of("sequential", 1, 1), HYPERS[:1])
    for one, other in zip(whole[:2], broken[:2], strict=True):
        jax.tree.map(np.testing.assert_array_equal, saved(one, template), saved(other, template))
        told = json.loads((other / "run.json").read_text())
        assert [session["n_devices"] for session in told["sessions"]] == [3, 2]
        assert told["lane_mode"] == "sequential over devices" and not told["mixed"]

    # One lane's checkpoint is what a lone run writes.
    close(saved(whole[0], template).params, saved(alone[0], template).params)
    told = json.loads((alone[0] / "run.json").read_text())
    assert (told["lane_mode"], told["n_devices"]) == ("sequential", 1)

    # The third goes on alone: other last digits, which is told.
    runner.run_group(broken[2:], events.append, ENVIRONMENT)
    assert any("other lane_mode than before: marked mixed" in e.get("text", "") for e in events)
    assert json.loads((broken[2] / "run.json").read_text())["mixed"]


def test_padded_lanes_are_marked_and_dropped(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, groups: list[Group]
) -> None:
    """And what is recorded of a kernel that is not used reaches the user and each run."""
    fell_back = Choice("auto", "fast", "splash fails here", fallback=True)
    monkeypatch.setattr(runner, "lane_mode", lambda: "vmap")
    monkeypatch.setattr(runner.kernel_choice, "choose", lambda *_: fell_back)
    events: list[dict[str, Any]] = []
    spec = small("text", length=16)
    spec = dataclasses.replace(spec, task=dataclasses.replace(spec.task, data_hash=""))
    directories = planned(tmp_path, spec, HYPERS)
    runner.run_group(directories, events.append, ENVIRONMENT)
    assert [e["event"] for e in events].count("done") == 11
    for directory in directories:
        told = json.loads((directory / "run.json").read_text())
        assert told["n_devices"] == 8 and told["lanes_per_device"] == 2
        assert told["padded_lanes"] == 5 and told["kernels"] == fell_back._asdict()
        assert json.loads((directory / "summary.json").read_text())["status"] == "done"
    notes = [event["text"] for event in events if event["event"] == "note"]
    assert len(notes) == 1 and "model.kernel='auto': fast, since splash fails here" in notes[0]
    # Init, chunk, two evaluations, look, compare, repeated tokens, documents.
    assert len(groups[0].executables) == 8
    assert_apart(groups[0])

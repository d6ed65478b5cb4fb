"""Checkpoints: bit for bit, and what happens when they are killed, flipped, cut or lost."""

import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import save_loop

from mha_jax import manifest, packing
from mha_jax.checkpoint import CheckpointError, Checkpoints
from mha_jax.writer import RunWriter

ROOT = Path(__file__).resolve().parent.parent


class State(NamedTuple):
    step: Any
    params: Any
    opt: Any


def state_at(step, n=8):
    """A state like a run's, another one for every step."""
    params = {
        "layers": {"0": {name: jax.random.normal(jax.random.key(step), (n, n)) for name in "qkvo"}},
        "table": jnp.full((3, n), step, jnp.bfloat16),
    }
    opt = optax.adamw(1e-3).init(params)
    return State(
        jnp.int32(step), params, jax.tree.map(lambda x: x + jnp.asarray(step, x.dtype), opt)
    )


def same(actual, desired):
    """Whether two trees are equal in structure, dtypes, shapes and every bit."""
    if jax.tree.structure(actual) != jax.tree.structure(desired):
        return False
    pairs = zip(
        *(map(np.asarray, jax.tree.leaves(tree)) for tree in (actual, desired)), strict=True
    )
    return all(
        a.dtype == d.dtype and a.shape == d.shape and a.tobytes() == d.tobytes() for a, d in pairs
    )


def open_run(run_dir, keep=3, config_hash="0123456789"):
    return Checkpoints(run_dir, keep=keep, config_hash=config_hash)


def save(checkpoints, step, *, best=False, state=None):
    state = state_at(step) if state is None else state
    checkpoints.save(step, state, records_bytes=10 * step, metric=0.5, best=best)
    checkpoints.close()


def contents(directory):
    return {
        str(path.relative_to(directory)): path.read_bytes() if path.is_file() else None
        for path in directory.rglob("*")
    }


def test_every_bit_comes_back(tmp_path):
    weird = np.array([0x7FC00001, 0xFFC12345, 0x80000000, 0x00000001], np.uint32)
    state = {
        "state": state_at(3),
        "nan_payloads": weird.view(np.float32),
        "wide": np.array([1 / 3, -0.0]),
        "flags": (np.array([True, False]), [np.zeros((0, 4), np.float16), np.int8(-3)]),
        "half": jnp.asarray([1.5, jnp.inf], jnp.bfloat16),
        "transposed": np.arange(12.0).reshape(3, 4).T,
        "complex": np.array(1 + 2j),
        "none": None,
    }
    save(open_run(tmp_path), 3, state=state)
    restored = open_run(tmp_path).restore(state)
    assert (restored.step, restored.records_bytes, restored.skipped) == (3, 30, [])
    assert same(restored.state, state)
    restored.state["state"].params["table"][:] = 0  # arrays of one's own, not views of a file


def test_python_numbers_come_back_as_such(tmp_path):
    state = {"step": 3, "lr": 0.1, "done": True}
    save(open_run(tmp_path), 3, state=state)
    restored = open_run(tmp_path).restore(state).state
    assert restored == state
    assert {k: type(v) for k, v in restored.items()} == {"step": int, "lr": float, "done": bool}


def test_parameters_alone_by_path(tmp_path):
    save(open_run(tmp_path), 3)
    shapes = jax.eval_shape(lambda: state_at(0).params)
    restored = open_run(tmp_path).restore({"params": shapes}, partial=True)
    assert same(restored.state, {"params": state_at(3).params})


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        (state_at(0, n=9), r"params/layers/0/k is float32 \[8, 8\], not float32 \[9, 9\]"),
        ({"params": state_at(0).params}, "it holds opt/0/count, .* besides what is expected"),
        ({**state_at(0)._asdict(), "more": np.zeros(2)}, "it lacks more"),
        (state_at(0)._replace(step=jnp.float32(0)), r"step is int32 \[\], not float32 \[\]"),
    ],
)
def test_another_tree_is_refused(tmp_path, template, reason):
    save(open_run(tmp_path), 3)
    with pytest.raises(CheckpointError, match=f"checkpoint 3 skipped: {reason}") as error:
        open_run(tmp_path).restore(template)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("state", "kind", "text"),
    [
        ({"a": np.array(["text"])}, TypeError, "a: an array of <U4"),
        ({"a": np.array([None])}, TypeError, "a: an array of object"),
        ({"a": np.array([1.0], ">f8")}, TypeError, "a: an array of >f8"),
        ({"a/b": np.ones(1), "a": {"b": np.ones(1)}}, ValueError, "two leaves have one path"),
        ({}, ValueError, "nothing to save"),
    ],
)
def test_what_cannot_be_saved_is_refused(tmp_path, state, kind, text):
    with pytest.raises(kind, match=text):
        save(open_run(tmp_path), 1, state=state)
    assert not (tmp_path / "checkpoints").exists()


def test_no_checkpoints(tmp_path):
    for step in (None, 3, "best"):
        assert open_run(tmp_path).restore(state_at(0), step) is None
    assert open_run(tmp_path).steps() == [] and not list(tmp_path.iterdir())
    with pytest.raises(ValueError, match="keep=0"):
        open_run(tmp_path, keep=0)


def test_the_newest_and_the_best_are_kept(tmp_path):
    checkpoints = open_run(tmp_path, keep=2)
    kept = []
    for step, best in [
        (0, True),
        (9, False),
        (10, True),
        (20, False),
        (100, False),
        (200, True),
        (300, False),
    ]:
        save(checkpoints, step, best=best)
        kept.append(checkpoints.steps())
    assert kept == [[0], [0, 9], [9, 10], [10, 20], [10, 20, 100], [100, 200], [200, 300]]
    assert {path.name for path in (tmp_path / "checkpoints").iterdir()} == {"200", "300"}


def test_one_can_be_asked_for(tmp_path):
    checkpoints = open_run(tmp_path)
    for step, best in [(1, True), (2, True), (3, False)]:
        save(checkpoints, step, best=best)
    for asked, found in [(None, 3), ("best", 2), (1, 1), (np.int64(1), 1)]:
        restored = checkpoints.restore(state_at(0), asked)
        assert restored.step == found and same(restored.state, state_at(found))
    with pytest.raises(CheckpointError, match="none is of step 7; there are 1, 2, 3"):
        checkpoints.restore(state_at(0), 7)


def test_an_older_one_does_not_pass_for_the_best(tmp_path):
    checkpoints = open_run(tmp_path)
    with pytest.raises(CheckpointError, match="no checkpoint is marked best"):
        save(checkpoints, 1)
        checkpoints.restore(state_at(0), "best")
    for step, best in [(2, True), (3, True), (4, False)]:
        save(checkpoints, step, best=best)
    flip(tmp_path / "checkpoints/3/data-1/state/0", 0)
    with pytest.raises(CheckpointError, match=r"checkpoint 3 skipped: data-1/state/0 is damaged"):
        checkpoints.restore(state_at(0), "best")
    (tmp_path / "checkpoints/3/manifest.json").unlink()  # now nobody knows whether it was
    restored = checkpoints.restore(state_at(0), "best")
    assert restored.step == 2
    assert restored.skipped == ["checkpoint 3 skipped: manifest.json is missing"]


def test_a_step_can_be_saved_again(tmp_path):
    checkpoints = open_run(tmp_path)
    for state in (5, 6, 7):
        save(checkpoints, 1, state=state_at(state))
        assert same(checkpoints.restore(state_at(0)).state, state_at(state))
    assert {path.name for path in (tmp_path / "checkpoints/1").iterdir()} == {
        "manifest.json",
        "data-3",
    }


def test_a_damaged_one_is_made_anew_and_takes_no_place(tmp_path):
    checkpoints = open_run(tmp_path, keep=2)
    for step in (1, 2, 3):
        save(checkpoints, step)
    flip(tmp_path / "checkpoints/3/data-1/state/0", 5)
    resumed = open_run(tmp_path, keep=2)
    assert resumed.restore(state_at(0)).step == 2
    save(resumed, 4)
    assert resumed.steps() == [2, 3, 4]  # two that can be used, and the damaged one
    save(resumed, 3)
    assert resumed.steps() == [3, 4]
    (tmp_path / "checkpoints/4/manifest.json").unlink()
    restored = open_run(tmp_path).restore(state_at(0))
    assert restored.skipped == ["checkpoint 4 skipped: manifest.json is missing"]
    assert restored.step == 3 and same(restored.state, state_at(3))


def test_leftovers_are_removed_by_the_first_save(tmp_path):
    save(open_run(tmp_path), 1)
    root = tmp_path / "checkpoints"
    shutil.copytree(root / "1", root / "2.tmp")
    shutil.copytree(root / "1" / "data-1", root / "1" / "data-2.orbax-checkpoint-tmp")
    (root / "1" / ".manifest.json.x").write_text("half")
    before = contents(root)
    checkpoints = open_run(tmp_path)
    assert checkpoints.steps() == [1]
    assert checkpoints.restore(state_at(0)).step == 1
    assert contents(root) == before  # reading changes nothing: others may read while a run is on
    save(checkpoints, 3)
    assert {str(path.relative_to(root)) for path in root.glob("*/*")} == {
        f"{step}/{name}" for step in (1, 3) for name in ("manifest.json", "data-1")
    }


def test_a_moved_run_still_restores(tmp_path):
    (tmp_path / "a").mkdir()
    save(open_run(tmp_path / "a"), 1)
    (tmp_path / "a").rename(tmp_path / "b")
    assert open_run(tmp_path / "b").restore(state_at(0)).step == 1


def test_checkpoints_of_another_config_are_refused(tmp_path):
    save(open_run(tmp_path), 1)
    with pytest.raises(CheckpointError, match="it belongs to config 0123456789, not abcdef0123"):
        open_run(tmp_path, config_hash="abcdef0123").restore(state_at(0))


def flip(path, bit):
    data = bytearray(path.read_bytes())
    data[bit // 8 % len(data)] ^= 1 << bit % 8
    path.write_bytes(data)


@pytest.fixture
def two(tmp_path):
    """A run with checkpoints 1 and 2, and the files of the newer one."""
    checkpoints = open_run(tmp_path)
    save(checkpoints, 1)
    save(checkpoints, 2, best=True)
    paths = [path for path in (tmp_path / "checkpoints/2").rglob("*") if path.is_file()]
    assert len(paths) == 6
    return tmp_path, paths


def check_fallback(run_dir, newest=2):
    """The restored state is one that was saved; returns why it is not the newest, or ""."""
    restored = open_run(run_dir).restore(state_at(0))
    assert restored.records_bytes == 10 * restored.step
    assert same(restored.state, state_at(restored.step))
    assert len(restored.skipped) == newest - restored.step
    return "; ".join(restored.skipped)


def test_a_flipped_bit_is_found(two):
    run_dir, paths = two
    draw = random.Random(0)
    for path in paths:
        good = path.read_bytes()
        for _ in range(12):
            flip(path, draw.randrange(8 * len(good)))
            # White space between the tokens of the manifest is the only thing that may change.
            harmless = path.name == "manifest.json" and parses_equal(path.read_bytes(), good)
            assert bool(check_fallback(run_dir)) is not harmless, path
            path.write_bytes(good)


def parses_equal(damaged, good):
    try:
        return json.loads(damaged) == json.loads(good)
    except ValueError:
        return False


@pytest.mark.parametrize("damage", ["cut", "emptied", "deleted"])
def test_a_file_that_is_cut_or_lost_is_found(two, damage):
    run_dir, paths = two
    for path in paths:
        good = path.read_bytes()
        if damage == "deleted":
            path.unlink()
        else:
            path.write_bytes(good[: len(good) // 2] if damage == "cut" else b"")
        name = path.relative_to(run_dir / "checkpoints" / "2")
        if damage == "deleted":
            reason = f"{name} is missing"
        elif path.name == "manifest.json":
            reason = "manifest.json is damaged"
        else:
            reason = f"{name} has {path.stat().st_size} bytes instead of {len(good)}"
        assert check_fallback(run_dir) == f"checkpoint 2 skipped: {reason}"
        path.write_bytes(good)


def test_lost_directories_are_found(two):
    run_dir, _ = two
    for name in ("data-1", "data-1/state"):
        lost = run_dir / "checkpoints" / "2" / name
        lost.rename(run_dir / "aside")
        assert check_fallback(run_dir)
        (run_dir / "aside").rename(lost)
    assert not check_fallback(run_dir)


def test_a_manifest_that_lies_is_found(two):
    run_dir, _ = two
    home = run_dir / "checkpoints" / "2"
    body = json.loads((home / "manifest.json").read_bytes())
    del body["sha256"]
    for changed in ({"step": 1}, {"state_sha256": "0" * 64}, {"format": 2}):
        (home / "manifest.json").write_text(
            json.dumps({**body, **changed, "sha256": manifest._own_digest({**body, **changed})})
        )
        assert check_fallback(run_dir)


def test_if_all_are_bad_nothing_is_touched(two):
    run_dir, _ = two
    flip(run_dir / "checkpoints/1/data-1/state/0", 3)
    (run_dir / "checkpoints/2/manifest.json").unlink()
    (run_dir / "checkpoints/3.tmp").mkdir()
    before = contents(run_dir)
    with pytest.raises(CheckpointError) as error:
        open_run(run_dir).restore(state_at(0))
    assert str(error.value) == (
        f"{run_dir}/checkpoints: checkpoint 2 skipped: manifest.json is missing; "
        "checkpoint 1 skipped: data-1/state/0 is damaged: its SHA-256 differs "
        "(there are 1, 2; nothing was changed)"
    )
    assert contents(run_dir) == before


def test_a_failed_save_surfaces_at_the_next_call(tmp_path, monkeypatch, capfd):
    checkpoints = open_run(tmp_path)
    save(checkpoints, 1)
    write = packing.write

    def full(directory, packed):
        write(directory, packed[: packed.size // 2])
        raise ValueError("RESOURCE_EXHAUSTED: no space\nand a traceback")

    for step in (1, 2):
        for call in (lambda: save(checkpoints, 3), checkpoints.close, checkpoints.steps):
            monkeypatch.setattr(packing, "write", full)
            checkpoints.save(step, state_at(9), records_bytes=0, metric=None, best=True)
            time.sleep(0.1)
            monkeypatch.setattr(packing, "write", write)
            text = f"checkpoints/{step}: not saved: RESOURCE_EXHAUSTED: no space$"
            with pytest.raises(CheckpointError, match=text):
                call()
            assert checkpoints.steps() == [1]
            assert same(checkpoints.restore(state_at(0)).state, state_at(1))
            assert {p.name for p in (tmp_path / "checkpoints").glob("**/data*")} == {"data-1"}
    save(checkpoints, 2)
    assert checkpoints.restore(state_at(0)).step == 2
    assert capfd.readouterr() == ("", "")


def test_a_full_disk_is_one_line(tmp_path, capfd, caplog):
    checkpoints = open_run(tmp_path)
    save(checkpoints, 1)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
        with pytest.raises(CheckpointError, match=r"checkpoints/2: not saved: ") as error:
            save(checkpoints, 2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert "\n" not in str(error.value)
    assert not check_fallback(tmp_path, newest=1)
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["1"]
    assert not caplog.records and capfd.readouterr() == ("", "")  # no tracebacks of orbax


def test_a_run_directory_that_vanished_is_not_made_again(tmp_path):
    with pytest.raises(CheckpointError, match=r"checkpoints/1: not saved: .*No such file"):
        save(open_run(tmp_path / "gone"), 1)
    assert not (tmp_path / "gone").exists()


def test_a_file_in_the_way_is_one_line(tmp_path):
    (tmp_path / "checkpoints").write_text("in the way")
    with pytest.raises(CheckpointError, match=r"checkpoints/1: not saved: .*File exists") as error:
        save(open_run(tmp_path), 1)
    assert "\n" not in str(error.value)


def test_no_acknowledged_step_is_lost_to_a_kill(tmp_path):
    draw = random.Random(0)
    command = [sys.executable, save_loop.__file__, str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    unfinished = 0
    for _ in range(8):
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as loop:
            acknowledged = int(loop.stdout.readline())
            time.sleep(draw.uniform(0, 0.3))
            os.kill(loop.pid, signal.SIGKILL)
            for line in loop.stdout.readlines():
                acknowledged = int(line)
        unfinished += any((tmp_path / "checkpoints").glob("*.tmp"))
        restored = save_loop.open_run(tmp_path).restore(save_loop.state_at(0))
        assert restored.skipped == []
        assert restored.step in (acknowledged, acknowledged + 1)  # it may count but not be told
        assert same(restored.state, save_loop.state_at(restored.step))
        RunWriter(tmp_path, tensorboard=False, records_bytes=restored.records_bytes).close()
        lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
        assert [json.loads(line)["step"] for line in lines] == list(range(1, restored.step + 1))
    assert unfinished, "no kill hit a save: nothing was tested"


def test_orbax_is_imported_only_when_it_is_needed():
    code = "import sys, mha_jax.checkpoint; sys.exit('orbax' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_the_files_are_those_of_orbax_alone(tmp_path):
    """`alone` writes the array itself, where orbax leaves that to one process of several."""
    from orbax.checkpoint import PyTreeCheckpointer

    packed = np.random.default_rng(0).integers(0, 256, 1000).astype(np.uint8)
    packing.write(tmp_path / "ours", packed)
    theirs = PyTreeCheckpointer(use_ocdbt=False, use_compression=False)
    with packing._quiet():
        theirs.save(tmp_path / "theirs", {"state": packed})
    written = [
        {path.relative_to(home): path.read_bytes() for path in home.rglob("*") if path.is_file()}
        for home in (tmp_path / "ours", tmp_path / "theirs")
    ]
    assert written[0].keys() == written[1].keys()
    # The two others tell the time and the directory.
    same = [path for path in written[0] if written[0][path] == written[1][path]]
    assert sorted(map(str, same)) == ["_METADATA", "state/.zarray", "state/0"]
    assert np.array_equal(packing.read(tmp_path / "theirs"), packed)

"""`scripts/compile.py`: what is compiled ahead of time is what runs, and what does not fit is told.

Tests that need libtpu are skipped without it.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import pytest

from mha_jax import aot, cost, fits, topology
from mha_jax.config import Hypers, StaticConfig
from mha_jax.decode import Decoder
from mha_jax.group import Group
from tests.synthetic import static

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "scripts" / "compile.py"
needs_libtpu = pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None, reason="libtpu is not installed"
)
SMALL = ("--config.model.d_model=16", "--config.model.n_heads=2")
PROGRAMS = ["init", "train", "evaluate validation", "look", "compare", "repeated"]
DECODING = ["decode prompt", "decode loop"]


def small(task: str = "copy", **changes: Any) -> StaticConfig:
    """A config whose programs compile quickly."""
    sizes = {"batch_size": 8, "n_eval": 8, "n_test": 8, "n_probe": 8}
    spec = static(task, 2, n_steps=20, model={"d_model": 16}, d_head=8, **changes)
    return dataclasses.replace(spec, train=dataclasses.replace(spec.train, **sizes))


def here() -> topology.Topology:
    return topology.Topology("cpu", jax.local_devices()[:1], None)


def run(*argv: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", str(SCRIPT), *argv]
    return subprocess.run(command, capture_output=True, text=True, timeout=600)


def test_what_is_compiled_is_what_runs() -> None:
    """Instruction by instruction: every program that a group dispatches is among those compiled
    ahead, with the same text, and none is there that it does not dispatch."""
    spec = small()
    ahead = {}
    for name, lower in aot.lowerings(spec, aot.spread(spec, 3, here())):
        ahead[name] = _instructions(lower().compile())
    group = Group(spec)
    hypers = group.hypers([Hypers(0, 0, 1e-3, 0.0)])
    state = group.train_chunk(group.init(hypers), hypers, 2)
    group.evaluate(state, "validation")
    group.evaluate(state, "test")
    group.examine(state)
    ran = [_instructions(one) for one in group.executables]
    assert list(ahead) == [*PROGRAMS, *DECODING]  # both draws have constants of one shape
    assert sorted(ran) == sorted(ahead[name] for name in PROGRAMS)


def _instructions(compiled: jax.stages.Compiled) -> str:
    """The compiled text without names of files and lines."""
    lines = [line for line in str(compiled.as_text()).splitlines() if line.startswith("  ")]
    return "\n".join(re.sub(r", metadata=\{[^}]*\}", "", line) for line in lines)


def test_memory_and_operations_are_those_of_the_cost_model() -> None:
    """Of a training step: parameters and AdamW's two moments go in and out, in place."""
    spec = small()
    compiler, rows = aot.Compiler(), {}
    for name, lower in aot.lowerings(spec, aot.spread(spec, 1, here())):
        one = compiler(name, lower)
        assert one.cost is not None, one.error
        rows[name] = one.cost
    n_params = cost.n_params(spec)
    # Scalars: step, count, watch, tally, hypers, n; and a pointer to each output.
    train, rest = rows["train"], 300
    assert 12 * n_params <= train.outputs <= 12 * n_params + rest
    assert 12 * n_params <= train.arguments <= 12 * n_params + rest
    # What it writes takes the place of what it read.
    held = train.arguments + train.temporaries + train.code
    assert held <= train.peak <= held + rest
    assert train.flops is not None and rows["decode loop"].flops is not None
    step = 3 * cost.flops_per_token(spec) * spec.task.spec.length * spec.train.batch_size
    # Softmax, loss, AdamW and the draw of a batch are not in the cost model; at width 16 they are
    # about as much as the products.
    assert step < train.flops < 4 * step
    decoder = Decoder(Group(spec).program, None)
    kept = decoder.cache_bytes(1, spec.task.spec.length)
    assert kept < rows["decode loop"].arguments < kept + 4 * n_params + 4 * 64 + rest


def test_a_program_is_compiled_once() -> None:
    compiler, f = aot.Compiler(), jax.jit(lambda x: x + 1)
    first, again = (compiler(name, lambda: f.lower(1.0)) for name in ("first", "again"))
    assert first.cost is not None and again.cost is not None and first.cost.compile_s > 0
    assert again == fits.Compiled("again", dataclasses.replace(first.cost, compile_s=0.0))


def test_what_does_not_compile_is_told_in_one_line() -> None:
    def lower() -> Any:
        raise RuntimeError("no room\nfor this")

    one = aot.Compiler()("train", lower)
    assert one.problem(None) == "does not compile: RuntimeError: no room for this"


def test_lanes_are_split_over_devices_without_collectives() -> None:
    """Four devices with two lanes each hold what one device with two lanes holds."""
    code = """
import jax, re
from mha_jax import aot
from tests.test_compile import small
spec, told = small(), []
for lanes, n in ((2, 1), (8, 4)):
    how = aot.Spread(lanes, "vmap", jax.local_devices()[:n], "fast")
    told.append({})
    for name, lower in aot.lowerings(spec, how):
        if name in ("train", "look"):
            compiled = lower().compile()
            together = "all-(reduce|gather|to-all)|collective|reduce-scatter"
            assert not re.search(together, compiled.as_text())
            memory = compiled.memory_analysis()
            told[-1][name] = memory.argument_size_in_bytes, memory.output_size_in_bytes
assert told[0] == told[1], told
"""
    flags = "--xla_force_host_platform_device_count=4"
    environment = {**os.environ, "XLA_FLAGS": flags, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("n_runs", "n_devices", "memory", "told"),
    [
        (1, 4, None, (1, 1)),
        (3, 4, None, (3, 3)),
        (6, 4, None, (8, 4)),
        (6, 4, 3, (4, 4)),  # room for three runs on each device, but two batches of three
        (300, 1, None, (60, 1)),
    ],
)
def test_lanes_are_spread_as_a_run_spreads_them(
    n_runs: int, n_devices: int, memory: int | None, told: tuple[int, int]
) -> None:
    class Chip:
        platform = "tpu"

    spec = small()
    room = None if memory is None else memory * cost.memory_bytes(spec) // 3
    where = topology.Topology("made up", [Chip()] * n_devices, room)
    how = aot.spread(spec, n_runs, where)
    assert (how.lanes, len(how.devices)) == told and how.mode == "vmap"
    assert how.kernel == "fast"  # 24 positions are no block of splash attention
    wide = static("text", 2, d_head=64, length=128, model={"d_model": 128})
    assert aot.spread(wide, 1, where).kernel == "splash"


def _group(peak: int | None, error: str = "") -> fits.GroupPrograms:
    program = None if peak is None else fits.Cost(1, 2, 3, 4, peak, 5e9, None, 0.5)
    return fits.GroupPrograms(
        "group 1  abc  copy MHA", 3, 4, 4, "fast", [fits.Compiled("train", program, error)]
    )


def test_what_does_not_fit() -> None:
    for group, problem in (
        (_group(100), ""),
        (_group(101), "does not fit: 101B on a device of 100B"),
        (_group(None, "too large"), "does not compile: too large"),
    ):
        told = fits.problems([group], 100)
        assert told == [f"group 1  abc  copy MHA: train {problem}"] * bool(problem)
        (row,) = fits.to_json([group], 100)[0]["programs"]
        assert row["fits"] is not bool(problem)
        lines = fits.to_text([group], 100).splitlines()
        assert "group 1  abc  copy MHA: 3 runs, 4 lanes on 4 devices, kernel fast" in lines
        assert lines[-1] == (told[0] if problem else "all 1 programs compile and fit")
    assert not fits.problems([_group(10**18)], None)


def test_the_script_on_a_cpu() -> None:
    done = run("--config=configs/copy.py", "--topology=cpu", "--json", *SMALL)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["topology"], told["n_devices"], told["problems"]) == ("cpu", 1, [])
    (group,) = told["groups"]
    assert [one["program"] for one in group["programs"]] == [*PROGRAMS, *DECODING]
    assert group["n_runs"] == group["lanes"] == group["n_devices"] == 1
    assert all(one["fits"] and one["cost"]["peak"] > 0 for one in group["programs"])


def test_the_script_says_what_does_not_fit(monkeypatch: Any, capsys: Any) -> None:
    main = runpy.run_path(str(SCRIPT))["main"]
    monkeypatch.setattr(topology, "prepare", lambda *_: None)
    monkeypatch.setattr(topology, "find", lambda name: here()._replace(memory_bytes=20000))
    assert main(["--config=configs/copy.py", "--topology=cpu", *SMALL]) == 1
    lines = capsys.readouterr().out.splitlines()
    told = [line.partition(" does not fit: ")[0] for line in lines if " does not fit: " in line]
    assert told and all(line.startswith("group 1  ") for line in told)
    assert lines[-len(told) - 1].startswith("the largest is ")


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        ((), "--config is missing; write --config=experiments/quickstart.py"),
        (("--config=configs/copy.py",), "--topology is missing; write --topology=v5e:2x2"),
        (("--topolgy=cpu",), "--topolgy is no flag; did you mean --topology?"),
        (("--topology=v5:2x2",), "'v5:2x2' is no topology; did you mean v5p or v5e?"),
        (("--topology=v5e",), "must tell 2 numbers of chips to 16; like v5e:2x2"),
        (("--topology=v4:2x2",), "must tell 3 numbers of chips to 16; like v4:2x2x1"),
        (("--topology=v5e:0x2",), "must tell 2 numbers"),
        (("--topology=gpu",), "is not to be had"),
        (("--topology=cpu", "--lanes=2"), "--lanes is for accelerators"),
        (("--topology=cpu", "--lanes=0"), "--lanes='0' must be"),
    ],
)
def test_bad_input_is_one_line(argv: tuple[str, ...], says: str) -> None:
    whole = (
        ("--config=configs/copy.py", *argv)
        if argv and argv[0] != "--config=configs/copy.py"
        else argv
    )
    done = run(*whole)
    assert done.returncode == 2 and not done.stdout
    assert says in done.stderr and len(done.stderr.splitlines()) == 1


def test_a_bad_config_is_told_as_a_sweep_tells_it() -> None:
    done = run("--config=configs/copy.py", "--topology=cpu", "--config.model.n_heads=0")
    assert done.returncode == 2
    assert done.stderr.startswith("1 problem; nothing was started\n  model.n_heads=0 must")


def test_without_libtpu(monkeypatch: Any) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"needs libtpu.*pip install -e '\.\[tpu\]'"):
        topology.prepare("v5e:2x2", {})


@needs_libtpu
@pytest.mark.parametrize("name", ["v4:2x2x1", "v5e:2x2", "v5p:2x2x1", "v6e:2x2", "v5e:1x1"])
def test_a_slice_of_tpus(name: str) -> None:
    """Devices are chips, and all of them where there is one host."""
    code = "import os, sys; from mha_jax import topology; topology.prepare(sys.argv[1], os.environ)"
    code += "; print(*topology.find(sys.argv[1]).devices, sep='\\n')"
    done = subprocess.run(
        [sys.executable, "-c", code, name], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert len(done.stdout.splitlines()) == (1 if name.endswith("1x1") else 4)


@needs_libtpu
def test_a_sweep_compiles_for_tpus() -> None:
    done = run("--config=configs/copy.py", "--topology=v5e:2x2", "--lanes=8", "--json", *SMALL)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    (group,) = told["groups"]
    assert (group["lanes"], group["n_devices"], told["memory_bytes"]) == (8, 4, 16 * 10**9)
    assert [one["program"] for one in group["programs"]] == [*PROGRAMS, *DECODING]
    assert all(one["fits"] for one in group["programs"])

"""How many lanes a dispatch carries, and lanes over several devices."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from synthetic import make_run, static

from mha_jax import cost, runner
from mha_jax.group import Group
from mha_jax.placement import lanes_that_fit, memory_of, n_lanes

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.parametrize("runs, lanes", [(1, 1), (64, 64), (65, 33), (130, 44)])
def test_vmapped_batches_are_equal_in_size(runs: int, lanes: int) -> None:
    assert n_lanes(runs, "vmap") == lanes
    assert n_lanes(runs, "sequential") == 1


@pytest.mark.parametrize(
    "runs, n_devices, most, lanes",
    [(11, 8, 64, 16), (8, 8, 64, 8), (513, 8, 64, 264), (11, 1, 4, 4), (11, 8, 1, 8)],
)
def test_every_device_has_as_many_lanes(runs: int, n_devices: int, most: int, lanes: int) -> None:
    assert n_lanes(runs, "vmap", n_devices, most) == lanes
    assert n_lanes(runs, "sequential", n_devices, most) == n_devices


def test_memory_bounds_the_lanes() -> None:
    spec = static("relations")

    def device(limit: int | None) -> SimpleNamespace:
        stats = None if limit is None else {"bytes_limit": limit}
        return SimpleNamespace(memory_stats=lambda: stats)

    needed = cost.memory_bytes(spec)
    assert lanes_that_fit(spec, memory_of(device(5 * needed + 1))) == 5
    # The estimate is from above: it is tried.
    assert lanes_that_fit(spec, memory_of(device(needed // 2))) == 1
    assert lanes_that_fit(spec, memory_of(device(10**6 * needed))) == 64
    assert lanes_that_fit(spec, memory_of(device(None))) == 64


def test_sequential_mode_carries_one_lane() -> None:
    with pytest.raises(ValueError, match="one lane a device"):
        Group(static("relations"), lanes=2)


def test_a_named_kernel_that_cannot_run_here_is_refused(tmp_path: Path) -> None:
    spec = static("text", 2, d_head=8, length=128, model={"kernel": "splash"})
    directory = make_run(tmp_path, spec, status="unfinished")
    events: list[dict[str, Any]] = []
    runner.run_group([directory], events.append, {})
    (failed,) = events
    assert failed["event"] == "failed"
    assert "model.kernel='splash' does not run on a cpu" in failed["error"]
    assert "choose 'auto'" in failed["error"] and "\n" not in failed["error"]
    assert not (directory / "checkpoints").exists()


@pytest.mark.slow
def test_on_eight_virtual_devices(tmp_path: Path) -> None:
    settings = {
        "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
        "JAX_PLATFORMS": "cpu",
        # The runner compiles again what a test before it has compiled.
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "tests/on_eight_devices.py",
        ],
        cwd=ROOT,
        env={**os.environ, **settings},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr

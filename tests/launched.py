"""A small sweep with a later stage, and its launch as a process: what the tests of parts, hosts and
Ray have in common."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TABLES = ("runs.csv", "frontier.csv", "comparisons.csv", "heads.csv", "order.txt")
_CONFIG = """
from configs import base

def get_config(arg=None):
    config = base.get_config()
    config.experiment = "small"
    config.task.name = "taps"
    config.model.qk_from = "positions"
    config.model.d_model = 8
    config.model.n_heads = 2
    config.train.n_steps = {n_steps}
    config.train.batch_size = 8
    config.train.eval_every = 20
    config.train.n_eval = config.train.n_test = config.train.n_probe = 16
    config.optim.warmup_steps = 5
    config.log.every = 10
    config.log.checkpoint_every = 20
    config.converge.confirm = True
    return config

def sweep(add):
    for n_kv_heads in (1, 2):
        for seed in (0, 1):
            add({{"model.n_kv_heads": n_kv_heads, "train.seed": seed, "train.data_seed": seed}})
"""


def write(directory: Path, n_steps: int = 40) -> Path:
    """The config file of two cells with two seeds each, and their twins."""
    path = directory / "small.py"
    path.write_text(_CONFIG.format(n_steps=n_steps))
    return path


def start(
    config: Path, workdir: Path, *flags: str, command: str = "", **env: str
) -> subprocess.Popen[str]:
    """A launch as a process; its tables will be in `workdir / "small"`."""
    words = [command] if command else [sys.executable, str(ROOT / "scripts" / "sweep.py")]
    return subprocess.Popen(
        [*words, f"--config={config}", f"--workdir={workdir}", *flags],
        env={
            **os.environ,
            "JAX_PLATFORMS": "cpu",
            "JAX_COMPILATION_CACHE_DIR": str(config.parent / "cache"),
            **env,
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str], code: int = 0) -> tuple[str, str]:
    """What a launch said on stdout and stderr, at its end with an exit code."""
    out, err = process.communicate(timeout=900)
    assert process.returncode == code, f"exit code {process.returncode}\n{out}\n{err}"
    return out, err


def tables(workdir: Path) -> dict[str, bytes]:
    """The tables of a launch that is over: those that no clock has a part in."""
    return {name: (workdir / "small" / name).read_bytes() for name in TABLES}

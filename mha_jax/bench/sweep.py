"""Steps of 16 small runs: ours and torch on one pinned process per core, the NNX loop in one.

    python scripts/bench.py sweep
    python scripts/bench.py sweep --runs=4 --steps=2 --reps=3

Runs of size B. A team takes as long as its slowest process, so models * steps / s is the number of
runs times steps over that.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mha_jax import host
from mha_jax.bench.asked import Configs, Flag, Refused, Tell, Told, count
from mha_jax.bench.sides import rows_to_text
from mha_jax.bench.training import Kind, compare

FLAGS = {
    "--runs": Flag("16", count),
    "--reps": Flag("7", count),
    "--steps": Flag("4", count),
}


def measure(asked: Mapping[str, Any], configs: Configs, tell: Tell) -> Told:
    """Rows against both peers; --steps is of every run in a turn.

    Raises:
      Refused: runs that the cores cannot share evenly.
    """
    cores, n_runs = host.cores(), asked["runs"]
    if n_runs % len(cores):
        raise Refused(f"--runs={n_runs} must be a multiple of the {len(cores)} cores")
    kinds = {
        "ours": Kind(cores=cores),
        "torch": Kind("torch", cores=cores),
        "torch plain": Kind("torch", cores=cores, tuned=False),
        "nnx": Kind("nnx"),
        "nnx plain": Kind("nnx", tuned=False),
    }
    told = compare(configs.one("B", {}), kinds, n_runs, asked["steps"], asked["reps"], tell)
    speeds = {name: n_runs * asked["steps"] / took.median() for name, took in told.took.items()}
    rows = [
        told.row("sweep_16", "torch", 1.2, 2.0).to_json(),
        told.row("sweep_16", "nnx", 2.7, 4.0).to_json(),
    ]
    return {"rows": rows, "models_steps_per_s": speeds}


def to_text(told: Told) -> str:
    """A table, and how fast each team was."""
    speeds = told["models_steps_per_s"].items()
    words = ", ".join(f"{name} {speed:.1f}" for name, speed in speeds)
    return f"{rows_to_text(told['rows'])}\nmodels * steps / s: {words}"

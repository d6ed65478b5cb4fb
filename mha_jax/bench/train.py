"""Training steps of sizes A, B and C: ours, the NNX loop, torch eager; and in bfloat16.

    python scripts/bench.py train
    python scripts/bench.py train --configs=B --reps=15 --json

All sides take the same steps, clipped AdamW included, on batches that are in memory (ours draws
them); each in a process of its own with all cores. The ratio is the peer's time over ours, both
with the allocator settings of `host.py`; the peer as the system has it is told beside it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from mha_jax import host
from mha_jax.bench.asked import Configs, Flag, Tell, Told, count, one_of, some_of
from mha_jax.bench.sides import Row, rows_to_text
from mha_jax.bench.training import Compared, Kind, compare

FLAGS = {
    "--configs": Flag("A,B,C", some_of("ABC")),
    "--reps": Flag("7", count),
    "--steps": Flag("4", count),
    "--cores": Flag("all", one_of(("all", "one"))),
}
_FACTOR = {"A": 1, "B": 8, "C": 1}  # steps of B are that much quicker
_F32 = {
    "ours": Kind(),
    "ours plain": Kind(tuned=False),
    "nnx": Kind("nnx"),
    "nnx plain": Kind("nnx", tuned=False),
    "torch": Kind("torch"),
    "torch plain": Kind("torch", tuned=False),
}
_BF16 = {name: _F32[name] for name in ("ours", "torch", "torch plain")}
_MOST_FAULTS = 2000


def measure(asked: Mapping[str, Any], configs: Configs, tell: Tell) -> Told:
    """Rows of each of `configs`; --steps is of A and C in a turn, eight times as many of B."""
    rows: list[Row] = []
    f32, bf16 = (_on(kinds, asked["cores"]) for kinds in (_F32, _BF16))
    for name in asked["configs"]:
        tell(f"size {name}")
        n_steps = asked["steps"] * _FACTOR[name]
        told = compare(configs.one(name, {}), f32, 1, n_steps, asked["reps"], tell)
        rows.append(told.row(f"train_{name}", "nnx", 1.8, 2.5))
        rows.append(told.row(f"train_{name}", "torch", 1.0, 1.3))
        if name == "A":
            rows.append(_faults(told, n_steps))
        if name == "C":
            static = configs.one(name, {"model.compute_dtype": "bfloat16"})
            told = compare(static, bf16, 1, n_steps, asked["reps"], tell)
            rows.append(told.row("train_C_bf16", "torch", 0.8, 1.1))
    return {"rows": [row.to_json() for row in rows]}


def _on(kinds: Mapping[str, Kind], cores: str) -> dict[str, Kind]:
    at = (None,) if cores == "all" else tuple(host.cores()[:1])
    return {name: dataclasses.replace(kind, cores=at) for name, kind in kinds.items()}


def _faults(told: Compared, n_steps: int) -> Row:
    """Not a ratio but a count: minor page faults of a training step."""
    ours, plain = (
        told.took[name].median("minor_faults") / n_steps for name in ("ours", "ours plain")
    )
    figures = {"ours": ours, "peer": plain}
    peer = "the default allocator"
    return Row("faults_A", peer, ours, _MOST_FAULTS, 0, figures, "faults a step", less=True)


def to_text(told: Told) -> str:
    """A table."""
    return rows_to_text(told["rows"])

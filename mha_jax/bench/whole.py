"""A whole sweep from command to `frontier.csv`, against the same training steps alone.

    python scripts/bench.py whole                                      # half an hour on 2 cores
    python scripts/bench.py whole --shapes=2 --runs=2 --steps=200      # two minutes

The sweep of configs/bench.py on size B, launched as a user would: compilation, evaluations, scores
of the heads, checkpoints, TensorBoard and the report are in its time, `aside` of the row. The steps
alone are made by one pinned process per core as well, for every shape, some before the sweep and
some after it, and scaled up to all of them.
"""

from __future__ import annotations

import contextlib
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mha_jax import host
from mha_jax.bench.asked import Configs, Flag, Tell, Told, count
from mha_jax.bench.side import timed
from mha_jax.bench.sides import ROOT, Row, Side, SideError, in_turn, rows_to_text
from mha_jax.bench.training import OURS, run_json
from mha_jax.config import StaticConfig

FLAGS = {
    "--shapes": Flag("12", count),
    "--runs": Flag("9", count),
    "--steps": Flag("1000", count),
    "--alone": Flag("50", count),
}


def measure(asked: Mapping[str, Any], configs: Configs, tell: Tell) -> Told:
    """One launch, between two measurements of --alone steps of each shape on every core."""
    n_shapes, n_runs, n_steps = asked["shapes"], asked["runs"], asked["steps"]
    changes = {"train.n_steps": n_steps, "optim.warmup_steps": min(200, n_steps // 2)}
    statics = configs.swept(f"B,{n_shapes},{n_runs}", changes)
    before = _alone_s(statics, asked["alone"], tell)
    tell("the sweep")
    with tempfile.TemporaryDirectory() as folder:
        whole_s = timed(lambda: _sweep(Path(folder), n_shapes, n_runs, changes))["seconds"]
    after = _alone_s(statics, asked["alone"], tell)
    step_s = [statistics.mean(pair) for pair in zip(before, after, strict=True)]
    # Each measurement is of as many models as there are cores, at the same moment.
    alone_s = sum(step_s) * n_runs * n_steps / len(host.cores())
    figures = {
        "ours": {"seconds": whole_s},
        "peer": {"seconds": alone_s, "step_s": step_s},
        "before and after": [sum(before), sum(after)],
        "shapes": n_shapes,
        "runs": n_runs,
        "steps": n_steps,
    }
    ratio = whole_s / alone_s
    row = Row("whole_sweep", "its training steps alone", ratio, 1.25, 1.1, figures, less=True)
    return {"rows": [row.to_json()]}


def _alone_s(statics: Sequence[StaticConfig], n: int, tell: Tell) -> list[float]:
    """Seconds a step of each shape, with a model on every core."""
    told = []
    with contextlib.ExitStack() as stack:
        team = [stack.enter_context(Side("alone", OURS, cpu=core)) for core in host.cores()]
        for static in statics:
            for side in team:
                side.ask("build", run=run_json(static), n_models=1, write="", n_batches=0)
            told.append(in_turn({"alone": team}, "steps", {"n": n}, 1)["alone"].median() / n)
            tell(f"steps alone: {len(told)} of {len(statics)} shapes")
    return told


def _sweep(folder: Path, n_shapes: int, n_runs: int, changes: Mapping[str, Any]) -> None:
    command = [sys.executable, str(ROOT / "scripts" / "sweep.py"), f"--workdir={folder}"]
    command += [f"--config={ROOT / 'configs' / 'bench.py'}:B,{n_shapes},{n_runs}"]
    command += [f"--config.{key}={value}" for key, value in changes.items()]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode or not list(folder.glob("*/frontier.csv")):
        raise SideError(f"the sweep failed: {(done.stderr.strip() or 'no words').splitlines()[-1]}")


def to_text(told: Told) -> str:
    """A table."""
    return rows_to_text(told["rows"])

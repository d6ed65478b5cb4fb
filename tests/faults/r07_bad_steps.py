"""R7: the loss of one step is not a number, or a thousand times what it was. By policy the run ends
as diverged at that step, or the update is left out and counted; the other run is as without it.
"""

from __future__ import annotations

import functools
import json
import math
import random
from pathlib import Path
from typing import Any

import numpy as np

from tests.faults import results, small
from tests.faults.tally import Tally, draws, say

STEPS = (4, 10)  # quick, full
_KINDS = (
    ("stop", "nan"),
    ("ignore", "inf"),
    ("stop", "1e4"),
    ("ignore", "nan"),
    ("ignore", "1e4"),
    ("stop", "inf"),
)


def run(seed: int, quick: bool, directory: Path) -> list[dict[str, Any]]:
    """The rows of R7."""
    draw, tally = draws(seed, "R7"), Tally("R7 bad steps")
    n = STEPS[not quick]
    for i in range(n):
        policy, by = _KINDS[i % len(_KINDS)]
        step, hit = draw.randrange(1, small.N_STEPS), draw.choice((0, 1))
        wrong = _one(directory, i, policy, by, step, hit)
        tally.add(wrong, f"{policy}, loss x {by} at step {step} of seed {hit}")
        say(f"R7: {tally.tried} of {n} bad steps")
    left_out = Tally("R7 an ignored step is left out")
    left_out.add(_left_out(directory / "left_out", draw))
    return [tally.row(), left_out.row()]


def _one(directory: Path, number: int, policy: str, by: str, step: int, seed: int) -> list[str]:
    flags = [f"--config.train.on_bad_step={policy}"] * (policy != "stop")
    flags += ["--config.train.explode=100"] * (by == "1e4")
    try:
        calm = _calm(directory, tuple(flags))
    except RuntimeError as error:
        return [str(error)]
    home = directory / f"step_{number}"
    config, root = small.write(home), home / "out" / small.NAME
    fault = {"name": "factor", "step": step, "seed": seed, "by": by}
    ended = small.launch(config, home / "out", *flags, faults=[fault])
    wrong = ended.wrong(0)
    if wrong:
        return wrong
    for run in results.runs(root):
        told = json.loads((run / "summary.json").read_bytes())
        if json.loads((run / "config.json").read_bytes())["hypers"]["seed"] != seed:
            wrong += results.run_differences(run, calm / run.name)
        elif policy == "stop":
            if (told["status"], told.get("diverged_at")) != ("diverged", step):
                wrong.append(f"{told['status']} at {told.get('diverged_at')}, not at {step}")
        else:
            if told["status"] != "done" or told.get("bad_steps") != {"count": 1, "first": step}:
                wrong.append(f"{told['status']}, bad_steps={told.get('bad_steps')}")
            if not all(isinstance(value, float) for value in told["final"].values()):
                wrong.append(f"not a number at the end: {told['final']}")
    return wrong


@functools.cache
def _calm(directory: Path, flags: tuple[str, ...]) -> Path:
    """The sweep with these flags, whose loss is multiplied by 1 at every step: the same program."""
    home = directory / f"calm_{len(list(directory.glob('calm_*')))}"
    fault = {"name": "factor", "step": -1, "seed": 0, "by": "nan"}
    ended = small.launch(small.write(home), home / "out", *flags, faults=[fault])
    if ended.wrong(0):
        raise RuntimeError(f"without a bad step: {ended.wrong(0)[0]}")
    return home / "out" / small.NAME


def _left_out(home: Path, draw: random.Random) -> list[str]:
    """The parameters after an ignored step, against a run whose update of that step is not made."""
    step, states = draw.randrange(1, small.N_STEPS), []
    for name, fault, flags in (
        ("ignored", {"name": "factor", "by": "nan"}, ["--config.train.on_bad_step=ignore"]),
        ("not_made", {"name": "left_out"}, []),
    ):
        config = small.write(home / name)
        fault |= {"step": step, "seed": 0}
        ended = small.launch(config, home / name / "out", *flags, faults=[fault], script="train.py")
        if ended.wrong(0):
            return ended.wrong(0)
        (run,) = results.runs(home / name / "out" / small.NAME)
        states.append(_params(run))
    # Other programs may round the last digit otherwise; an update that is made differs by 1e-3.
    worst = max(float(np.abs(a - b).max()) for a, b in zip(*states, strict=True))
    return [] if worst < 1e-5 and math.isfinite(worst) else [f"parameters differ by {worst:.2g}"]


def _params(run: Path) -> list[np.ndarray]:
    """The parameters of a run's newest checkpoint, from its bytes."""
    step, raw = results.state(run)
    told = json.loads((run / "checkpoints" / str(step) / "manifest.json").read_bytes())
    found, at = [], 0
    for path, dtype, shape in told["leaves"]:
        size = math.prod(shape) * np.dtype(dtype).itemsize
        if path.startswith("params/"):
            found.append(np.frombuffer(raw[at : at + size], dtype).astype(np.float64))
        at += size
    return found

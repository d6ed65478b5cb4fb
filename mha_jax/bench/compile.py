"""The second launch of a sweep of 12 shapes, which finds its programs in the compile cache.

    python scripts/bench.py compile

A fresh process compiles what a run needs before its first step: init, the training step, and the
evaluation. Then another one does, with the same cache directory.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mha_jax import host
from mha_jax.bench.asked import Configs, Flag, Tell, Told, count
from mha_jax.bench.sides import Row, Side, Took, rows_to_text
from mha_jax.bench.training import OURS, run_json

FLAGS = {"--shapes": Flag("12", count), "--reps": Flag("3", count)}


def measure(asked: Mapping[str, Any], configs: Configs, tell: Tell) -> Told:
    """First and second launch in turn, each time with a cache directory of its own."""
    statics = configs.swept(f"A,{asked['shapes']},1", {})
    took: dict[str, list[dict[str, float]]] = {"first": [], "second": []}
    for rep in range(asked["reps"]):
        with tempfile.TemporaryDirectory() as folder:
            env = host.child_environment(Path(folder))
            for name, times in took.items():
                with Side(name, OURS, cpu=host.cores()[0], environment=env) as side:
                    times.append(side.ask("launch", runs=[run_json(x) for x in statics]))
        tell(f"compile: {rep + 1} of {asked['reps']}")
    first, second = (Took(tuple(took[name])) for name in ("first", "second"))
    figures = {"ours": second.to_json(), "peer": first.to_json(), "shapes": len(statics)}
    ratio = first.median() / second.median()
    return {"rows": [Row("compile_cache", "first launch", ratio, 3.5, 5.0, figures).to_json()]}


def to_text(told: Told) -> str:
    """A table."""
    return rows_to_text(told["rows"])

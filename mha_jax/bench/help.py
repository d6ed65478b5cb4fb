"""How soon the launcher answers: `--help` against `import jax`, which it must do without.

python scripts/bench.py help
"""

from __future__ import annotations

import functools
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from mha_jax.bench.asked import Configs, Flag, Tell, Told, count
from mha_jax.bench.side import timed
from mha_jax.bench.sides import ROOT, Row, Took, rows_to_text

FLAGS = {"--reps": Flag("7", count)}
_HELP = [str(ROOT / "scripts" / "sweep.py"), "--help"]


def measure(asked: Mapping[str, Any], configs: Configs, tell: Tell) -> Told:
    """Both in turn; each once before, so that their bytecode is there."""
    del configs, tell
    commands = {"ours": _HELP, "peer": ["-c", "import jax"]}
    took: dict[str, list[dict[str, float]]] = {name: [] for name in commands}
    for rep in range(asked["reps"] + 1):
        for name, command in commands.items():
            # Of a child only the wall's seconds are known.
            seconds = timed(functools.partial(_run, command))["seconds"]
            if rep:
                took[name].append({"seconds": seconds})
    ours, peer = (Took(tuple(took[name])) for name in ("ours", "peer"))
    imports = {line.split("|")[-1].strip() for line in _run(["-X", "importtime", *_HELP])}
    figures = {"ours": ours.to_json(), "peer": peer.to_json(), "imports jax": "jax" in imports}
    ratio = peer.median() / ours.median()
    row = Row("help", "import jax", ratio, 5.0, 20.0, figures, sound="jax" not in imports)
    return {"rows": [row.to_json()]}


def _run(arguments: list[str]) -> list[str]:
    done = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, check=True, cwd=ROOT
    )
    return done.stderr.splitlines()


def to_text(told: Told) -> str:
    """A table."""
    return rows_to_text(told["rows"])

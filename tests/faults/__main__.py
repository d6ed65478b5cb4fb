"""Breaks sweeps, runs, checkpoints and inputs in many ways, and tells what the product withstood.

usage: scripts/faults [--quick] [--seed=N] [--only=R1,R3] [--workdir=DIR] [--json]

  --quick        small counts: under 15 minutes on 2 cores
  --seed=N       draws other moments, bits, files, keys and values (default 0)
  --only=R1,R3   only these:
{cases}
  --workdir=DIR  keep what was made there; without it, in a temporary directory that is removed
  --json         print JSON: rows of name, tried, passed, note; seed, versions, machine
  --help         this text

A fault that this machine has no means for has tried 0, and its note says what it needs.
Exit codes: 0 all that was tried passed, 1 something did not, 2 bad input (told in one line).
"""

from __future__ import annotations

import atexit
import importlib
import json
import signal
import sys
import tempfile
import textwrap
import time
import traceback
from pathlib import Path
from typing import Any

from mha_jax import flags
from mha_jax.bench import asked
from mha_jax.terminal import leave, table
from tests.faults import small
from tests.faults.tally import say

CASES = {
    "R1": "r01_kills",
    "R2": "r02_signals",
    "R3": "r03_flips",
    "R4": "r04_lost_files",
    "R5": "r05_all_bad",
    "R6": "r06_disk_full",
    "R7": "r07_bad_steps",
    "R8": "r08_workers",
    "R9": "r09_launchers",
    "R12": "r12_bad_input",
    "R13": "r13_records",
    "R14": "r14_environment",
    "R15": "r15_attention",
    "R16": "r16_others",
}


def main(argv: list[str]) -> int:
    """The exit code."""
    if "--help" in argv or "-h" in argv:
        print(_help())
        return 0
    try:
        _, given = flags.read(
            argv,
            0,
            "no words",
            valued=("--seed", "--only", "--workdir"),
            switches=("--quick", "--json"),
        )
        seed = int(given.get("--seed", "0"))
        names = asked.some_of(list(CASES))(given.get("--only", ",".join(CASES)))
    except ValueError as error:
        print(f"faults: {error}", file=sys.stderr)
        return 2
    if "--workdir" in given:
        workdir = Path(given["--workdir"]).resolve()
        if workdir.exists() and (not workdir.is_dir() or any(workdir.iterdir())):
            print(f"faults: --workdir={workdir} must be a new or empty directory", file=sys.stderr)
            return 2
        workdir.mkdir(parents=True, exist_ok=True)
        rows = measure(names, seed, "--quick" in given, workdir)
    else:
        with tempfile.TemporaryDirectory(prefix="faults-") as folder:
            rows = measure(names, seed, "--quick" in given, Path(folder))
    told = {"rows": rows, "seed": seed, "quick": "--quick" in given, **asked.here()}
    print(json.dumps(told, indent=2) if "--json" in given else to_text(rows))
    return int(any(row["passed"] != row["tried"] for row in rows))


def measure(names: list[str], seed: int, quick: bool, root: Path) -> list[dict[str, Any]]:
    """The rows of cases, one after the other."""
    rows = []
    for name in names:
        begun = time.monotonic()
        say(f"{name} ...")
        case = importlib.import_module(f"tests.faults.{CASES[name]}")
        directory = root / CASES[name]
        directory.mkdir(exist_ok=True)
        try:
            found = case.run(seed, quick, directory)
        except Exception as error:  # of the case itself: what it has not tried has not passed
            told = "".join(traceback.format_exception(error)[-2:])
            found = [{"name": name, "tried": 1, "passed": 0, "note": f"the case failed: {told}"}]
        rows += found
        told = ", ".join(f"{row['passed']} of {row['tried']}" for row in found)
        say(f"{name}: {told}, {time.monotonic() - begun:.0f} s")
    return rows


def to_text(rows: list[dict[str, Any]]) -> str:
    """The rows as a table."""
    body = [(row["name"], str(row["tried"]), str(row["passed"]), row["note"]) for row in rows]
    return "\n".join(table(("fault", "tried", "passed", "note"), body))


def _help() -> str:
    """The text above with the first sentence of every case."""
    told, indent = [], " " * 17
    for module in CASES.values():
        doc = importlib.import_module(f"tests.faults.{module}").__doc__ or ""
        sentence = " ".join(doc.split()).partition(". ")[0]
        wrapped = {"initial_indent": indent, "subsequent_indent": f"{indent}     "}
        told.append(textwrap.fill(sentence.rstrip("."), 98, **wrapped))
    return (__doc__ or "").replace("{cases}", "\n".join(told)).strip()


if __name__ == "__main__":
    atexit.register(small.stop)
    # In the background of a shell it is ignored, and so it would be by what is launched here.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    leave(lambda: main(sys.argv[1:]))

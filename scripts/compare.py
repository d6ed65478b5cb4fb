"""Compares two sweeps, cell by cell, on the seeds that they share. Needs no jax.

usage: python scripts/compare.py A B [--anyway] [--json]

  A, B        two experiments, <workdir>/<experiment>
  --anyway    also where the task, its constants, its data or the budget differ
  --json      print JSON
  --help      this text

Prints what differs between them, and for each cell that both have the paired difference A - B, its
95 % interval, p (Holm over the table) and what may be said. Only converged cells with at least five
shared seeds are ranked. Exit codes: 0 fine, 2 bad input (told in one line).
"""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

# The path above makes these importable without an install.
from mha_jax.flags import read  # noqa: E402
from mha_jax.report import across, across_text  # noqa: E402
from mha_jax.terminal import answer, leave  # noqa: E402


def main(argv: list[str]) -> int:
    """The exit code."""
    return answer("compare.py", __doc__, argv, lambda: _told(argv))


def _told(argv: list[str]) -> str:
    words = "two directories, <workdir>/<experiment>"
    (a, b), flags = read(argv, 2, words, switches=("--anyway", "--json"))
    result = across.across(a, b, anyway="--anyway" in flags)
    for line in result.problems:
        print(line, file=sys.stderr)
    if "--json" in flags:
        return json.dumps(across_text.to_json(result), indent=2)
    return across_text.to_text(result)


if __name__ == "__main__":
    leave(lambda: main(sys.argv[1:]))

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
from mha_jax.report import across, across_text  # noqa: E402
from mha_jax.terminal import leave  # noqa: E402
from mha_jax.values import nearest  # noqa: E402

_SWITCHES = ("--anyway", "--json", "--help")


def main(argv: list[str]) -> int:
    """The exit code."""
    if "--help" in argv or "-h" in argv:
        print(__doc__)
        return 0
    try:
        directories = _directories(argv)
        result = across.across(*directories, anyway="--anyway" in argv)
    except (ValueError, OSError) as error:
        print(f"compare.py: {error}", file=sys.stderr)
        return 2
    for line in result.problems:
        print(line, file=sys.stderr)
    if "--json" in argv:
        print(json.dumps(across_text.to_json(result), indent=2))
    else:
        print(across_text.to_text(result))
    return 0


def _directories(argv: list[str]) -> list[str]:
    """A and B.

    Raises:
      ValueError: there are not two of them, or a flag is unknown.
    """
    for flag in argv:
        if flag.startswith("-") and flag not in _SWITCHES:
            fix = nearest(flag, _SWITCHES) or "; --help lists the flags"
            raise ValueError(f"{flag} is no flag{fix}")
    directories = [word for word in argv if not word.startswith("-")]
    if len(directories) != 2:
        given = " ".join(directories) or "nothing"
        raise ValueError(f"takes two directories, <workdir>/<experiment>; got {given}")
    return directories


if __name__ == "__main__":
    leave(lambda: main(sys.argv[1:]))

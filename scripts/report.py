"""Remakes the tables and figures of a sweep from the files of its runs. Needs no jax.

usage: python scripts/report.py DIR      DIR: <workdir>/<experiment>

Prints the files written. Exit codes: 0 fine, 2 bad input (told in one line, nothing was written).
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

# The path above makes these importable without an install.
from mha_jax import report  # noqa: E402
from mha_jax.terminal import leave  # noqa: E402


def main(argv: list[str]) -> int:
    """The exit code."""
    if argv in (["--help"], ["-h"]):
        print(__doc__)
        return 0
    if len(argv) != 1 or argv[0].startswith("-"):
        given = " ".join(argv) or "nothing"
        print(
            f"report.py: takes one directory, <workdir>/<experiment>; got {given}", file=sys.stderr
        )
        return 2
    try:
        for path in report.make(argv[0]):
            print(path)
    except (ValueError, OSError) as error:
        print(f"report.py: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    leave(lambda: main(sys.argv[1:]))

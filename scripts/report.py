"""Remakes the tables and figures of a sweep from the files of its runs. Needs no jax.

usage: python scripts/report.py DIR      DIR: <workdir>/<experiment>

Prints the files written. Exit codes: 0 fine, 2 bad input (told in one line, nothing was written).
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

# The path above makes these importable without an install.
from mha_jax import report  # noqa: E402
from mha_jax.flags import read  # noqa: E402
from mha_jax.terminal import leave  # noqa: E402


def main(argv: list[str]) -> int:
    """The exit code."""
    if "--help" in argv or "-h" in argv:
        print(__doc__)
        return 0
    try:
        (root,), _ = read(argv, 1, "one directory, <workdir>/<experiment>")
        for path in report.make(root):
            print(path)
    except (ValueError, OSError) as error:
        print(f"report.py: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    leave(lambda: main(sys.argv[1:]))

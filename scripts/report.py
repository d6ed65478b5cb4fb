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
from mha_jax.terminal import answer, leave  # noqa: E402


def main(argv: list[str]) -> int:
    """The exit code."""
    return answer("report.py", __doc__, argv, lambda: _made(argv))


def _made(argv: list[str]) -> str:
    (root,), _ = read(argv, 1, "one directory, <workdir>/<experiment>")
    return "\n".join(map(str, report.make(root)))


if __name__ == "__main__":
    leave(lambda: main(sys.argv[1:]))

"""Runs a sweep: see --help."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from mha_jax.cli import script  # noqa: E402 (the path above makes it importable without an install)

if __name__ == "__main__":
    script(single=False)

"""Which head writes which columns of a trained run's answer, and how good these are.

usage: python scripts/slots.py RUN [--at=last|best|STEP] [--json]

  RUN      a run, <workdir>/<experiment>/<label>-<hash>
  --at     which checkpoint (default: last)
  --json   print JSON
  --help   this text

A slot is the part of the answer's columns that a head would write if the heads, side by side, were
the answer: as many slots as the last layer has heads. Prints how strongly each slot follows each
head and, for a regression, R^2 of each slot, beside what one attention pattern can reach in it
where the task knows that. Without W_O, and with nothing behind the layer, only head i moves slot i.
docs/scores.md defines every number. Exit codes: 0 fine, 2 bad input (told in one line).
"""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from mha_jax.flags import run_and_checkpoint  # noqa: E402
from mha_jax.host import restart  # noqa: E402
from mha_jax.terminal import answer, leave  # noqa: E402


def main(argv: list[str]) -> int:
    """The exit code."""
    return answer("slots.py", __doc__, argv, lambda: _told(argv))


def _told(argv: list[str]) -> str:
    directory, at, flags = run_and_checkpoint(argv)
    # Slow to import, so after what can be answered without.
    from mha_jax import slots
    from mha_jax.checkpoint import CheckpointError
    from mha_jax.run import load_run

    try:
        told = slots.of_run(load_run(directory), at)
    except CheckpointError as error:
        raise ValueError(error) from None
    return json.dumps(slots.to_json(told), indent=2) if "--json" in flags else slots.to_text(told)


if __name__ == "__main__":
    restart()
    leave(lambda: main(sys.argv[1:]))

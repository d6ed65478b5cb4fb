"""Whether heads of a trained run have a sink, and what it costs to evict position 0.

usage: python scripts/sinks.py RUN [--window=W] [--at=last|best|STEP] [--json]

  RUN       a run of a causal task, <workdir>/<experiment>/<label>-<hash>
  --window  keys that a query sees, 6 or more (default: a quarter of the task's length)
  --at      which checkpoint (default: last)
  --json    print JSON
  --help    this text

Prints the weight of each head on position 0, beyond that of uniform attention (a sink: above .3),
and the loss at positions from W on, as trained and with W keys in every layer: the newest W, the
first one and the newest W - 1, the first four and the newest W - 4. A model with a sink loses when
position 0 is evicted, and recovers when it is kept; where no sink is measured it says so.
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
    return answer("sinks.py", __doc__, argv, lambda: _told(argv))


def _told(argv: list[str]) -> str:
    directory, at, flags = run_and_checkpoint(argv, valued=("--window",))
    text = flags.get("--window")
    if text is not None and not (text.isascii() and text.isdecimal()):
        raise ValueError(f"--window={text} must be a number of keys")
    # Slow to import, so after what can be answered without.
    from mha_jax import sinks
    from mha_jax.checkpoint import CheckpointError
    from mha_jax.run import load_run

    try:
        told = sinks.of_run(load_run(directory), None if text is None else int(text), at)
    except CheckpointError as error:
        raise ValueError(error) from None
    return json.dumps(sinks.to_json(told), indent=2) if "--json" in flags else sinks.to_text(told)


if __name__ == "__main__":
    restart()
    leave(lambda: main(sys.argv[1:]))

"""What the heads of a trained run are worth, how alike they are, and what sharing would cost.

usage: python scripts/heads.py RUN [--at=last|best|STEP] [--gates] [--json]

  RUN      a run, <workdir>/<experiment>/<label>-<hash>
  --at     which checkpoint (default: last)
  --gates  also train an L0 gate for each head: one more importance, which takes minutes
  --json   print JSON
  --help   this text

Prints every query head and kv head with its role, the rise of the loss without it (zero, mean and
resample ablation), Michel's gradient importance and, if asked, how long its gate stays open, with
the rank correlations of these; then, layer by layer, how alike heads attend and write, and what
pooling kv heads would cost.
docs/scores.md defines every number. Exit codes: 0 fine, 2 bad input (told in one line).
"""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from mha_jax.flags import run_and_checkpoint  # noqa: E402
from mha_jax.host import restart  # noqa: E402
from mha_jax.terminal import Status, answer, leave  # noqa: E402


def main(argv: list[str]) -> int:
    """The exit code."""
    return answer("heads.py", __doc__, argv, lambda: _told(argv))


def _told(argv: list[str]) -> str:
    directory, at, flags = run_and_checkpoint(argv, switches=("--gates",))
    # Slow to import, so after what can be answered without.
    from mha_jax import heads_text
    from mha_jax.checkpoint import CheckpointError
    from mha_jax.run import load_run

    status = Status()
    try:
        run = load_run(directory)
        told = heads_text.examine(run, at, gates="--gates" in flags, tell=status)
    except CheckpointError as error:
        raise ValueError(error) from None
    finally:
        status.clear()
    if "--json" in flags:
        return json.dumps(heads_text.to_json(told), indent=2)
    return heads_text.to_text(told)


if __name__ == "__main__":
    restart()
    leave(lambda: main(sys.argv[1:]))

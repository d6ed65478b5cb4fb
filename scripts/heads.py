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
from mha_jax.terminal import Status, leave  # noqa: E402


def main(argv: list[str]) -> int:
    """The exit code."""
    if "--help" in argv or "-h" in argv:
        print(__doc__)
        return 0
    try:
        directory, at, flags = run_and_checkpoint(argv, switches=("--gates",))
        # Slow to import, so after what can be answered without.
        from mha_jax import heads_text
        from mha_jax.checkpoint import CheckpointError
        from mha_jax.run import load_run

        status = Status()
        try:
            run, gates = load_run(directory), "--gates" in flags
            told = heads_text.examine(run, at, gates=gates, tell=status)
        except CheckpointError as error:
            raise ValueError(error) from None
        finally:
            status.clear()
    except (ValueError, OSError) as error:
        print(f"heads.py: {error}", file=sys.stderr)
        return 2
    if "--json" in flags:
        print(json.dumps(heads_text.to_json(told), indent=2))
    else:
        print(heads_text.to_text(told))
    return 0


if __name__ == "__main__":
    leave(lambda: main(sys.argv[1:]))

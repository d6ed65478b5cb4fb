"""Measures the speed of the framework, both sides of a ratio in turn, in one run.

usage: python scripts/bench.py overhead [--steps=2000] [--every=100] [--json]

  overhead   share of the training time that following the heads takes (config.probe.every), on
             benchmark configuration B: text, windows of 64 bytes in batches of 32, width 64, two
             layers of four heads, MLP of 256
  --steps    steps of training (default 2000)
  --every    steps between probes (default 100, as in configs/base.py)
  --json     print JSON
  --help     this text

Exit codes: 0 fine, 1 a bound was not kept, 2 bad input (told in one line).
"""

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

# The path above makes these importable without an install.
from mha_jax.flags import read  # noqa: E402
from mha_jax.terminal import leave  # noqa: E402
from mha_jax.values import nearest  # noqa: E402

_BENCHES = ("overhead",)


def main(argv: list[str]) -> int:
    """The exit code."""
    if "--help" in argv or "-h" in argv:
        print(__doc__)
        return 0
    try:
        words = f"one benchmark of {', '.join(_BENCHES)}"
        (bench,), flags = read(argv, 1, words, valued=("--steps", "--every"), switches=("--json",))
        if bench not in _BENCHES:
            raise ValueError(f"{bench} is no benchmark{nearest(bench, _BENCHES)}; it takes {words}")
        steps, every = (_count(flags, *one) for one in (("--steps", "2000"), ("--every", "100")))
        if steps % every:
            raise ValueError(f"--every={every} must divide --steps={steps}; change one")
    except ValueError as error:
        print(f"bench.py: {error}", file=sys.stderr)
        return 2
    row = _overhead(steps, every)
    if "--json" in flags:
        print(json.dumps(row, indent=2))
    else:
        print(
            f"{row['name']}: {row['ratio']:.2%} of the training time (must be at most "
            f"{row['must']:.0%}); {row['chunk_s'] / every * 1e3:.2f} ms a step, "
            f"{row['probe_s'] * 1e3:.1f} ms a probe every {every} steps, medians over {steps} "
            f"steps; {row['compile_s']:.1f} s to compile apart; {row['device']}"
        )
    return int(row["ratio"] > row["must"])


def _count(flags: dict[str, str], flag: str, default: str) -> int:
    text = flags.get(flag, default)
    if not (text.isascii() and text.isdecimal() and 0 < int(text) <= 10**6):
        raise ValueError(f"{flag}={text} must be a number from 1 to 1000000")
    return int(text)


def _overhead(steps: int, every: int) -> dict[str, Any]:
    # Slow to import, so after what can be answered without.
    from configs import text
    from mha_jax import schema
    from mha_jax.bench import overhead

    config = text.get_config()
    config.task.text.length = 64  # with this, benchmark configuration B
    config.train.n_steps = steps
    config.optim.warmup_steps = min(200, steps // 2)
    run, problems = schema.resolve(config.to_dict())
    if run is None:
        raise SystemExit(f"bench.py: {problems[0]}")
    return overhead.overhead(run.static, every, lambda line: print(line, file=sys.stderr))


if __name__ == "__main__":
    leave(lambda: main(sys.argv[1:]))

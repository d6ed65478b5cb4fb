"""Measures the speed of the framework, both sides of a ratio in turn, in one run.

usage: python scripts/bench.py overhead [--steps=2000] [--every=100] [--json]
       python scripts/bench.py decode_growth [--contexts=256,1024,4096] [--reps=9] [--json]

  overhead       share of the training time that following the heads takes (config.probe.every), on
                 benchmark configuration B: text, windows of 64 bytes in batches of 32, width 64,
                 two layers of four heads, MLP of 256
  --steps        steps of training (default 2000)
  --every        steps between probes (default 100, as in configs/base.py)
  decode_growth  milliseconds of a decode step by context, for MHA, GQA, MQA, windows, shared,
                 quantised and latent caches, beside what reading their bytes takes; no bound
  --contexts     tokens of context, two or more numbers from 256 to 65536
  --reps         how often each is measured (default 9); medians are told
  --json         print JSON
  --help         this text

Exit codes: 0 fine, 1 a bound was not kept, 2 bad input (told in one line).
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

# The path above makes these importable without an install.
from mha_jax.flags import read  # noqa: E402
from mha_jax.host import restart  # noqa: E402
from mha_jax.terminal import leave  # noqa: E402
from mha_jax.values import nearest  # noqa: E402

_FLAGS = {"overhead": ("--steps", "--every"), "decode_growth": ("--contexts", "--reps")}


def main(argv: list[str]) -> int:
    """The exit code."""
    if "--help" in argv or "-h" in argv:
        print(__doc__)
        return 0
    try:
        measure, as_json = _asked(argv)
    except ValueError as error:
        print(f"bench.py: {error}", file=sys.stderr)
        return 2
    told, text, kept = measure()
    print(json.dumps(told, indent=2) if as_json else text)
    return int(not kept)


# What was measured, the same as text, and whether its bound was kept.
_Measured = tuple[dict[str, Any], str, bool]


def _asked(argv: list[str]) -> tuple[Callable[[], _Measured], bool]:
    words = f"one benchmark of {', '.join(_FLAGS)}"
    valued = tuple(flag for flags in _FLAGS.values() for flag in flags)
    (bench,), flags = read(argv, 1, words, valued=valued, switches=("--json",))
    if bench not in _FLAGS:
        raise ValueError(f"{bench} is no benchmark{nearest(bench, _FLAGS)}; it takes {words}")
    for flag in flags:
        if flag != "--json" and flag not in _FLAGS[bench]:
            raise ValueError(f"{flag} is no flag of {bench}; it has {', '.join(_FLAGS[bench])}")
    if bench == "overhead":
        steps, every = (_count(flags, *one) for one in (("--steps", "2000"), ("--every", "100")))
        if steps % every:
            raise ValueError(f"--every={every} must divide --steps={steps}; change one")
        return lambda: _overhead(steps, every), "--json" in flags
    contexts = _contexts(flags.get("--contexts", "256,1024,4096"))
    reps = _count(flags, "--reps", "9")
    return lambda: _decode_growth(contexts, reps), "--json" in flags


def _count(flags: dict[str, str], flag: str, default: str) -> int:
    text = flags.get(flag, default)
    if not (text.isascii() and text.isdecimal() and 0 < int(text) <= 10**6):
        raise ValueError(f"{flag}={text} must be a number from 1 to 1000000")
    return int(text)


def _contexts(text: str) -> list[int]:
    words = text.split(",")
    sound = all(word.isascii() and word.isdecimal() and 256 <= int(word) <= 65536 for word in words)
    if not sound or len(set(words)) < 2:
        raise ValueError(
            f"--contexts={text} must be two or more numbers from 256 to 65536, like 256,4096"
        )
    return sorted({int(word) for word in words})


def _overhead(steps: int, every: int) -> _Measured:
    # Slow to import, so after what can be answered without.
    from configs import text
    from mha_jax.bench import overhead

    config = text.get_config()
    config.task.text.length = 64  # with this, benchmark configuration B
    config.train.n_steps = steps
    config.optim.warmup_steps = min(200, steps // 2)
    row = overhead.overhead(_static(config), every, _to_stderr)
    words = (
        f"{row['name']}: {row['ratio']:.2%} of the training time (must be at most "
        f"{row['must']:.0%}); {row['chunk_s'] / every * 1e3:.2f} ms a step, "
        f"{row['probe_s'] * 1e3:.1f} ms a probe every {every} steps, medians over {steps} "
        f"steps; {row['compile_s']:.1f} s to compile apart; {row['device']}"
    )
    return row, words, row["ratio"] <= row["must"]


def _decode_growth(contexts: list[int], reps: int) -> _Measured:
    from configs import text
    from mha_jax.bench import decode_growth

    statics = {}
    for name, changes in decode_growth.VARIANTS.items():
        config = text.get_config()
        config.model.update(d_model=512, n_heads=8, d_ff=0, **changes)
        statics[name] = _static(config)
    told = decode_growth.decode_growth(statics, contexts, reps, _to_stderr)
    return told, decode_growth.to_text(told), True


def _static(config: Any) -> Any:
    from mha_jax import schema

    run, problems = schema.resolve(config.to_dict())
    if run is None:
        raise SystemExit(f"bench.py: {problems[0]}")
    return run.static


def _to_stderr(line: str) -> None:
    print(line, file=sys.stderr)


if __name__ == "__main__":
    restart()
    leave(lambda: main(sys.argv[1:]))

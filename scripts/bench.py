"""Measures the speed of the framework, both sides of a ratio in turn, in one run.

usage: python scripts/bench.py BENCHMARK [--FLAG=VALUE ...] [--json]

  train          training steps of sizes A, B and C against flax's NNX loop and torch; page faults
                   --configs      sizes of configs/bench.py (default A,B,C)
                   --reps         how often each is measured (default 7); medians are told
                   --steps        steps of A and C each time, eight times as many of B (default 4)
                   --cores        all, or one, to which each side is pinned (default all)
  overhead       share of the training time that following the heads takes (config.probe.every), on
                 text, windows of 64 bytes in batches of 32, width 64, two layers of four heads
                   --steps        steps of training (default 2000)
                   --every        steps between probes (default 100, as in configs/base.py)
  decode_growth  milliseconds of a decode step by context, for MHA, GQA, MQA, windows, shared,
                 quantised and latent caches, beside what reading their bytes takes; no bound
                   --contexts     tokens of context, two or more numbers from 256 to 65536
                                  (default 256,1024,4096)
                   --reps         how often each is measured (default 9); medians are told

  --json         print JSON: rows, the machine, and versions
  --help         this text

Exit codes: 0 fine, 1 a bound was not kept, 2 bad input (told in one line).
"""

import importlib
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

# The path above makes these importable without an install.
from mha_jax import flags  # noqa: E402
from mha_jax.bench import asked  # noqa: E402
from mha_jax.host import restart  # noqa: E402
from mha_jax.terminal import leave  # noqa: E402
from mha_jax.values import nearest  # noqa: E402

# Modules of mha_jax.bench; `asked.py` says what such a module has.
BENCHES = ("train", "overhead", "decode_growth")


def main(argv: list[str]) -> int:
    """The exit code."""
    if "--help" in argv or "-h" in argv:
        print(__doc__)
        return 0
    try:
        bench, values, as_json = _read(argv)
    except ValueError as error:
        return _refuse(error)
    try:
        told = bench.measure(values, make, lambda line: print(line, file=sys.stderr))
    except asked.Refused as error:
        return _refuse(error)
    print(json.dumps({**told, **asked.here()}, indent=2) if as_json else bench.to_text(told))
    return int(not all(row.get("kept", True) for row in told["rows"]))


def _read(argv: list[str]) -> tuple[Any, dict[str, Any], bool]:
    """The benchmark, the values of its flags, and whether JSON is wanted."""
    words = f"one benchmark of {', '.join(BENCHES)}"
    name = next((word for word in argv if not word.startswith("-")), "")
    if name and name not in BENCHES:
        raise ValueError(f"{name} is no benchmark{nearest(name, BENCHES)}; it takes {words}")
    bench = importlib.import_module(f"mha_jax.bench.{name}") if name else None
    known = bench.FLAGS if bench else {}
    _, given = flags.read(argv, 1, words, valued=tuple(known), switches=("--json",))
    return bench, asked.read(known, given), "--json" in given


def _refuse(error: ValueError) -> int:
    print(f"bench.py: {error}", file=sys.stderr)
    return 2


def make(name: str, changes: Mapping[str, Any]) -> Any:
    """A static config: see `asked.Make`."""
    from configs import bench
    from mha_jax import keys, schema

    config = bench.get_config(name).to_dict()
    for key, value in changes.items():
        keys.put(config, key, value)
    run, problems = schema.resolve(config)
    if run is None:
        raise asked.Refused(str(problems[0]))
    return run.static


if __name__ == "__main__":
    restart()
    leave(lambda: main(sys.argv[1:]))

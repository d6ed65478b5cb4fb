"""Measures the speed of the framework, both sides of a ratio in turn, in one run.

usage: python scripts/bench.py BENCHMARK [--FLAG=VALUE ...] [--json]

  train          training steps of sizes A, B and C against flax's NNX loop and torch; page faults
                   --configs      sizes of configs/bench.py (default A,B,C)
                   --reps         how often each is measured (default 7); medians are told
                   --steps        steps of A and C each time, eight times as many of B (default 4)
                   --cores        all, or one, to which each side is pinned (default all)
  sweep          steps of 16 small runs against torch, on one process per core, and the NNX loop
                   --runs         runs, a multiple of the cores (default 16)
                   --reps         how often each is measured (default 7); medians are told
                   --steps        steps of every run each time (default 4)
  whole          a sweep from command to frontier.csv against its training steps alone; as it is,
                 half an hour on 2 cores
                   --shapes       shapes, at most 12 (default 12)
                   --runs         runs of a shape, at most 9 (default 9)
                   --steps        steps of a run (default 1000)
                   --alone        steps of each shape that are measured alone, before the sweep and
                                  after it (default 50)
  compile        the second launch of some shapes, from the compile cache, against the first
                   --shapes       shapes, at most 12 (default 12)
                   --reps         how often (default 3)
  growth         time and memory of a training step by length, width and runs, beside what the cost
                 model says; no bound
                   --lengths      positions, at width 64 (default 64,128,256,512)
                   --widths       widths, at length 64 (default 64,128,256)
                   --lanes        runs in one dispatch (default 1,2,4)
                   --reps         how often each is measured (default 5); medians are told
  help           how soon scripts/sweep.py --help answers, against `import jax`
                   --reps         how often (default 7)
  overhead       share of the training time that following the heads takes (config.probe.every), on
                 text, windows of 64 bytes in batches of 32, width 64, two layers of four heads
                   --steps        steps of training (default 2000)
                   --every        steps between probes (default 100, as in configs/base.py)
  attention      attention forward and backward against jax.nn.dot_product_attention and torch:
                 time, and temporary memory
                   --lengths      positions (default 512,2048,8192)
                   --kv_heads     kv heads of 8 heads (default 2,8)
                   --reps         how often each is measured (default 7); medians are told
  decode         tokens from a full cache against Hugging Face's Llama, and bytes a second against
                 reading as many
                   --cases        what decodes (default
                                  b1,b1_4k_kv1,b16_gqa,b64_gqa,b16_mha,bandwidth,gqa_pays)
                   --reps         how often each is measured (default 7); medians are told
  decode_growth  milliseconds of a decode step by context, for MHA, GQA, MQA, windows, shared,
                 quantised and latent caches, beside what reading their bytes takes; no bound
                   --contexts     tokens of context, two or more numbers from 256 to 65536
                                  (default 256,1024,4096)
                   --reps         how often each is measured (default 9); medians are told

The peers in torch live in an environment of their own; without it their rows have no ratio:

  python3.11 -m venv .venv-peers
  .venv-peers/bin/pip install torch==2.13.0 transformers numpy

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
from mha_jax import flags, load, schema, sweep  # noqa: E402
from mha_jax.bench import asked  # noqa: E402
from mha_jax.config import StaticConfig  # noqa: E402
from mha_jax.host import restart  # noqa: E402
from mha_jax.terminal import leave  # noqa: E402
from mha_jax.values import nearest  # noqa: E402

# Modules of mha_jax.bench; `asked.py` says what such a module has.
BENCHES = (
    "train",
    "sweep",
    "whole",
    "compile",
    "growth",
    "help",
    "overhead",
    "attention",
    "decode",
    "decode_growth",
)


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
        told = bench.measure(values, Configs(), lambda line: print(line, file=sys.stderr))
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


class Configs:
    """What is measured, from configs/bench.py: see `asked.Configs`."""

    def one(self, name: str, changes: Mapping[str, Any]) -> StaticConfig:
        """The setting of that name."""
        loaded = _loaded(name, changes)
        run, problems = schema.resolve(loaded.config or {})
        if run is None or loaded.problems:
            raise asked.Refused(str([*loaded.problems, *problems][0]))
        return run.static

    def swept(self, name: str, changes: Mapping[str, Any]) -> list[StaticConfig]:
        """The shapes of its sweep."""
        planned = sweep.expand(_loaded(name, changes))
        if planned.problems:
            raise asked.Refused(str(planned.problems[0]))
        return list(dict.fromkeys(run.run.static for run in planned.runs))


def _loaded(name: str, changes: Mapping[str, Any]) -> load.LoadedConfig:
    path = load.ROOT / "configs" / "bench.py"
    return load.load(str(path), name, [f"{key}={value}" for key, value in changes.items()])


if __name__ == "__main__":
    restart()
    leave(lambda: main(sys.argv[1:]))

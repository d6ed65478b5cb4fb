"""Makes a model with fewer kv heads of a trained run, and trains it on (MHA to GQA or MQA).

usage: python scripts/convert.py RUN --n_kv_heads=K [--merge=mean|first|random|similar] [--align]
                                 [--alpha=0.05] [--lr=RATE] [--json]

  RUN            a run, <workdir>/<experiment>/<label>-<hash>, trained to its end
  --n_kv_heads   kv heads of every layer, or one entry a layer: 2,1
  --merge        how kv heads become one: their mean (default), the first of a group, a random draw,
                 or the mean of groups chosen so that alike heads share
  --align        turn the heads that become one towards each other before (Procrustes)
  --alpha        train on for this share of the run's steps (default 0.05)
  --lr           peak learning rate (default: that of the run)
  --json         print JSON
  --help         this text

The new run lies beside RUN, in the tables of its experiment; RUN stays as it is. Prints the quality
of RUN, of the converted model before any training, and after it. A sweep over ways, seeds and
shares is a config with start.source: see experiments/uptrain.py. Exit codes: 0 fine, 1 the run
failed, 2 bad input (told in one line).
"""

import contextlib
import json
import math
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

# The path above makes these importable without an install.
from mha_jax import convert, launch, signals, store  # noqa: E402
from mha_jax.engines.base import WorkerError  # noqa: E402
from mha_jax.flags import RUN, read  # noqa: E402
from mha_jax.keys import KEYS  # noqa: E402
from mha_jax.terminal import leave  # noqa: E402

_MERGES = KEYS["start.merge"].choices


def main(argv: list[str]) -> int:
    """The exit code."""
    if "--help" in argv or "-h" in argv:
        print(__doc__)
        return 0
    try:
        valued = ("--n_kv_heads", "--merge", "--alpha", "--lr")
        (run,), flags = read(argv, 1, RUN, valued=valued, switches=("--align", "--json"))
        how = {
            "n_kv_heads": _counts(flags),
            "merge": _merge(flags),
            "align": "--align" in flags,
            "alpha": _number(flags, "--alpha", "0.05"),
            "lr": _number(flags, "--lr", "") if "--lr" in flags else None,
        }
        source = store.read_run(run)
        planned = convert.plan(source, **how)
        root = source.directory.resolve().parent
        # Progress is no part of the answer.
        with contextlib.redirect_stdout(sys.stderr), signals.handled(signals.stop):
            failed = launch.carry_out([planned], root)
    except signals.Stopped as stopped:
        print(f"convert.py: {stopped}", file=sys.stderr)
        return stopped.code
    except WorkerError as error:
        print(f"convert.py: {error}", file=sys.stderr)
        return 1
    except (ValueError, OSError) as error:
        print(f"convert.py: {error}", file=sys.stderr)
        return 2
    directory = next(root.glob(f"*-{planned.run.hash}"))
    told = convert.told(source, directory)
    print(json.dumps(told, indent=2) if "--json" in flags else _text(told))
    return failed


def _counts(flags: dict[str, str]) -> list[int]:
    text = flags.get("--n_kv_heads", "")
    entries = text.split(",")
    if not all(e.isascii() and e.isdecimal() and 0 < int(e) <= 4096 for e in entries):
        given = f"--n_kv_heads={text}" if text else "--n_kv_heads is missing, which"
        raise ValueError(f"{given} must be a number of kv heads, or one a layer: 2,1")
    return list(map(int, entries))


def _merge(flags: dict[str, str]) -> str:
    merge = flags.get("--merge", "mean")
    if merge not in _MERGES:
        raise ValueError(f"--merge={merge} must be one of {', '.join(_MERGES)}")
    return merge


def _number(flags: dict[str, str], flag: str, default: str) -> float:
    text = flags.get(flag, default)
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value <= 100:
        raise ValueError(f"{flag}={text} must be a number above 0 and at most 100")
    return value


def _text(told: dict[str, Any]) -> str:
    variant, nbytes, steps = (told[key] for key in ("variant", "kv_bytes_per_token", "n_steps"))
    lines = [f"{variant[0]} to {variant[1]}, {nbytes[0]} to {nbytes[1]} KV bytes/token"]
    for name in ("validation", "test"):
        values = ", ".join(
            f"{key} {value:.4g}" if value is not None else f"{key} none"
            for key, value in told[name].items()
        )
        lines.append(f"{name} {told['metric']}: {values}")
    return "\n".join([*lines, f"trained on for {steps[1]} of {steps[0]} steps: {told['run']}"])


if __name__ == "__main__":
    leave(lambda: main(sys.argv[1:]), "interrupted; the same command again continues")

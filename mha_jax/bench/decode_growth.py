"""How the cost of a decode step grows with the context, for each way of keeping keys and values.

    python scripts/bench.py decode_growth
    python scripts/bench.py decode_growth --contexts=256,512,1024,2048,4096 --reps=9 --json

One sequence, two layers of width 512 without MLP, eight heads of 64. A step must read every
parameter and every slot of the cache, so that at best it takes the bytes it reads over the speed at
which the machine reads memory; that speed is measured in the same process, between the steps.
The slope is what a further token of context costs: for MHA 2 k h numbers a layer, nothing for a
window. A cache that the processor holds itself is read faster than memory, and a step of few bytes
takes as long as its dispatch.

Seen on 2 cores whose other work took both (--reps=5, 7 minutes, most of them to compile), ms a step
and in brackets what reading its bytes at 18.2 GB/s takes:

    context           256             1,024             4,096     us a further token
    MHA     7.588 (0.605)    29.214 (0.951)   128.723 (2.334)        31.788 (0.450)
    GQA-2   0.717 (0.346)     1.057 (0.433)     4.567 (0.778)         1.043 (0.113)
    MQA     0.243 (0.303)     1.024 (0.346)     3.124 (0.519)         0.731 (0.056)
    128     4.078 (0.548)     3.277 (0.548)     3.941 (0.548)         0.036 (0.000)
    4+128   4.150 (0.550)     3.632 (0.550)     3.975 (0.550)        -0.001 (0.000)
    CLA-2   6.465 (0.490)    39.751 (0.836)   135.465 (2.219)        32.897 (0.450)
    int8    9.694 (0.549)    27.829 (0.652)    90.893 (1.062)        20.969 (0.134)
    int4    6.787 (0.536)    28.122 (0.596)   110.220 (0.834)        26.875 (0.077)
    MLA    25.464 (0.530)   163.723 (0.627)  1218.378 (1.016)       319.985 (0.127)
    GTA-2   6.193 (0.314)    25.105 (0.368)   156.616 (0.584)        40.212 (0.070)

As predicted a window costs the same at every context and the others grow. How much is not as
predicted: only GQA-2, MQA and the windows come within ten times of what memory allows. What keeps
MHA at 55 times that, though it multiplies as often as GQA-2, is not known; that int8, int4, MLA and
GTA compute keys or values anew at each step is not in the prediction.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from mha_jax.bench import bandwidth
from mha_jax.config import StaticConfig
from mha_jax.decode import Decoder
from mha_jax.decode_speed import Full
from mha_jax.terminal import table
from mha_jax.train import Program

# What differs from MHA, by keys of a config.
VARIANTS: dict[str, dict[str, Any]] = {
    "MHA": {},
    "GQA-2": {"n_kv_heads": 2},
    "MQA": {"n_kv_heads": 1},
    "window 128": {"window": 128},
    "4 + window 128": {"window": 128, "n_sinks": 4},
    "CLA-2": {"kv_from": "0,0"},
    "int8": {"kv_quant": "int8"},
    "int4": {"kv_quant": "int4"},
    "MLA": {"mixer": "mla", "n_kv_heads": 1, "d_latent": 256, "d_rope": 32},
    "GTA-2": {"mixer": "gta", "n_kv_heads": 2},
}


def decode_growth(
    statics: Mapping[str, StaticConfig],
    contexts: Sequence[int],
    reps: int,
    tell: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Every variant at every context in turn, `reps` times.

    Args:
      statics: a run of a task that decodes, by the name of its variant.
      contexts: two or more numbers of tokens, each `STEPS` or more, that a cache has room for.
      reps: dispatches of `STEPS` tokens each.
      tell: gets a line now and then.

    Returns:
      `rows`, of each variant and context: medians of the milliseconds of a step, compilation apart,
      beside the bytes it reads and the milliseconds that reading them would take; `slopes`, of each
      variant the microseconds that a further token of context adds, by least squares, measured and
      predicted.
    """
    decoders = {name: _decoder(static) for name, static in statics.items()}
    timed = {(name, n): Full(one, n) for name, one in decoders.items() for n in sorted(contexts)}
    for done, (name, n) in enumerate(timed):
        timed[name, n].step_s()  # compiles, and is not counted
        tell(f"compiled {done + 1} of {len(timed)}: {name} at {n}")
    took: dict[tuple[str, int], list[float]] = {at: [] for at in timed}
    speed = 0.0
    for rep in range(reps):
        speed = max(speed, bandwidth.read_bytes_per_s(1))
        for at, one in timed.items():
            took[at].append(one.step_s() * 1e3)
        tell(f"{rep + 1} of {reps}")
    rows = []
    for name, n in timed:
        ms, read = statistics.median(took[name, n]), decoders[name].bytes_read_per_step(1, n)
        predicted = read / speed * 1e3
        told = {"name": "decode_growth", "variant": name, "context": n, "ms": ms}
        told |= {"bytes_read": read, "predicted_ms": predicted, "ratio": ms / predicted}
        rows.append(told)
    return {
        "rows": rows,
        "slopes": [_slope(name, rows) for name in statics],
        "memory_bytes_per_s": speed,
        "device": jax.devices()[0].device_kind,
    }


def _decoder(static: StaticConfig) -> Decoder:
    program = Program.of(static)
    return Decoder(program, jax.jit(program.model.init)(jax.random.key(0)))


def _slope(name: str, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    own = [row for row in rows if row["variant"] == name]
    contexts = [row["context"] for row in own]
    measured, predicted = (
        float(np.polyfit(contexts, [row[key] for row in own], 1)[0]) * 1e3
        for key in ("ms", "predicted_ms")
    )
    return {"variant": name, "us_per_token": measured, "predicted_us_per_token": predicted}


def to_text(told: Mapping[str, Any]) -> str:
    """Tables for a terminal."""
    cells = {(row["variant"], row["context"]): row for row in told["rows"]}
    contexts = sorted({row["context"] for row in told["rows"]})
    body = []
    for slope in told["slopes"]:
        own = [cells[slope["variant"], n] for n in contexts]
        shown = [f"{row['ms']:.3f} ({row['predicted_ms']:.3f})" for row in own]
        grows = f"{slope['us_per_token']:.3f} ({slope['predicted_us_per_token']:.3f})"
        body.append((slope["variant"], *shown, grows))
    header = ("variant", *(f"at {n:,}" for n in contexts), "us a token")
    return "\n".join(
        [
            f"ms a decode step of one sequence (what reading its bytes at "
            f"{told['memory_bytes_per_s'] / 1e9:.1f} GB/s takes); {told['device']}",
            *table(header, body),
        ]
    )

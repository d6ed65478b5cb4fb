"""How the cost of a decode step grows with the context, for each way of keeping keys and values.

    python scripts/bench.py decode_growth
    python scripts/bench.py decode_growth --contexts=256,512,1024,2048,4096 --reps=9 --json

One sequence, two layers of width 512 without MLP, eight heads of 64. A step must read every
parameter and every slot of the cache, so that at best it takes the bytes it reads over the speed at
which the machine reads memory; that speed is measured in the same process, between the steps.
The slope is what a further token of context costs: for MHA 2 k h numbers a layer, nothing for a
window. A cache that the processor holds itself is read faster than memory, and a step of few bytes
takes as long as its dispatch.

Seen on 2 cores beside other work (--reps=7), ms a step and in brackets what reading its bytes at
38.1 GB/s takes:

    context           256           1,024           4,096    us a further token
    MHA     0.393 (0.289)   0.645 (0.454)   2.540 (1.115)         0.576 (0.215)
    GQA-2   0.199 (0.165)   0.482 (0.207)   1.080 (0.372)         0.219 (0.054)
    MQA     0.199 (0.145)   0.249 (0.165)   0.710 (0.248)         0.138 (0.027)
    128     0.308 (0.262)   0.330 (0.262)   0.390 (0.262)         0.021 (0.000)
    4+128   0.376 (0.263)   0.383 (0.263)   0.484 (0.263)         0.029 (0.000)
    CLA-2   0.288 (0.234)   0.459 (0.399)   1.640 (1.060)         0.361 (0.215)
    int8    0.736 (0.262)   1.364 (0.311)   5.576 (0.507)         1.292 (0.064)
    int4    0.986 (0.256)   2.746 (0.285)   8.888 (0.398)         2.041 (0.037)
    MLA     1.087 (0.253)   1.761 (0.300)   3.513 (0.485)         0.614 (0.060)
    GTA-2   0.195 (0.150)   0.241 (0.176)   1.051 (0.279)         0.235 (0.034)

A window costs nearly the same at every context, the others grow, MQA and GTA least of those that
keep all tokens, two to five times as fast as their bytes say. Fewer bytes are no fewer milliseconds
by themselves: int8 and int4 are made into numbers to multiply with at each step and are slower here
than MHA in float32, and MLA multiplies eight times as wide.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from mha_jax.bench import bandwidth
from mha_jax.bench.asked import Configs, Flag, Tell, Told, count, counts
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
    "global + window 128": {"window": "0,128"},
    "CLA-2": {"kv_from": "0,0"},
    "K=V": {"share": "kv"},
    "int8": {"kv_quant": "int8"},
    "int4": {"kv_quant": "int4"},
    "MLA": {"mixer": "mla", "n_kv_heads": 1, "d_latent": 256, "d_rope": 32},
    "GLA-2": {"mixer": "mla", "n_kv_heads": 2, "d_latent": 128, "d_rope": 32},
    "GTA-2": {"mixer": "gta", "n_kv_heads": 2},
}

# What all of them have, beside size B.
_MODEL = {"d_model": 512, "n_heads": 8, "d_ff": 0, "positions": "rope", "norm": "rms"}

FLAGS = {
    "--contexts": Flag("256,1024,4096", counts(256, 65536, how_many=2)),
    "--reps": Flag("9", count),
}


def measure(asked: Mapping[str, Any], configs: Configs, tell: Tell) -> Told:
    """Every variant at the contexts that are asked for."""
    statics = {
        name: configs.one("B", {f"model.{key}": value for key, value in (_MODEL | changes).items()})
        for name, changes in VARIANTS.items()
    }
    return decode_growth(statics, asked["contexts"], asked["reps"], tell)


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

"""How a training step grows with length, width and the number of runs, beside what `cost.py` says.

    python scripts/bench.py growth

Size B with one number changed. Operations are three times those of a forward pass, and scores are
counted over all keys: the kernel skips some of those that a causal query does not see, so that a
step may grow more slowly with the length. The bytes that are predicted are an estimate from above,
1 to 4 times what the program has. Runs in one dispatch are what an accelerator carries; on a CPU
they cost as much as one after another.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mha_jax import cost
from mha_jax.bench.asked import Configs, Flag, Tell, Told, count, counts
from mha_jax.bench.sides import Side, Took
from mha_jax.bench.training import run_json
from mha_jax.config import StaticConfig
from mha_jax.terminal import table

FLAGS = {
    "--lengths": Flag("64,128,256,512", counts(1, 4096)),
    "--widths": Flag("64,128,256", counts(4, 4096)),
    "--lanes": Flag("1,2,4", counts(1, 64)),
    "--reps": Flag("5", count),
}


def measure(asked: Mapping[str, Any], configs: Configs, tell: Tell) -> Told:
    """A row for each length, width and number of runs, measured in turn in one process."""
    cases: list[tuple[str, int, StaticConfig, int]] = []
    for n in asked["lengths"]:
        cases.append(("length", n, configs.one("B", {"task.text.length": n}), 1))
    for d in asked["widths"]:
        changes = {"model.d_model": d, "model.d_ff": 4 * d}
        cases.append(("width", d, configs.one("B", changes), 1))
    for lanes in asked["lanes"]:
        cases.append(("runs", lanes, configs.one("B", {}), lanes))
    with Side("ours", "mha_jax.bench.growth_ours") as side:
        built = []
        for what, size, static, lanes in cases:
            built.append(side.ask("build", run=run_json(static), lanes=lanes))
            tell(f"compiled {what}={size}")
        took: list[list[dict[str, float]]] = [[] for _ in cases]
        for rep in range(asked["reps"]):
            for one, times in zip(built, took, strict=True):
                times.append(side.ask("step", at=one["at"]))
            tell(f"{rep + 1} of {asked['reps']}")
    rows = [
        _row(*case, one, Took(tuple(times)))
        for case, one, times in zip(cases, built, took, strict=True)
    ]
    return {"rows": rows}


def _row(
    what: str, size: int, static: StaticConfig, lanes: int, built: Mapping[str, int], took: Took
) -> dict[str, Any]:
    n_tokens = static.train.batch_size * static.task.spec.length
    flops = 3 * cost.flops_per_token(static) * n_tokens * lanes
    return {
        "name": f"growth_{what}",
        "size": size,
        "ms": took.median() * 1e3,
        "cpu_ms": took.median("cpu_s") * 1e3,
        "spread": took.to_json()["spread"],
        "flops": flops,
        "flops_per_s": flops / took.median(),
        "bytes": built["temp_bytes"] + built["state_bytes"],
        "predicted_bytes": cost.memory_bytes(static) * lanes,
    }


def to_text(told: Told) -> str:
    """A table; in brackets, how many times that of the first row of its kind."""
    body: list[tuple[str, ...]] = []
    first: dict[str, Mapping[str, Any]] = {}
    for row in told["rows"]:
        base = first.setdefault(row["name"], row)

        def shown(key: str, unit: float, row: Any = row, base: Any = base) -> str:
            return f"{row[key] / unit:,.1f} ({row[key] / base[key]:.1f}x)"

        cells = shown("ms", 1), shown("flops", 1e9), f"{row['flops_per_s'] / 1e9:.0f}"
        memory = shown("bytes", 2**20), shown("predicted_bytes", 2**20)
        body.append((row["name"].removeprefix("growth_"), f"{row['size']:,}", *cells, *memory))
    header = ("", "", "ms a step", "GFLOP predicted", "GFLOP/s", "MiB", "MiB predicted")
    return "\n".join(table(header, body))

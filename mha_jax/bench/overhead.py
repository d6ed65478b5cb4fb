"""What following the heads costs a run: the probe's share of the steady training time."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax

from mha_jax.bench.asked import Configs, Flag, Refused, Tell, Told, count
from mha_jax.config import Hypers, StaticConfig
from mha_jax.group import Group

MUST = 0.05  # largest share
FLAGS = {"--steps": Flag("2000", count), "--every": Flag("100", count)}


def measure(asked: Mapping[str, Any], configs: Configs, tell: Tell) -> Told:
    """Of size B, with the positions and the norm that configs/text.py has.

    Raises:
      Refused: probes that do not end with the training.
    """
    steps, every = asked["steps"], asked["every"]
    if steps % every:
        raise Refused(f"--every={every} must divide --steps={steps}; change one")
    changes = {"model.positions": "rope", "model.norm": "rms", "train.n_steps": steps}
    static = configs.one("B", changes | {"optim.warmup_steps": min(200, steps // 2)})
    return {"rows": [overhead(static, every, tell)]}


def to_text(told: Told) -> str:
    """One line."""
    (row,) = told["rows"]
    return (
        f"{row['name']}: {row['ratio']:.2%} of the training time (must be at most "
        f"{row['must']:.0%}); {row['chunk_s'] / row['every'] * 1e3:.2f} ms a step, "
        f"{row['probe_s'] * 1e3:.1f} ms a probe every {row['every']} steps, medians over "
        f"{row['n_steps']} steps; {row['compile_s']:.1f} s to compile apart; {row['device']}"
    )


def overhead(
    static: StaticConfig, every: int, tell: Callable[[str], None] = lambda line: None
) -> dict[str, Any]:
    """A run's chunks of `every` steps and the probe after each of them, in turn.

    Args:
      static: what is trained, to its end.
      every: steps between probes; divides the number of steps.
      tell: gets a line now and then.

    Returns:
      The row; seconds are medians, of a chunk and of a probe, compilation apart.
    """
    group = Group(static)
    hypers = group.hypers([Hypers(seed=0, data_seed=0, lr=1e-3, weight_decay=0.0)])
    state = group.init(hypers)
    group.follow(state)
    state = group.train_chunk(state, hypers, 1)  # compiles, and is not timed
    state = group.init(hypers)
    sides: dict[str, list[float]] = {"chunk_s": [], "probe_s": []}
    for step in range(0, static.train.n_steps, every):
        start = time.perf_counter()
        state = group.train_chunk(state, hypers, every)
        jax.block_until_ready(state)
        between = time.perf_counter()
        group.follow(state)
        sides["probe_s"].append(time.perf_counter() - between)
        sides["chunk_s"].append(between - start)
        if (step // every) % 5 == 4:
            share = sum(sides["probe_s"]) / sum(sides["chunk_s"])
            tell(f"step {step + every} of {static.train.n_steps}: {share:.1%}")
    median = {name: statistics.median(values) for name, values in sides.items()}
    ratio = median["probe_s"] / median["chunk_s"]
    return {
        "name": "probe_overhead",
        "ratio": ratio,
        "ratio_of_sums": sum(sides["probe_s"]) / sum(sides["chunk_s"]),
        "must": MUST,
        "kept": ratio <= MUST,
        "every": every,
        "n_steps": static.train.n_steps,
        **median,
        "compile_s": group.compile_s,
        "device": jax.devices()[0].device_kind,
    }

"""Causal attention, forward and backward, against jax's own and torch's: time and temporary memory.

    python scripts/bench.py attention
    python scripts/bench.py attention --lengths=512 --reps=15 --json

All sides get the same float32 arrays, are pinned to the same core, and take turns. What is timed
gives z and the gradients by queries, keys and values; these are compared first. Eight heads of 64
as GQA-2 and as MHA, eight sequences of 512 or one of 2,048 or 8,192 positions; MHA has no bound.
Temporary memory is what XLA allots to the compiled program beside its inputs and results.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mha_jax import host
from mha_jax.bench.asked import Configs, Flag, Tell, Told, count, counts
from mha_jax.bench.sides import Row, Side, Team, in_turn, peers_python, rows_to_text
from mha_jax.bench.training import Compared
from mha_jax.terminal import table

FLAGS = {
    "--lengths": Flag("512,2048,8192", counts(1, 65536)),
    "--kv_heads": Flag("2,8", counts(1, 8)),
    "--reps": Flag("7", count),
}
N_HEADS, D_HEAD = 8, 64
_MODULES = {
    "ours": "mha_jax.bench.attention_ours",
    "dot_product_attention": "mha_jax.bench.peers.jax_attention",
    "torch": "mha_jax.bench.peers.torch_attention",
}
# Relative to the largest entry: float32 sums of up to 8,192 terms in another order.
TOLERANCE = 1e-5


class Bound(NamedTuple):
    """What GQA-2 must reach and aims at, against jax and against torch."""

    jax: tuple[float, float]
    torch: tuple[float, float]
    memory: tuple[float, float] | None = None


_BOUNDS = {
    512: Bound((2.3, 4), (0.7, 1)),
    2048: Bound((3.2, 6), (0.7, 1), (4, 20)),
    8192: Bound((4.5, 10), (0.7, 1)),
}


def measure(asked: Mapping[str, Any], configs: Configs, tell: Tell) -> Told:
    """Rows of every length and number of kv heads; lengths of 8,192 and more, of which jax's own
    takes half a minute and 8 GiB each time, are measured three times at most.
    """
    del configs
    rows: list[Row] = []
    growth: list[dict[str, Any]] = []
    for length in asked["lengths"]:
        reps = min(asked["reps"], 3) if length >= 8192 else asked["reps"]
        for k in asked["kv_heads"]:
            if N_HEADS % k:
                continue
            tell(f"{length} positions, {k} kv heads")
            told, temp = compare(length, k, reps, tell)
            rows += _rows(length, k, told, temp)
            growth.append(_grown(length, k, told, temp))
    return {"rows": [row.to_json() for row in rows], "growth": growth}


def shape(length: int, k: int) -> tuple[int, ...]:
    """b, t, n, k, h: eight sequences up to 512 positions, one beyond."""
    return 8 if length <= 512 else 1, length, N_HEADS, k, D_HEAD


def compare(length: int, k: int, reps: int, tell: Tell) -> tuple[Compared, dict[str, int]]:
    """The sides' times, and temporary bytes of those that tell them."""
    b, t, n, _, h = shape(length, k)
    rng = np.random.default_rng(0)
    sizes = {"q": (b, t, n, h), "k": (b, t, k, h), "v": (b, t, k, h), "dz": (b, t, n, h)}
    core = host.cores()[0]
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        drawn: dict[str, Any] = {
            x: rng.standard_normal(size, np.float32) for x, size in sizes.items()
        }
        np.savez(folder / "in.npz", **drawn)
        teams: dict[str, Team] = {}
        temp: dict[str, int] = {}
        parity: dict[str, dict[str, Any]] = {}
        for name, module in _MODULES.items():
            python = peers_python() if name == "torch" else None
            if name == "torch" and python is None:
                continue
            for tuned in (True, False) if name != "ours" else (True,):
                side = Side(name, module, python=python, cpu=core, tuned=tuned)
                stack.callback(side.close)
                called = name if tuned else f"{name} plain"
                out = folder / f"{called}.npz"
                told = side.ask("build", read=str(folder / "in.npz"), write=str(out))
                temp |= {called: told["temp_bytes"]} if "temp_bytes" in told else {}
                parity[called] = agree(folder / "ours.npz", out)
                teams[called] = [side]
                tell(f"built {called}")
        return Compared(in_turn(teams, "steps", {"n": 1}, reps, tell), parity), temp


def agree(ours: Path, theirs: Path) -> dict[str, Any]:
    """How far z and the gradients of two sides are apart, and whether that is `equal`."""
    with np.load(ours) as a, np.load(theirs) as b:
        errors = {f"{x}_error": float(np.abs(a[x] - b[x]).max() / np.abs(a[x]).max()) for x in a}
    equal = all(error <= TOLERANCE for error in errors.values())  # and none is NaN
    return {"tolerance": TOLERANCE, **errors, "equal": equal}


def _rows(length: int, k: int, told: Compared, temp: Mapping[str, int]) -> list[Row]:
    bound = _BOUNDS.get(length) if k == 2 else None
    name = f"attention_{length}" + ("" if k == 2 else f"_kv{k}")
    none = None, None
    peer = "dot_product_attention"
    rows = [told.row(name, peer, *(bound.jax if bound else none))]
    rows.append(told.row(name, "torch", *(bound.torch if bound else none)))
    must, aim = bound.memory if bound and bound.memory else none
    bytes_of = {"ours": temp["ours"], "peer": temp[peer]}
    sound = rows[0].sound
    ratio = temp[peer] / temp["ours"] if sound else None
    words = "temporary bytes of the compiled programs" if sound else rows[0].note
    memory = Row(f"{name}_memory", peer, ratio, must, aim, bytes_of, words, sound=sound)
    return [*rows, memory]


def _grown(length: int, k: int, told: Compared, temp: Mapping[str, int]) -> dict[str, Any]:
    """What a position costs, beside the arithmetic: two products forward and five backward, whose
    first makes the scores again, over the pairs of a query and a key that it sees.
    """
    b, t, n, _, h = shape(length, k)
    flops = b * n * 7 * 2 * h * t * (t + 1) // 2
    seconds, arrays = told.took["ours"].median(), 4 * b * t * (2 * n + 2 * k) * h
    figures = {"seconds": seconds, "flops": flops, "flops_per_s": flops / seconds}
    sizes = {"temp_bytes": temp["ours"], "array_bytes": arrays}
    return {"length": length, "batch": b, "n_kv_heads": k, **figures, **sizes}


def to_text(told: Told) -> str:
    """Two tables: the rows, and how time and memory grow."""
    body = [
        (
            f"{one['batch']} x {one['length']:,}",
            str(one["n_kv_heads"]),
            f"{one['seconds'] * 1e3:.1f}",
            f"{one['flops'] / 1e9:.1f}",
            f"{one['flops_per_s'] / 1e9:.0f}",
            f"{one['temp_bytes'] / 2**20:.1f}",
            f"{one['array_bytes'] / 2**20:.1f}",
        )
        for one in told["growth"]
    ]
    header = ("b x t", "kv heads", "ms", "GFLOP", "GFLOP/s", "temp MiB", "q k v dz MiB")
    words = "ours on one core, forward and backward; GFLOP of the pairs a query sees"
    return "\n".join([rows_to_text(told["rows"]), "", words, *table(header, body)])

"""Decoding with a full cache against Hugging Face's Llama; and against this machine's memory.

    python scripts/bench.py decode
    python scripts/bench.py decode --cases=b1 --reps=15 --json

Four layers of width 512, eight heads of 64, SwiGLU of 1408, 8,192 tokens, RMS norm, rotary
positions; the parameters are random and the same on both sides. Ours is the loop on the device of
`decode.Decoder`, theirs one forward call a token with a `StaticCache`, or `generate` as it is by
default. Before anything is timed, the peer is given the tokens that the program to be timed has
made, and must find the same logits after the last. Where a case is measured on one core, both sides
are pinned to the same.

In a batch either side may compute in float32 or in bfloat16: the ratio is that of its better one
to our better one; all of them are told.
"""

from __future__ import annotations

import contextlib
import dataclasses
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mha_jax import host
from mha_jax.bench.asked import Configs, Flag, Tell, Told, count, some_of
from mha_jax.bench.sides import Row, Side, Took, in_turn, peers_python, rows_to_text
from mha_jax.bench.training import NO_TORCH, Compared, run_json

N_STEPS = 16  # tokens of one dispatch
_PROMPT = 24  # tokens of the prompt of the parity check
# Relative to the largest logit. Rounding of float32 and of bfloat16 through four layers.
TOLERANCE = {"float32": 1e-4, "bfloat16": 5e-2}
_OURS, _THEIRS = "mha_jax.bench.decode_ours", "mha_jax.bench.peers.hf_decode"
_MODEL = {
    "task.name": "copy",
    "task.copy.vocab": 8191,  # and a delimiter
    "model.d_model": 512,
    "model.n_layers": 4,
    "model.n_heads": 8,
    "model.d_ff": 1408,
    "model.activation": "swiglu",
    "model.norm": "rms",
    "model.positions": "rope",
}


class Case(NamedTuple):
    """What decodes."""

    b: int
    context: int
    n_kv_heads: int
    one_core: bool = False
    dtypes: tuple[str, ...] = ("float32",)
    bounds: tuple[float, float] = (1.0, 1.0)  # of the ratio to a step with a StaticCache
    generate: tuple[float, float] | None = None  # of that to `generate`


_BOTH = ("float32", "bfloat16")
CASES = {
    "b1": Case(1, 1024, 8, bounds=(1.6, 3), generate=(2.2, 5)),
    "b1_4k_kv1": Case(1, 4096, 1, bounds=(1.6, 3), generate=(2.2, 5)),
    "b16_gqa": Case(16, 1024, 2, dtypes=_BOTH, bounds=(1.35, 2.5)),
    "b64_gqa": Case(64, 1024, 2, one_core=True, dtypes=_BOTH, bounds=(1.35, 2.5)),
    "b16_mha": Case(16, 1024, 8, one_core=True, dtypes=_BOTH, bounds=(1.0, 1.4)),
}
# Of our own: bytes a second of one sequence, and what fewer kv heads spare.
_OWN = ("bandwidth", "gqa_pays")
FLAGS = {
    "--cases": Flag(",".join([*CASES, *_OWN]), some_of([*CASES, *_OWN])),
    "--reps": Flag("7", count),
}


def measure(asked: Mapping[str, Any], configs: Configs, tell: Tell) -> Told:
    """Rows of each of `cases`."""
    rows: list[Row] = []
    for name in asked["cases"]:
        tell(name)
        if name in CASES:
            rows += compared(name, CASES[name], configs, asked["reps"], tell)
        else:
            alone = {"bandwidth": bandwidth, "gqa_pays": gqa_pays}[name]
            rows.append(alone(configs, asked["reps"], tell))
    return {"rows": [row.to_json() for row in rows]}


def run_of(configs: Configs, case: Case, dtype: str) -> dict[str, Any]:
    """The JSON of the run that decodes, with products and cache of a dtype."""
    dtypes = {"model.compute_dtype": dtype, "model.cache_dtype": dtype}
    changes = {**_MODEL, "model.n_kv_heads": case.n_kv_heads, **dtypes}
    return run_json(configs.one("A", changes))


class _Started(NamedTuple):
    ours: dict[str, Side]  # by dtype
    peers: dict[str, Side]  # "static <dtype>", and the same with " plain" behind it
    parity: dict[str, Any]
    bytes_read: int


def compared(name: str, case: Case, configs: Configs, reps: int, tell: Tell) -> list[Row]:
    """The row against a step with a StaticCache, and against `generate` where that is asked for."""
    with contextlib.ExitStack() as stack:
        started = _start(stack, case, configs, tell)
        teams = {f"ours {dtype}": [side] for dtype, side in started.ours.items()}
        peers = {peer: [side] for peer, side in started.peers.items()}
        took = dict(in_turn(teams | peers, "steps", {"n": N_STEPS}, reps, tell))
        rows = [_row(f"decode_{name}", "static", case.bounds, took, started)]
        if case.generate:
            # The steps of `steps` are beside those of `generate` in every turn too.
            turns = in_turn(peers, "generate", {"n": N_STEPS}, reps, tell) if peers else {}
            took |= {peer.replace("static", "generate"): one for peer, one in turns.items()}
            rows.append(_row(f"decode_{name}", "generate", case.generate, took, started))
    return rows


def _start(stack: contextlib.ExitStack, case: Case, configs: Configs, tell: Tell) -> _Started:
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    core = host.cores()[0] if case.one_core else None
    python, prompts = peers_python(), _prompts(case.b)
    like = {"b": case.b, "capacity": case.context}
    ours: dict[str, Side] = {}
    peers: dict[str, Side] = {}
    parity: dict[str, Any] = {}
    bytes_read = 0
    for dtype in case.dtypes:
        ours[dtype] = side = Side(f"ours {dtype}", _OURS, cpu=core)
        stack.callback(side.close)
        run = run_of(configs, case, dtype)
        told = side.ask("build", run=run, write=str(folder / "params.npz"), **like)
        bytes_read = bytes_read or told["bytes_read"]
        made = folder / f"ours {dtype}.npz"
        side.ask("tokens", prompts=prompts, n=N_STEPS, write=str(made))
        tell(f"built ours {dtype}")
        if python is None:
            continue
        for tuned in (True, False):
            called = f"static {dtype}" + ("" if tuned else " plain")
            peer = Side(called, _THEIRS, python=python, cpu=core, tuned=tuned)
            stack.callback(peer.close)
            peer.ask("build", run=run, read=str(folder / "params.npz"), dtype=dtype, **like)
            out = folder / f"{called}.npz"
            with np.load(made) as file:
                given = file["tokens"].tolist()
            peer.ask("tokens", prompts=prompts, given=given, write=str(out))
            peers[called], parity[called] = peer, agree(made, out, dtype)
            tell(f"built {called}")
    return _Started(ours, peers, parity, bytes_read)


def _prompts(b: int) -> list[list[int]]:
    return np.random.default_rng(0).integers(0, 8192, (b, _PROMPT)).tolist()


def agree(ours: Path, theirs: Path, dtype: str) -> dict[str, Any]:
    """How far the logits after the last token are apart; whether that is `equal`; and the share of
    steps at which both find the same token likeliest, all of them in float32.
    """
    with np.load(ours) as a, np.load(theirs) as b:
        error = float(np.abs(a["logits"] - b["logits"]).max() / np.abs(a["logits"]).max())
        same = float((a["tokens"] == b["tokens"]).mean())
    equal = error <= TOLERANCE[dtype] and (same == 1 or dtype != "float32")
    told = {"logits_error": error, "tolerance": TOLERANCE[dtype], "same_tokens": same}
    return {**told, "equal": equal}


def _row(
    name: str, peer: str, bounds: tuple[float, float], took: Mapping[str, Took], started: _Started
) -> Row:
    """Of the better dtype of either side."""
    kinds = [one for one in took if one.startswith(peer) and not one.endswith("plain")]
    own = min((f"ours {dtype}" for dtype in started.ours), key=lambda one: took[one].median())
    if not kinds:
        return Row(name, f"hf {peer}", None, *bounds, {}, NO_TORCH)
    best = min(kinds, key=lambda one: took[one].median())
    parity = {x: started.parity[x.replace(peer, "static")] for x in (best, f"{best} plain")}
    row = Compared(took, parity).row(name, best, *bounds, of=own)
    times = {one: told.median() / N_STEPS for one, told in took.items()}
    figures = {**row.figures, "seconds_of_a_step": times, "bytes_read_float32": started.bytes_read}
    note = row.note or f"{own} against {best}"
    return dataclasses.replace(row, peer=f"hf {peer}", figures=figures, note=note)


def _alone(
    stack: contextlib.ExitStack, configs: Configs, cases: Sequence[Case], dtypes: Sequence[str]
) -> list[tuple[Side, int]]:
    """Our sides on one core, and the bytes that a step of each reads."""
    sides = []
    for case, dtype in zip(cases, dtypes, strict=True):
        side = Side(f"ours kv{case.n_kv_heads} {dtype}", _OURS, cpu=host.cores()[0])
        stack.callback(side.close)
        run = run_of(configs, case, dtype)
        told = side.ask("build", run=run, b=case.b, capacity=case.context, write="")
        side.ask("steps", n=N_STEPS)  # compiles
        sides.append((side, told["bytes_read"]))
    return sides


def bandwidth(configs: Configs, reps: int, tell: Tell) -> Row:
    """Bytes that a step of one sequence reads, over its time and the speed of a read probe between
    the steps.
    """
    with contextlib.ExitStack() as stack:
        ((side, bytes_read),) = _alone(stack, configs, [CASES["b1"]], ["float32"])
        times, speeds = [], []
        for _ in range(reps):
            times.append(side.ask("steps", n=N_STEPS))
            speeds.append(side.ask("bandwidth")["bytes_per_s"])
    ours = Took(tuple(times))
    speed, probe = N_STEPS * bytes_read / ours.median(), float(np.median(speeds))
    figures = {"ours": ours.to_json(), "bytes_per_s": speed, "probe_bytes_per_s": probe}
    tell(f"{speed / 1e9:.1f} of {probe / 1e9:.1f} GB/s")
    note = f"{speed / 1e9:.1f} of {probe / 1e9:.1f} GB/s on one core"
    return Row("decode_bandwidth", "read probe", speed / probe, 0.85, 1.0, figures, note)


def gqa_pays(configs: Configs, reps: int, tell: Tell) -> Row:
    """A step of MHA over one of GQA-2, the same otherwise, each in its better dtype."""
    cases = {"peer": CASES["b16_mha"], "ours": CASES["b16_gqa"]}
    with contextlib.ExitStack() as stack:
        sides: dict[str, list[Side]] = {}
        bytes_read: dict[str, int] = {}
        for name, case in cases.items():
            for dtype in _BOTH:
                ((side, bytes_read[name]),) = _alone(stack, configs, [case], [dtype])
                sides[f"{name} {dtype}"] = [side]
        took = in_turn(sides, "steps", {"n": N_STEPS}, reps, tell)
    best = {
        name: min((f"{name} {dtype}" for dtype in _BOTH), key=lambda one: took[one].median())
        for name in cases
    }
    ratio = took[best["peer"]].median() / took[best["ours"]].median()
    figures: dict[str, Any] = {name: one.to_json() for name, one in took.items()}
    figures |= {name: took[one].to_json() for name, one in best.items()}
    figures["bytes_ratio"] = bytes_read["peer"] / bytes_read["ours"]
    kinds = {name: one.split()[1] for name, one in best.items()}
    note = f"16 sequences of 1,024 on one core; MHA {kinds['peer']}, GQA-2 {kinds['ours']}"
    return Row("gqa_pays", "own MHA", ratio, 1.8, 3, figures, note)


def to_text(told: Told) -> str:
    """A table."""
    return rows_to_text(told["rows"])

"""Sides that take the same training steps: how they are made, shown to be equal, and compared.

The parity check takes a few steps on each side with the very program that is timed afterwards, from
one set of parameters, on one set of batches.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from mha_jax.bench.asked import Tell
from mha_jax.bench.sides import Row, Side, Team, Took, in_turn, peers_python
from mha_jax.config import SCHEMA_VERSION, Hypers, StaticConfig, to_json

OURS = "mha_jax.bench.train_ours"
MODULES = {"nnx": "mha_jax.bench.peers.nnx_loop", "torch": "mha_jax.bench.peers.torch_loop"}
NO_TORCH = (
    "not measured: make an environment for the peers with `python3.11 -m venv .venv-peers` and "
    "`.venv-peers/bin/pip install torch==2.13.0 transformers numpy`, or name one in MHA_JAX_PEERS"
)
PARITY_STEPS = 4
# Relative, of losses and of the first gradient's norm. Sums in another order change a float32
# loss by 1e-6, and Adam turns the sign of a gradient near zero into a whole step; products of
# bfloat16, which each library rounds in other places, carry 8 bits.
TOLERANCE = {"float32": 1e-4, "bfloat16": 2e-2}
N_BATCHES = 8


@dataclasses.dataclass(frozen=True)
class Kind:
    """What a team is."""

    peer: str = ""  # a key of MODULES; "": ours
    tuned: bool = True  # with the allocator settings of `host`
    cores: Sequence[int | None] = (None,)  # of each process; None: all

    @property
    def exists(self) -> bool:
        """Whether it can be measured here."""
        return self.peer != "torch" or peers_python() is not None

    def start(self, name: str) -> list[Side]:
        """Its processes."""
        module = MODULES[self.peer] if self.peer else OURS
        python = peers_python() if self.peer == "torch" else None
        return [
            Side(name, module, python=python, cpu=core, tuned=self.tuned) for core in self.cores
        ]


@dataclasses.dataclass(frozen=True)
class Compared:
    """What the teams took, and how far each is from ours."""

    took: Mapping[str, Took]
    parity: Mapping[str, Mapping[str, Any]]

    def row(
        self, name: str, peer: str, must: float | None, aim: float | None, *, of: str = "ours"
    ) -> Row:
        """Time of a team over that of ours.

        Args:
          name: of the row.
          peer: a team; the one called "<peer> plain" is told beside it.
          must, aim: bounds of the ratio; None: none.
          of: which team is ours.
        """
        if peer not in self.took:
            return Row(name, peer, None, must, aim, {}, NO_TORCH)
        ours, theirs, plain = (self.took[x] for x in (of, peer, f"{peer} plain"))
        parity = self.parity[peer]
        figures: dict[str, Any] = {"ours": ours.to_json(), "peer": theirs.to_json()}
        figures |= {"peer with the default allocator": plain.to_json(), "parity": parity}
        if not (parity["equal"] and self.parity[f"{peer} plain"]["equal"]):
            words = "parity failed: the sides do not take the same steps"
            return Row(name, peer, None, must, aim, figures, words, sound=False)
        figures["ratio to the default allocator"] = plain.median() / ours.median()
        figures["ratio of CPU seconds"] = theirs.median("cpu_s") / ours.median("cpu_s")
        return Row(name, peer, theirs.median() / ours.median(), must, aim, figures)


def run_json(static: StaticConfig) -> dict[str, Any]:
    """The run of a config that all sides take steps of."""
    hypers = Hypers(seed=0, data_seed=0, lr=1e-3, weight_decay=0.1)
    body = {"static": to_json(static), "hypers": to_json(hypers)}
    return {"schema_version": SCHEMA_VERSION, **body}


def compare(
    static: StaticConfig,
    kinds: Mapping[str, Kind],
    n_models: int,
    n_steps: int,
    reps: int,
    tell: Tell,
) -> Compared:
    """Starts the teams, checks them against the first, which is ours, and times them in turn.

    Args:
      static: of configs/bench.py.
      kinds: by name; those that do not exist here are left out.
      n_models: shared out evenly over the processes of a team, which divide it.
      n_steps: of every model in a turn.
      reps: turns.
      tell: gets a line now and then.
    """
    run = run_json(static)
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        teams: dict[str, Team] = {}
        for name, kind in kinds.items():
            if kind.exists:
                teams[name] = team = kind.start(name)
                for side in team:
                    stack.callback(side.close)
                n_each, at = n_models // len(team), folder / "arrays.npz"
                for side in team:
                    _build(side, kind, run, n_each, at, write=len(teams) == 1)
                tell(f"built {name}")
        parity = dict(_parity(teams, static.model.compute_dtype))
        return Compared(in_turn(teams, "steps", {"n": n_steps}, reps, tell), parity)


def _build(side: Side, kind: Kind, run: Any, n_models: int, at: Path, *, write: bool) -> None:
    if kind.peer:
        side.ask("build", run=run, n_models=n_models, read=str(at))
    else:
        to = str(at) if write else ""
        side.ask("build", run=run, n_models=n_models, write=to, n_batches=N_BATCHES)


def _parity(teams: Mapping[str, Team], dtype: str) -> Iterator[tuple[str, dict[str, Any]]]:
    told = {name: team[0].ask("losses", n=PARITY_STEPS) for name, team in teams.items()}
    (_, ours), *others = told.items()
    for name, theirs in others:
        yield name, parity(ours, theirs, TOLERANCE[dtype])


def parity(ours: Mapping[str, Any], theirs: Mapping[str, Any], tolerance: float) -> dict[str, Any]:
    """How far two sides' answers to `losses` are apart, and whether that is `equal`."""

    def error(a: float, b: float) -> float:
        difference = abs(a - b) / abs(a)
        return difference if math.isfinite(difference) else math.inf

    pairs = zip(ours["losses"], theirs["losses"], strict=True)
    errors = {
        "loss_error": max(error(a, b) for a, b in pairs),
        "grad_norm_error": error(ours["grad_norms"][0], theirs["grad_norms"][0]),
    }
    told = {"steps": len(ours["losses"]), "tolerance": tolerance, **errors}
    return {**told, "equal": max(errors.values()) <= tolerance}

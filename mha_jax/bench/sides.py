"""Measures processes against each other, in turn, in one run. Imports no jax."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any

from mha_jax import host
from mha_jax.terminal import table

ROOT = Path(__file__).resolve().parents[2]


class SideError(RuntimeError):
    """A side could not do what it was asked."""


class Side:
    """A process of `side.py` with one module's handlers.

    Args:
      name: for people, and in rows.
      module: whose HANDLERS it serves.
      python: its interpreter; None: this one.
      cpu: the core that it is pinned to; None: all of this process.
      tuned: with the allocator settings of `host`; else as the system has them.
      environment: variables beside this process's; None: none.

    Raises:
      SideError: the process does not come up.
    """

    def __init__(
        self,
        name: str,
        module: str,
        *,
        python: Path | None = None,
        cpu: int | None = None,
        tuned: bool = True,
        environment: Mapping[str, str] | None = None,
    ):
        self.name = name
        # What it prints, for when it dies.
        self._words = tempfile.TemporaryFile("w+")  # noqa: SIM115  closed with the process
        command = [str(python or sys.executable), "-m", "mha_jax.bench.side", module]
        command += [] if cpu is None else [f"--cpu={cpu}"]
        env = {**os.environ, **(environment or {}), "PYTHONPATH": str(ROOT)}
        env.pop("GLIBC_TUNABLES", None)  # what this process was started with is not every side's
        if tuned:
            env["GLIBC_TUNABLES"] = host.HUGE_PAGES
        else:
            command.append("--plain")
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._words,
            text=True,
            env=env,
        )
        try:
            self.settings = self._read()
        except SideError:
            self.close()
            raise

    def ask(self, do: str, **arguments: Any) -> dict[str, Any]:
        """The answer of the handler `do`.

        Raises:
          SideError: the handler failed, or the process died.
        """
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # its last words are told below
            self._process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
            self._process.stdin.flush()
        return self._read()

    def close(self) -> None:
        """Ends the process."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._words):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):  # a request that it no longer read
                pipe.close()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._words.seek(0)
            last = self._words.read().strip().splitlines()[-1:] or ["it said nothing"]
            raise SideError(f"{self.name} ended: {last[0]}")
        told = json.loads(line)
        if "error" in told:
            raise SideError(f"{self.name}: {told['error']}")
        return told

    def __enter__(self) -> Side:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.close()


def peers_python() -> Path | None:
    """The interpreter of the environment that holds the peers: what MHA_JAX_PEERS says, or
    `.venv-peers`; None where there is none.
    """
    path = Path(os.environ.get("MHA_JAX_PEERS") or ROOT / ".venv-peers") / "bin" / "python"
    return path if path.exists() else None


@dataclasses.dataclass(frozen=True)
class Took:
    """How long a side took, each time: medians, and the spread between its quickest and slowest."""

    times: tuple[Mapping[str, float], ...]

    def median(self, key: str = "seconds") -> float:
        """Of `seconds`, `cpu_s` or `minor_faults` (see `side.timed`)."""
        return statistics.median(one[key] for one in self.times)

    def to_json(self) -> dict[str, float]:
        """Medians by key, and `spread`: the longest time over the shortest."""
        seconds = [one["seconds"] for one in self.times]
        return {key: self.median(key) for key in self.times[0]} | {
            "spread": max(seconds) / min(seconds),
            "reps": len(seconds),
        }


# What is measured once: a side alone, or several at the same moment (one pinned to each core).
Team = Sequence[Side]


def in_turn(
    teams: Mapping[str, Team],
    do: str,
    arguments: Mapping[str, Any],
    reps: int,
    tell: Callable[[str], None] = lambda line: None,
) -> dict[str, Took]:
    """Every team does the same `reps` times, one team after another, in an order that turns round
    each time.

    Args:
      teams: sides that work at the same moment, by name; a team takes as long as its slowest side.
      do: a handler that returns what `side.timed` does.
      arguments: for it.
      reps: how often.
      tell: gets a line now and then.
    """
    took: dict[str, list[dict[str, float]]] = {name: [] for name in teams}
    for rep in range(reps):
        for name in list(teams)[:: 1 if rep % 2 == 0 else -1]:
            with ThreadPoolExecutor(len(teams[name])) as pool:
                told = list(pool.map(lambda side: side.ask(do, **arguments), teams[name]))
            took[name].append(
                {
                    "seconds": max(one["seconds"] for one in told),
                    "cpu_s": sum(one["cpu_s"] for one in told),
                    "minor_faults": sum(one["minor_faults"] for one in told),
                }
            )
        tell(f"{do}: {rep + 1} of {reps}")
    return {name: Took(tuple(times)) for name, times in took.items()}


@dataclasses.dataclass(frozen=True)
class Row:
    """A ratio beside what it must reach and what it aims at; None where it was not measured."""

    name: str
    peer: str
    ratio: float | None
    must: float | None
    aim: float | None
    figures: Mapping[str, Any]  # of both sides, by name
    note: str = ""
    less: bool = False  # the ratio must be at most `must`, not at least
    sound: bool = True  # else the sides were not comparable, and no bound is kept

    @property
    def kept(self) -> bool:
        """Whether the bound holds within the noise of such measurements, a tenth."""
        if not self.sound or self.ratio is None or self.must is None:
            return self.sound
        return self.ratio <= 1.1 * self.must if self.less else self.ratio >= 0.9 * self.must

    def to_json(self) -> dict[str, Any]:
        """Itself, and `kept`."""
        return {**dataclasses.asdict(self), "kept": self.kept}


def rows_to_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows as a table: the ratio, its bound and its aim; `spread` is the longest time of ours over
    the shortest.
    """
    body, notes = [], []
    for row in rows:
        bound = "at most" if row["less"] else "at least"
        ours = row["figures"].get("ours")
        spread = f"{ours['spread']:.2f}" if isinstance(ours, Mapping) and "spread" in ours else ""
        ratio = "-" if row["ratio"] is None else f"{row['ratio']:.2f}"
        must = "" if row["must"] is None else f"{bound} {row['must']:g}"
        aim = "" if row["aim"] is None else f"{row['aim']:g}"
        kept = "kept" if row["kept"] else "NOT KEPT"
        body.append((row["name"], row["peer"], ratio, must, aim, spread, kept))
        if row["note"]:
            notes.append(f"{row['name']}, {row['peer']}: {row['note']}")
    header = ("row", "peer", "ratio", "must be", "aim", "spread", "")
    return "\n".join([*table(header, body), *dict.fromkeys(notes)])

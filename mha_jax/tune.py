"""Which runs a learning rate is chosen with, and which are reported: never the same seeds.

With a grid `tune.lrs` a model is trained at every rate on `tune.n_selection` seeds of their own. At
the rate they choose it is trained on `tune.n_reported` other seeds, from which every number of a
table comes. Choosing among many noisy means and reporting the best of them would favour whichever
model was given more tries. Nothing here imports jax.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from mha_jax.config import Run

# Selection seeds stand this far above the reported ones, so that more of either can be added.
SELECTION_SEEDS = 1_000_000


@dataclasses.dataclass(frozen=True)
class Tuning:
    """How a model is tuned; a field of `config.tune` each, and the first reported seeds."""

    lrs: tuple[float, ...]
    n_selection: int
    n_reported: int
    widen: int
    seed: int
    data_seed: int

    def selection(self, run: Run, lrs: tuple[float, ...]) -> list[Run]:
        """The runs that rates are chosen with."""
        first = SELECTION_SEEDS
        return [self._at(run, lr, first + i) for lr in lrs for i in range(self.n_selection)]

    def reported(self, run: Run, lr: float) -> list[Run]:
        """The runs that are reported at a rate."""
        return [self._at(run, lr, i) for i in range(self.n_reported)]

    def wider(self, lrs: tuple[float, ...], edge: str) -> float | None:
        """The rate by which a grid grows past an edge, "low" or "high", in the step it has there;
        None where it has grown often enough.

        Args:
          lrs: the grid so far, ascending, at least two rates.
          edge: where its best rate lies.
        """
        if sum(not self.lrs[0] <= lr <= self.lrs[-1] for lr in lrs) >= self.widen:
            return None
        if edge == "low":
            return _round(lrs[0] * lrs[0] / lrs[1])
        return _round(lrs[-1] * lrs[-1] / lrs[-2])

    def _at(self, run: Run, lr: float, i: int) -> Run:
        hypers = dataclasses.replace(
            run.hypers, lr=lr, seed=self.seed + i, data_seed=self.data_seed + i
        )
        return dataclasses.replace(run, hypers=hypers)


def keys(run: Run) -> dict[str, Any]:
    """The config keys that tuning sets, with a run's values."""
    hypers = run.hypers
    return {
        "optim.lr": hypers.lr,
        "train.seed": hypers.seed,
        "train.data_seed": hypers.data_seed,
    }


SET_BY_TUNING = ("optim.lr", "train.seed", "train.data_seed")


def rates(text: str) -> tuple[float, ...]:
    """The rates of a comma string, ascending; () for "".

    Raises:
      ValueError: what is wrong with it, as "rule; fix".
    """
    how = 'write it like "1e-3,2e-3,4e-3,8e-3"'
    found: list[float] = []
    for part in text.split(",") if text else ():
        try:
            rate = float(part)
        except ValueError:
            raise ValueError(f"must hold numbers, and {part.strip()!r} is none; {how}") from None
        if not math.isfinite(rate) or not 0 < rate <= 100:
            raise ValueError(f"must hold rates above 0 and at most 100, not {rate:g}; {how}")
        found.append(rate)
    if any(low >= high for low, high in zip(found, found[1:], strict=False)):
        raise ValueError(f"must ascend without repeats; {how}")
    return tuple(found)


def _round(rate: float) -> float:
    """Six digits: a rate is part of a run's identity, and 0.0040000000000000001 is no other."""
    return float(f"{rate:.6g}")

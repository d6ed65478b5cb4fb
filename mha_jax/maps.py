"""What the heads of a model do with one sequence."""

from __future__ import annotations

import dataclasses

import numpy as np

from mha_jax.page import html, tabs
from mha_jax.page.shown import Shown
from mha_jax.page.view import Looked
from mha_jax.store import StoredRun


@dataclasses.dataclass(frozen=True)
class AttentionMaps:
    """What every head does with one sequence.

    Attributes:
      weights: float32 [l, n, t, s]: how much of position s the head n of layer l reads at position
        t; a row sums to one. Where layers differ in their number of heads a list of [n, t, s].
      tokens: how the positions are written, t of them: both axes of a map.
      kv_head: for each layer the kv head that each query head reads.
      step: updates that the parameters have behind them.
      looked: all that was computed on the way, for the page.
      stored: the run's files.
    """

    weights: np.ndarray | list[np.ndarray]
    tokens: list[str]
    kv_head: list[list[int]]
    step: int
    looked: Looked = dataclasses.field(repr=False)
    stored: StoredRun = dataclasses.field(repr=False)

    def show(self) -> Shown:
        """The attention page of this sequence: a notebook shows it, `save(path)` writes it.

        Raises:
          ValueError: more positions than the page shows.
        """
        name = self.stored.label
        model = tabs.model(name, [self.looked], tabs.told_by(self.stored))
        one = tabs.tab(name, [model], roles=self.stored.spec.roles)
        return Shown(html.page(f"Attention of {name}", [one]))

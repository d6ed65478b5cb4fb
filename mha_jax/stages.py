"""What follows from the results so far: a wider grid, the reported seeds, the twins.

A sweep whose configs ask for it is planned in stages, since the later runs depend on what the
earlier ones found. Each stage is a function of finished results alone, so a launch that was broken
off plans the same again. Imports no jax.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Sequence
from typing import Any

from mha_jax import tune
from mha_jax.config import Run, doubled
from mha_jax.labels import labels
from mha_jax.origin import sources
from mha_jax.planned import PURPOSES, PlannedRun, groups
from mha_jax.report import cells
from mha_jax.store import StoredRun


def followups(planned: Sequence[PlannedRun], stored: Sequence[StoredRun]) -> list[PlannedRun]:
    """The runs to do next; [] when nothing is left.

    Args:
      planned: every run planned so far.
      stored: the runs of the experiment's directory; of the planned ones all that could end have.
        All take part in the choice of a rate, those of an older grid too, as in the tables.

    Raises:
      ValueError: a run's task cannot be loaded.
    """
    known = {one.run.hash for one in planned}
    by_hash = {cell.static_hash: cell for cell in cells.gather(stored)}
    new: dict[str, PlannedRun] = {}
    for group_hash, members in groups(list(planned)).items():
        if group_hash in by_hash:
            for one in _next(members, by_hash[group_hash], known):
                new.setdefault(one.run.hash, one)
    more = [*new.values(), *sources(list(new.values()), known)]
    return _labelled(list(planned), more)


def told(more: Sequence[PlannedRun]) -> str:
    """What a next stage is, for people."""
    words = {
        "selection": "at one more learning rate",
        "sweep": "at the chosen learning rates, on the seeds that are reported",
        "twin": "with twice the steps",
        "source": "that these start from",
        "selection source": "that these start from",
    }
    count = collections.Counter(one.about["purpose"] for one in more)
    return ", ".join(f"{n} more runs {words[purpose]}" for purpose, n in count.items())


def _next(members: Sequence[PlannedRun], cell: cells.CellRuns, known: set[str]) -> list[PlannedRun]:
    """The next stage of one cell that has runs which are not known yet."""
    first = max(members, key=lambda one: PURPOSES.index(one.about["purpose"]))
    if first.about["purpose"] == "twin":  # planned as a twin here, and trained for itself before
        return []
    for stage in (_chosen_with, _wider, _reported, _twins):
        new = [one for one in stage(first, cell) if one.run.hash not in known]
        if new:
            return new
    return []


def _chosen_with(first: PlannedRun, cell: cells.CellRuns) -> list[PlannedRun]:
    """Selection runs at every rate that takes part: a kill may have left the seeds of a wider grid
    incomplete.
    """
    tuning = _tuning(first)
    if tuning is None:
        return []
    run = _decayed(first, cell)
    return [_like(first, one, "selection") for one in tuning.selection(run, cell.cell.choice.grid)]


def _wider(first: PlannedRun, cell: cells.CellRuns) -> list[PlannedRun]:
    """Selection runs at one more rate, past the edge at which the metric still rises."""
    tuning, choice = _tuning(first), cell.cell.choice
    if tuning is None or not choice.rises_at_edge(first.about["converge"]["tol"], cell.spec):
        return []
    rate = tuning.wider(choice.grid, choice.edge)
    if rate is None:
        return []
    run = _decayed(first, cell)
    return [_like(first, one, "selection") for one in tuning.selection(run, (rate,))]


def _reported(first: PlannedRun, cell: cells.CellRuns) -> list[PlannedRun]:
    """The runs that a tuned cell reports, at its chosen rate."""
    tuning, lr = _tuning(first), cell.cell.lr
    if tuning is None or lr is None:
        return []
    return [_like(first, run, "sweep") for run in tuning.reported(_decayed(first, cell), lr)]


def _twins(first: PlannedRun, cell: cells.CellRuns) -> list[PlannedRun]:
    """The reported runs again with twice the steps; none for a cell that reaches its ceiling, nor
    for one that starts from other runs: twice its own steps are not twice its budget.
    """
    told = first.about["converge"]["confirm"]
    if not told or cell.cell.status == "converged" or first.run.static.start:
        return []
    twins = []
    for seed in cell.cell.seeds:
        hypers = dataclasses.replace(
            first.run.hypers,
            seed=seed.seed,
            data_seed=seed.data_seed,
            lr=seed.lr,
            weight_decay=seed.weight_decay,
        )
        static = first.run.static
        trunk = static.optim.trunk_steps(static.train.n_steps)
        twin = _like(first, Run(doubled(static), hypers), "twin")
        twin.about["branch"] = {"hash": Run(static, hypers).hash, "step": trunk}
        twins.append(twin)
    return twins


def _decayed(first: PlannedRun, cell: cells.CellRuns) -> Run:
    """A run of the cell with the weight decay that was chosen together with the rate."""
    chosen = cell.cell.choice.weight_decay
    if chosen is None:
        return first.run
    hypers = dataclasses.replace(first.run.hypers, weight_decay=chosen)
    return dataclasses.replace(first.run, hypers=hypers)


def _tuning(first: PlannedRun) -> tune.Tuning | None:
    told = first.about["tune"]
    return tune.Tuning(**told) if told else None


def _like(first: PlannedRun, run: Run, purpose: str) -> PlannedRun:
    """Another run of a cell, or of its twin."""
    changed: dict[str, Any] = tune.keys(run)
    if "optim.weight_decay" in first.swept:
        changed["optim.weight_decay"] = run.hypers.weight_decay
    if purpose == "twin":
        changed["train.n_steps"] = run.static.train.n_steps
    about = {
        **first.about,
        "purpose": purpose,
        "overrides": {**first.about["overrides"], **changed},
    }
    return dataclasses.replace(
        first,
        run=run,
        overrides={**first.overrides, **changed},
        swept={**first.swept, **changed},
        about=about,
    )


def _labelled(planned: list[PlannedRun], new: list[PlannedRun]) -> list[PlannedRun]:
    """The new runs with names that tell them apart, from each other and from the planned ones."""
    rows = [{"train.n_steps": one.run.static.train.n_steps, **one.swept} for one in planned + new]
    names = labels(rows)[len(planned) :]
    return [
        dataclasses.replace(one, label=name or one.label)
        for one, name in zip(new, names, strict=True)
    ]

"""Head scores over training time, from `metrics.jsonl` alone: `over_time.csv` and `rises.csv`.

Every value is a corrected score on the fixed probe batch (`docs/scores.md`), recorded every
`probe.every` steps.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from mha_jax.report.cells import CellRuns
from mha_jax.store import StoredRun

TAUS = (0.1, 0.5, 0.9)  # begins, has risen, is complete
COLUMNS = ("run", "seed", "step", "layer", "head", "score", "value")
RISE_COLUMNS = (
    *("experiment", "task", "cell", "config_hash", "run", "seed", "layer", "head", "score"),
    *(f"step_of_rise_at_{tau}" for tau in TAUS),
    *("peak", "last", "drop_share"),
)
_NAME = re.compile(r"heads/l(\d+)\.n(\d+)/(.+)")
# Followed as well, but nothing that a head rises to.
_NO_ROLE = ("normalised_entropy", "score_variance")


class Key(NamedTuple):
    """Which score of which head."""

    layer: int
    head: int
    score: str  # as in heads.csv: "role/prev"


# (step, value), by step
Curve = Sequence[tuple[int, float]]


class OfRun(NamedTuple):
    """What a run recorded on its way."""

    run: StoredRun
    heads: Mapping[Key, Curve]
    loss: Curve  # of training, nats or squared error: mean of the steps since the point before
    metric: Curve  # on the validation draw


class OfCell(NamedTuple):
    """A cell, and what its reported runs recorded on their way, by seed: at least one."""

    cell: CellRuns
    runs: Sequence[OfRun]


def followed(gathered: Sequence[CellRuns]) -> tuple[list[OfCell], list[str]]:
    """The cells of which a reported run recorded head scores more than once, with those runs, and a
    line for each record that could not be read.
    """
    found, problems = [], []
    for c in gathered:
        by_hash = {run.run.hash: run for run in c.runs}
        runs = []
        for seed in c.cell.seeds:
            records, unreadable = by_hash[seed.hash].history()
            problems += unreadable
            one = OfRun(
                by_hash[seed.hash],
                head_curves(records),
                curve(records, "train/loss"),
                curve(records, f"eval/{c.spec.metric}"),
            )
            if any(len(values) > 1 for values in one.heads.values()):
                runs.append(one)
        if runs:
            found.append(OfCell(c, runs))
    return found, problems


def curve(records: Sequence[Mapping[str, Any]], name: str) -> Curve:
    """The values of one scalar, by step."""
    return sorted((row["step"], row[name]) for row in records if name in row)


def head_curves(records: Sequence[Mapping[str, Any]]) -> dict[Key, Curve]:
    """The values of every head score, by layer, head and score."""
    names = sorted({name for row in records for name in row if _NAME.fullmatch(name)})
    curves = {_key(name): curve(records, name) for name in names}
    return {key: curves[key] for key in sorted(curves)}


def step_of_rise(values: Curve, tau: float) -> int | None:
    """The first recorded step at which the value is `tau` or more, whatever comes after it; None:
    never. Ours."""
    return next((step for step, value in values if value >= tau), None)


def drop_share(loss: Curve, start: int | None, end: int | None) -> float | None:
    """The share of the fall of the training loss, from the first record to the last, that fell
    between two steps. Ours.

    Range: any; 1 for all of it, above 1 where the loss rises again later. None without both steps
    and a record at or before each, or where the loss of the run did not fall.
    """
    if start is None or end is None:
        return None
    before, after = _at(loss, start), _at(loss, end)
    whole = loss[0][1] - loss[-1][1] if loss else 0.0
    if before is None or after is None or not whole > 0:
        return None
    return (before - after) / whole


def rows(cells: Sequence[OfCell]) -> list[dict[str, Any]]:
    """`over_time.csv`: one row for each run, step, layer, head and score."""
    return [
        dict(zip(COLUMNS, (*known, step, *key, value), strict=True))
        for c in cells
        for one in c.runs
        for known in [(one.run.run.hash, one.run.run.hypers.seed)]
        for key, values in one.heads.items()
        for step, value in values
    ]


def rise_rows(cells: Sequence[OfCell]) -> list[dict[str, Any]]:
    """`rises.csv`: one row for each run, layer, head and score.

    `step_of_rise_at_<tau>` as `step_of_rise`, empty: never; `drop_share` between the steps of the
    lowest and the highest tau.
    """
    found = []
    for c, runs in cells:
        about = (c.runs[0].about["experiment"], c.static.task.name, c.label, c.static_hash)
        for one in runs:
            known = (*about, one.run.run.hash, one.run.run.hypers.seed)
            for key, values in one.heads.items():
                if key.score not in _NO_ROLE:
                    told = (*known, *key, *_rise(values, one.loss))
                    found.append(dict(zip(RISE_COLUMNS, told, strict=True)))
    return found


def leading(heads: Mapping[Key, Curve], tau: float = TAUS[1]) -> dict[tuple[int, int], list[Key]]:
    """The scores that say what each (layer, head) came to do, highest peak first.

    The task's roles that ever reached `tau`; for a head that reached none, whatever score of it
    peaked highest, a role or not.
    """
    found: dict[tuple[int, int], list[Key]] = {}
    for key in heads:
        if key.score not in _NO_ROLE:
            found.setdefault((key.layer, key.head), []).append(key)

    def peak(key: Key) -> float:
        return max(v for _, v in heads[key])

    for head, keys in found.items():
        # Of equal peaks the role comes first: some scores say the same as a role of some task.
        keys.sort(key=lambda key: (-peak(key), not key.score.startswith("role/"), key))
        roles = [key for key in keys if key.score.startswith("role/") and peak(key) >= tau]
        found[head] = roles or keys[:1]
    return found


def first_rises(runs: Sequence[OfRun], tau: float = TAUS[1]) -> dict[str, list[int | None]]:
    """For each role that is followed, the step of rise of the head that is first, in every run."""
    scores = dict.fromkeys(
        key.score for one in runs for key in one.heads if key.score.startswith("role/")
    )
    return {
        score: [
            min(
                (
                    step
                    for key, values in one.heads.items()
                    if key.score == score and (step := step_of_rise(values, tau)) is not None
                ),
                default=None,
            )
            for one in runs
        ]
        for score in scores
    }


def _rise(values: Curve, loss: Curve) -> tuple[Any, ...]:
    steps = [step_of_rise(values, tau) for tau in TAUS]
    peak = max(value for _, value in values)
    return (*steps, peak, values[-1][1], drop_share(loss, steps[0], steps[-1]))


def _key(name: str) -> Key:
    found = _NAME.fullmatch(name)
    assert found is not None
    return Key(int(found[1]), int(found[2]), found[3])


def _at(values: Curve, step: int) -> float | None:
    """The newest value at a step."""
    return next((value for at, value in reversed(values) if at <= step), None)

"""`comparisons.csv`: every two cells of a task that had the same budget."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

from mha_jax.report.cells import CellRuns
from mha_jax.report.compare import Pair, Side, compare

COLUMNS = (
    *("experiment", "task", "cell_a", "cell_b", "config_hash_a", "config_hash_b", "n_pairs"),
    *("mean_difference", "ci_low", "ci_high", "p", "p_holm", "mdd", "verdict", "metric"),
)


def comparison_rows(gathered: Sequence[CellRuns]) -> list[dict[str, Any]]:
    """One row for each two cells with the same task, its constants included, and the same number of
    training sequences. p is adjusted over the rows of a task.
    """
    tasks: dict[Any, list[CellRuns]] = {}
    for c in gathered:
        tasks.setdefault(c.static.task, []).append(c)
    rows = []
    for members in tasks.values():
        asked = [(a, b) for a, b in itertools.combinations(members, 2) if _budget(a) == _budget(b)]
        pairs = [pair(a, b) for a, b in asked]
        for (a, b), one, found in zip(asked, pairs, compare(pairs), strict=True):
            row = {
                "experiment": a.runs[0].about["experiment"],
                "task": a.static.task.name,
                "cell_a": a.label,
                "cell_b": b.label,
                "config_hash_a": a.static_hash,
                "config_hash_b": b.static_hash,
                "metric": one.scale,
                **dataclasses.asdict(found),
            }
            rows.append({name: row[name] for name in COLUMNS})
    return rows


def pair(a: CellRuns, b: CellRuns) -> Pair:
    """Two cells with the same metric, each at its own learning rate."""
    return Pair(_side(a), _side(b), a.spec.metric, a.spec.direction)


def _side(c: CellRuns) -> Side:
    return Side(
        values={r.pair: r.test for r in c.cell.seeds},
        status=c.cell.status,
        reason=c.cell.reason,
        twin=c.cell.twin.tests if c.cell.twin else None,
    )


def _budget(c: CellRuns) -> int:
    train = c.static.train
    return train.n_steps * train.batch_size

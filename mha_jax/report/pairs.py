"""`comparisons.csv`: every two cells of a task that had the same budget and were matched alike."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

from mha_jax.report import documents, verdict
from mha_jax.report.cells import CellRuns
from mha_jax.report.compare import Pair, Side, compare

COLUMNS = (
    *("experiment", "task", "cell_a", "cell_b", "config_hash_a", "config_hash_b", "n_pairs"),
    *("mean_difference", "ci_low", "ci_high", "p", "p_holm", "mdd", "verdict", "metric", "match"),
    *("n_documents", "documents_low", "documents_high"),
)


def comparison_rows(gathered: Sequence[CellRuns]) -> list[dict[str, Any]]:
    """One row for each two cells with the same task, its constants included, the same number of
    training sequences (those of the runs that they start from included) and the same policy of
    matching parameters. A cell that is as large as the
    reference without matching takes part under every policy. p is adjusted over the rows of a task
    and policy.
    """
    rows = []
    for (_, policy, _), members in groups(gathered).items():
        asked = [
            (a, b)
            for a, b in itertools.combinations(members, 2)
            if a.static.n_sequences == b.static.n_sequences
        ]
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
                "match": policy,
                **_documents(a, b),
                **dataclasses.asdict(found),
            }
            rows.append({name: row[name] for name in COLUMNS})
    return rows


def groups(gathered: Sequence[CellRuns]) -> dict[tuple[Any, str, str], list[CellRuns]]:
    """Cells by task, policy of matching and the model that is matched ("" with policy none)."""
    found: dict[tuple[Any, str, str], list[CellRuns]] = {}
    for c in gathered:
        for policy, to in _policies(c, gathered):
            found.setdefault((c.static.task, policy, to), []).append(c)
    return found


def pair(a: CellRuns, b: CellRuns) -> Pair:
    """Two cells with the same metric, each at its own learning rate."""
    tol = max(run.about["converge"]["tol"] for run in (*a.runs, *b.runs))
    tolerance = verdict.tolerance(tol, a.spec)
    unlike = "" if _grid(a) == _grid(b) else "tuned on different learning rates"
    return Pair(_side(a), _side(b), a.spec.metric, a.spec.direction, tolerance, unlike)


def _grid(c: CellRuns) -> tuple[float, ...]:
    """The learning rates that a cell was to be tried with."""
    told = c.runs[0].about["tune"]
    return tuple(told["lrs"]) if told else c.cell.choice.grid


def _policies(c: CellRuns, gathered: Sequence[CellRuns]) -> list[tuple[str, str]]:
    """The policies, and what they match to, under whose heading a cell is compared."""
    about = c.runs[0].about
    own = _policy(about)
    if about["match"] != "none" or about["params_ratio"] != 1:
        return [own]
    others = [other.runs[0].about for other in gathered if other.static.task == c.static.task]
    alike = [_policy(other) for other in others if other["match_to"] == about["match_to"]]
    return list(dict.fromkeys([own, *alike]))


def _policy(about: dict[str, Any]) -> tuple[str, str]:
    return about["match"], "" if about["match"] == "none" else about["match_to"]


def _documents(a: CellRuns, b: CellRuns) -> dict[str, Any]:
    found = documents.spread(documents.losses(a), documents.losses(b))
    values = found or (None, None, None)
    return dict(zip(("n_documents", "documents_low", "documents_high"), values, strict=True))


def _side(c: CellRuns) -> Side:
    return Side(
        values={r.pair: r.test for r in c.cell.seeds},
        status=c.cell.status,
        reason=c.cell.reason,
        twin=c.cell.twin.tests if c.cell.twin else None,
    )

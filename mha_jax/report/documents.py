"""Cells document by document, and two of them compared: would other topics have said the same?

Seeds tell how much the training of a model varies; they say nothing of the text. So the held-out
documents are drawn anew with replacement (Efron 1979), for the same seeds, and the difference of
the cells is computed for each draw.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from mha_jax.report.cells import CellRuns

# (seed, data_seed) -> document -> (loss in nats, tokens)
Losses = Mapping[tuple[int, int], Mapping[str, Sequence[float]]]
N_DRAWS = 2000


COLUMNS = ("experiment", "task", "cell", "config_hash", "document", "n_tokens", "n_seeds", "bits")


def losses(c: CellRuns) -> Losses:
    """Of the reported runs of a cell; {} for a run of a task without documents."""
    by_hash = {run.run.hash: run.summary.get("documents") or {} for run in c.runs}
    return {r.pair: by_hash[r.hash] for r in c.cell.seeds}


def rows(gathered: Sequence[CellRuns]) -> list[dict[str, Any]]:
    """`documents.csv`: one row for each cell and held-out document, `bits` a token in the mean over
    the reported seeds.
    """
    found = []
    for c in gathered:
        by_seed = [told for told in losses(c).values() if told]
        for name in sorted(by_seed[0]) if by_seed else ():
            n_tokens = by_seed[0][name][1]
            nats = [told[name][0] for told in by_seed]
            known = (c.runs[0].about["experiment"], c.static.task.name, c.label, c.static_hash)
            bits = float(np.mean(nats)) / n_tokens / math.log(2) if n_tokens else None
            values = (*known, name, int(n_tokens), len(nats), bits)
            found.append(dict(zip(COLUMNS, values, strict=True)))
    return found


class Spread(NamedTuple):
    """The difference A - B over documents, in bits a token."""

    n_documents: int
    low: float  # 95 % percentile interval
    high: float


def spread(a: Losses, b: Losses) -> Spread | None:
    """The interval of the mean difference over the seeds that two cells share, by a bootstrap over
    documents with a fixed seed; None without shared seeds or with fewer than two documents.
    """
    shared = sorted(pair for pair in a.keys() & b.keys() if a[pair] and b[pair])
    if not shared:
        return None
    names = sorted(a[shared[0]])
    if len(names) < 2:
        return None
    difference_d = np.mean(
        [[a[s][name][0] - b[s][name][0] for name in names] for s in shared], axis=0
    )
    count_d = np.array([a[shared[0]][name][1] for name in names])
    rng = np.random.default_rng(0)
    drawn = rng.integers(len(names), size=(N_DRAWS, len(names)))
    bits = difference_d[drawn].sum(1) / count_d[drawn].sum(1) / math.log(2)
    low, high = np.quantile(bits, (0.025, 0.975))
    return Spread(len(names), float(low), float(high))

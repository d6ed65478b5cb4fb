"""A sweep as tables in memory: what a notebook starts from."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mha_jax import store
from mha_jax.report import cells, over_time, pairs, tables


class SweepData:
    """The runs of an experiment. Each table is a pandas frame where pandas is installed, else a
    list of dicts.

    Attributes:
      root: the experiment's directory.
      problems: one line for each thing that could not be read and was left out.
    """

    def __init__(self, root: Path, stored: Sequence[store.StoredRun], problems: Sequence[str]):
        self.root = root
        self.problems = list(problems)
        self._stored = list(stored)

    def runs(self) -> Any:
        """One row for each run: the columns of `runs.csv`, at full precision."""
        return _frame(tables.run_rows(self._stored))

    def cells(self) -> Any:
        """One row for each static config: the columns of `frontier.csv`, at full precision."""
        return _frame(tables.frontier_rows(cells.gather(self._stored)))

    def comparisons(self) -> Any:
        """One row for each two cells of a task: the columns of `comparisons.csv`."""
        return _frame(pairs.comparison_rows(cells.gather(self._stored)))

    def heads(self) -> Any:
        """One row for each run, layer, head and role: the columns of `heads.csv`."""
        rows, problems = tables.head_rows(self._stored)
        self._tell(problems)
        return _frame(rows)

    def rises(self) -> Any:
        """One row for each reported run, layer, head and score: the columns of `rises.csv`."""
        followed, problems = over_time.followed(cells.gather(self._stored))
        self._tell(problems)
        return _frame(over_time.rise_rows(followed))

    def history(self) -> Any:
        """One row for each line of every `metrics.jsonl`, with the run's label, hash and hypers in
        front.
        """
        rows = []
        for run in self._stored:
            records, problems = run.history()
            self._tell(problems)
            hypers = run.run.hypers
            known = {
                "label": run.label,
                "hash": run.run.hash,
                "task": run.run.static.task.name,
                "seed": hypers.seed,
                "data_seed": hypers.data_seed,
                "lr": hypers.lr,
                "weight_decay": hypers.weight_decay,
            }
            rows += [known | record for record in records]
        return _frame(rows)

    def _tell(self, problems: Sequence[str]) -> None:
        self.problems += [p for p in problems if p not in self.problems]

    def __repr__(self) -> str:
        runs, problems = len(self._stored), len(self.problems)
        return f"SweepData({str(self.root)!r}: {runs} runs, {problems} problems)"


def load_sweep(root: str | Path) -> SweepData:
    """Reads `<workdir>/<experiment>`. Needs no jax.

    Raises:
      ValueError: no such directory, no run in it, or a run whose `config.json` does not belong to
        it.
    """
    stored, problems = store.read_sweep(root)
    return SweepData(Path(root), stored, problems)


def _frame(rows: list[dict[str, Any]]) -> Any:
    try:
        import pandas
    except ImportError:
        return rows
    return pandas.DataFrame(rows)

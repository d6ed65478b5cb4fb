"""Tables and figures of a sweep, remade at any time from the files of its runs. Imports no jax.

cells.py     runs gathered into cells, with labels
stats.py     one cell: the chosen learning rate, the interval; verdict.py: what may be said
intervals.py of a mean and of a success rate; compare.py: of two cells, which is better
pairs.py     comparisons.csv; order.py: order.txt
documents.py documents.csv, and a bootstrap over the documents of a text
tables.py    runs.csv, frontier.csv, heads.csv, timing.csv
head_columns.py  what frontier.csv tells of heads; pareto.py: which cells are on the front
across.py    two sweeps side by side; across_text.py: as text and JSON
over_time.py over_time.csv and rises.csv; training.py: figures/training.svg and .png
figure.py    figures/frontier.svg and .png: the page
panels.py    its scatter plots, with labels.py, which places their text; maps.py: its heat maps
page.py      a page in inches, and its bytes
data.py      the same tables in memory, for notebooks
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from mha_jax import store
from mha_jax.files import within, write_atomic
from mha_jax.report import cells, documents, order, over_time, pairs, tables


def _to_stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def make(root: str | Path, tell: Callable[[str], None] = _to_stderr) -> list[Path]:
    """Writes every table and figure of an experiment; each file is replaced as a whole or not at
    all.

    Args:
      root: `<workdir>/<experiment>`.
      tell: receives one line for each thing that could not be read, and one if there is nothing to
        draw.

    Returns:
      The files written. No figure where no run is finished.

    Raises:
      ValueError: no such directory, no run in it, a run whose `config.json` does not belong to it,
        or an unknown task.
    """
    root = Path(root)
    runs, problems = store.read_sweep(root)
    gathered = cells.gather(runs)
    heads, unreadable = tables.head_rows(runs)
    followed, torn = over_time.followed(gathered)
    for line in problems + unreadable + torn:
        tell(line)
    comparisons = pairs.comparison_rows(gathered)
    texts = {
        "runs.csv": tables.to_csv(tables.run_rows(runs), ()),
        "frontier.csv": tables.to_csv(tables.frontier_rows(gathered), tables.FRONTIER_COLUMNS),
        "comparisons.csv": tables.to_csv(comparisons, pairs.COLUMNS),
        "order.txt": order.text(gathered, comparisons),
        "heads.csv": tables.to_csv(heads, tables.HEAD_COLUMNS),
        "timing.csv": tables.to_csv(tables.timing_rows(runs), ()),
    }
    by_document = documents.rows(gathered)
    if by_document:
        texts["documents.csv"] = tables.to_csv(by_document, documents.COLUMNS)
    if followed:
        texts["over_time.csv"] = tables.to_csv(over_time.rows(followed), over_time.COLUMNS)
        rises = over_time.rise_rows(followed)
        texts["rises.csv"] = tables.to_csv(rises, over_time.RISE_COLUMNS)
    written = []
    for name, text in texts.items():
        write_atomic(root / name, text)
        written.append(root / name)
    if not any(c.cell.seeds for c in gathered):
        tell(f"{root}: no finished run, so there is no figure yet")
        return written
    # matplotlib is slow to import, and only a figure needs it
    from mha_jax.report import figure, training

    figures = {"frontier": figure.frontier(gathered, heads)}
    if followed:
        figures["training"] = training.draw(followed)
    within(root, root / "figures").mkdir(exist_ok=True)
    for name, files in figures.items():
        for suffix, data in files.items():
            path = root / "figures" / f"{name}.{suffix}"
            write_atomic(path, data)
            written.append(path)
    return written

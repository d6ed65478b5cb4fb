"""The built-in demonstration: a constructed model, models of `english`, a model of text."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mha_jax.engines.base import WorkerError
from mha_jax.launch import launch
from mha_jax.load import ROOT, load
from mha_jax.page import constructed, runs
from mha_jax.page.tabs import heads_told
from mha_jax.run import LoadedRun, load_run
from mha_jax.sweep import expand

SENTENCE = "the cat sat on the warm mat ."
_CONFIG = ROOT / "experiments" / "demonstration.py"
_ROOM = 10**9  # every checkpoint is on the slider
_ENGLISH = (
    "The same width, cut into more and more heads from the same initial weights, learned four "
    "relations between the words of small sentences. Move the slider from the first step to the "
    "last: with enough heads one blurred map splits into roles, and the table tells what a single "
    "head loses.",
)
_BYTES = (
    "A small model of real text reads the sentence byte by byte. Nobody told its heads what to "
    "do, and often nothing in particular is the answer.",
)


def tabs(given: Sequence[LoadedRun]) -> list[dict[str, Any]]:
    """The three tabs.

    Args:
      given: runs of `english` and of `text`; none: they are trained, in a directory that goes
        when they have been read.

    Raises:
      ValueError: runs of other tasks, or what `runs.tab` raises.
      WorkerError: a run could not be trained.
    """
    if given:
        return _tabs(given)
    with tempfile.TemporaryDirectory() as place:
        sweep = expand(load(str(_CONFIG)))
        if launch(sweep, Path(place)):
            raise WorkerError("a run of the demonstration failed; see above")
        return _tabs([load_run(d) for d in _directories(Path(place) / sweep.experiment, sweep)])


def _tabs(given: Sequence[LoadedRun]) -> list[dict[str, Any]]:
    by_task = {name: [one for one in given if _task(one) == name] for name in ("english", "text")}
    if not all(by_task.values()) or sum(map(len, by_task.values())) < len(given):
        found = ", ".join(dict.fromkeys(map(_task, given)))
        raise ValueError(f"--demo shows runs of english and of text, not of {found}; see --help")
    heads = [one.run.static.model.layers[0].n_heads for one in by_task["english"]]
    of_english, _ = runs.tab(
        "Trained",
        by_task["english"],
        text=SENTENCE,
        paragraphs=_ENGLISH,
        room=_ROOM,
        labels=[heads_told(n) for n in heads] if len(set(heads)) == len(heads) else (),
    )
    of_text, _ = runs.tab("Text", by_task["text"], text=SENTENCE, paragraphs=_BYTES, room=_ROOM)
    return [constructed.tab(SENTENCE), of_english, of_text]


def _directories(root: Path, sweep: Any) -> list[Path]:
    """Where the runs of a sweep are, in its order."""
    by_hash = {path.name.rpartition("-")[2]: path for path in root.iterdir() if path.is_dir()}
    return [by_hash[planned.run.hash] for planned in sweep.runs]


def _task(run: LoadedRun) -> str:
    return run.run.static.task.name

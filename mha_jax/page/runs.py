"""A tab of the runs of a user."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from mha_jax.page import tabs
from mha_jax.page.html import packed_bytes
from mha_jax.run import LoadedRun

_ROOM = 900_000  # bytes of numbers: with script and style the page stays under 1 MB
_TOO_LONG = (
    "the numbers of every checkpoint take {:.1f} MB, so the page has the last one of each run"
)


def tab(
    name: str,
    runs: Sequence[LoadedRun],
    *,
    text: str | None = None,
    index: int = 0,
    at: str | int | None = None,
    paragraphs: Sequence[str] = (),
    room: int = _ROOM,
    labels: Sequence[str] = (),
) -> tuple[dict[str, Any], str]:
    """The tab, and what of it was left out, as a line; "": nothing.

    Args:
      name: of the tab.
      runs: in the order of their buttons.
      text: what they read; None: a sequence of the probe draw.
      index: which one.
      at: a checkpoint: "last", "best" or a step. None: all that are kept, where they fit in `room`,
        else the last one.
      paragraphs: above the maps.
      room: bytes.
      labels: on the buttons; none: what the directories are called.

    Raises:
      ValueError: a run without a checkpoint, a text that its task cannot read, more tokens than
        the page shows, or a mixer without attention weights.
      CheckpointError: a checkpoint that is missing or damaged.
    """
    first = runs[0].spec
    same = len({(one.spec.metric, one.spec.outputs) for one in runs}) == 1
    names = [first.metric, *first.outputs] if same else []

    def made(all_steps: bool) -> dict[str, Any]:
        models = [
            _model(one, label, text, index, _checkpoints(one, at, all_steps))
            for one, label in zip(runs, labels or _labels(runs), strict=True)
        ]
        return tabs.tab(
            name,
            models,
            text=paragraphs,
            numbers_of=f"validation {first.metric}, all and by read-out" if same else "quality",
            chance={output: first.chance for output in names},
            roles=[role for one in runs for role in one.spec.roles],
        )

    whole = made(True)
    size = packed_bytes(whole)
    if at is not None or size <= room or all(len(one["views"]) == 1 for one in whole["models"]):
        return whole, ""
    return made(False), _TOO_LONG.format(size / 1e6)


def _checkpoints(run: LoadedRun, at: str | int | None, all_steps: bool) -> Sequence[str | int]:
    if at is not None:
        return [at]
    return run.steps() if all_steps and run.steps() else ["last"]


def _model(
    run: LoadedRun, label: str, text: str | None, index: int, steps: Sequence[str | int]
) -> dict[str, Any]:
    found = [run.attention(text, at=at, index=index) for at in steps]
    return tabs.model(label, [one.looked for one in found], tabs.told_by(found[0].stored))


def _labels(runs: Sequence[LoadedRun]) -> list[str]:
    """What the directories are called, with the hash where two are called alike."""
    names = [one.directory.resolve().name for one in runs]
    short = [name[: -len(one.run.hash) - 1] for name, one in zip(names, runs, strict=True)]
    count = Counter(short)
    return [s if count[s] == 1 else name for s, name in zip(short, names, strict=True)]

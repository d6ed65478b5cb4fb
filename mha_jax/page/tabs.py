"""Tabs of the page: models that can be flipped, each with views at its checkpoints."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mha_jax.page import badges, meter
from mha_jax.page.view import Looked, view
from mha_jax.store import StoredRun

# From a step: the badges of each layer, and the numbers of the model.
Told = Callable[[int], tuple[list[list[dict[str, Any]]], dict[str, float]]]


def model(label: str, looked: Sequence[Looked], told: Told | None = None) -> dict[str, Any]:
    """One model of a tab.

    Args:
      label: on its button.
      looked: the same sequence at one or more checkpoints, the earliest first.
      told: what is known of it at a step; None: nothing.

    Raises:
      ValueError: as `view.view`.
    """
    views = []
    for one in looked:
        of_layers, numbers = told(one.step) if told else ([], {})
        views.append(view(one) | {"badges": of_layers, "numbers": numbers})
    return {
        "label": label,
        "tokens": looked[0].tokens,
        "meter": meter.meter(looked[0].static.model),
        "context": looked[0].static.task.spec.length,
        "views": views,
    }


def tab(
    name: str,
    models: Sequence[dict[str, Any]],
    *,
    text: Sequence[str] = (),
    numbers_of: str = "",
    chance: Mapping[str, float] | None = None,
    roles: Sequence[str] = (),
) -> dict[str, Any]:
    """A tab.

    Args:
      name: of the tab.
      models: in the order of their buttons.
      text: paragraphs above the maps.
      numbers_of: what the numbers of the models are, for people; "": there are none to show.
      chance: what the numbers are by chance.
      roles: that heads can have, for the exercise.
    """
    found = [
        badge["role"]
        for one in models
        for view in one["views"]
        for layer in view["badges"]
        for badge in layer
    ]
    return {
        "name": name,
        "text": list(text),
        "models": list(models),
        "numbers_of": numbers_of,
        "chance": dict(chance or {}),
        "words": badges.words([role for role in (*roles, *found) if role]),
    }


def heads_told(n: int) -> str:
    """So many heads, in words."""
    return f"{n} head{'s' if n > 1 else ''}"


def told_by(stored: StoredRun) -> Told:
    """What a run's files say: names and scores with intervals at its last step, from `heads.csv`;
    at other steps the scores that were followed, from `metrics.jsonl`, which has the model's
    quality too.
    """
    rows, history = stored.heads()[0], stored.history()[0]
    last = stored.run.static.train.n_steps
    metric = stored.spec.metric

    def told(step: int) -> tuple[list[list[dict[str, Any]]], dict[str, float]]:
        record: dict[str, float] = {}
        for row in history:
            if row["step"] == step:
                record |= row
        of_layers = []
        for i, layer in enumerate(stored.run.static.model.layers):
            n = layer.n_heads
            ends = badges.of_rows(rows, i, n) if step == last else []
            of_layers.append(ends or badges.of_record(record, i, n))
        names = [f"eval/{metric}", *(f"eval/{metric}/{output}" for output in stored.spec.outputs)]
        numbers = {
            name.removeprefix("eval/").removeprefix(f"{metric}/"): record[name]
            for name in names
            if math.isfinite(record.get(name, math.nan))
        }
        return of_layers, numbers

    return told

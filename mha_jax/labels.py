"""Short names for runs, from what varies: n_heads=8,n_kv_heads=2,lr=0.003,seed=1."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

_FOREIGN = re.compile(r"[^A-Za-z0-9._-]")
_LENGTH = 80  # with the hash behind it a directory name stays far below the 255 of file systems


def describe(overrides: dict[str, Any]) -> str:
    """Dotted keys and their values as one word, in characters that a file name may have."""
    names = _leaf_names(list(overrides))
    told = ",".join(f"{names[key]}={_text(value)}" for key, value in overrides.items())
    return told or "no overrides"


def labels(rows: Sequence[dict[str, Any]]) -> list[str]:
    """A label a row: the keys that vary, behind the name of the task where tasks differ.

    Only rows of one task are compared with each other, and of keys that say the same, as two equal
    seeds do, the first is told.

    Args:
      rows: for each run the swept keys that have a meaning for it, dotted, with their values.
    """
    tasks = dict.fromkeys(row.get("task.name") for row in rows)
    told = {}
    for task in tasks:
        own = [i for i, row in enumerate(rows) if row.get("task.name") == task]
        columns: dict[tuple[str, ...], str] = {}
        for key in dict.fromkeys(key for i in own for key in rows[i] if key != "task.name"):
            column = tuple(_text(rows[i][key]) for i in own if key in rows[i])
            if len(set(column)) > 1:
                columns.setdefault(column, key)
        names = _leaf_names(list(columns.values()))
        for i in own:
            parts = [
                f"{name}={_text(rows[i][key])}" for key, name in names.items() if key in rows[i]
            ]
            text = ",".join([_text(task), *parts] if len(tasks) > 1 else parts)
            told[i] = cut(text)
    return [told[i] for i in range(len(rows))]


def cut(text: str) -> str:
    """A label that is no longer than the name of a directory may be."""
    return text[:_LENGTH].rstrip(",.=-")


def _leaf_names(keys: list[str]) -> dict[str, str]:
    """Each dotted key's last part, or its last two where others end alike."""
    leaves = [key.rsplit(".", 1)[-1] for key in keys]
    return {
        key: leaf if leaves.count(leaf) == 1 else ".".join(key.split(".")[-2:])
        for key, leaf in zip(keys, leaves, strict=True)
    }


def _text(value: Any) -> str:
    text = str(value).lower() if value is None or isinstance(value, bool) else str(value)
    return _FOREIGN.sub("-", text)

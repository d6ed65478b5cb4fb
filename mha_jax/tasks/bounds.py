"""Ranges of integer fields, for the tasks' `problems`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def outside(cfg: Any, **bounds: tuple[int, int]) -> Iterator[tuple[str, str, str]]:
    """Problems of the fields of `cfg` that leave their inclusive range (lowest, highest).

    The highest values are far beyond what trains in a day; they keep a mistyped size from filling
    the memory before the estimate of it is made.
    """
    for field, (low, high) in bounds.items():
        value = getattr(cfg, field)
        if value < low:
            yield field, f"must be {low} or more", f"use {low} to {high}"
        elif value > high:
            yield field, f"must be {high} or less", f"use {low} to {high}"

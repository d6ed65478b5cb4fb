"""Roles and scores of heads, as the page shows them beside a map, and roles in words."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from mha_jax.heads import GENERAL

_MOST = 4  # scores shown of a head
# What a head of the role looks at.
WORDS = {
    "prev": "the previous position",
    "previous": "the previous position",
    "next": "the next position",
    "class": "another token of the same class or part of speech",
    "class_or_copy": "another token of the same part of speech",
    "class_last": "the last other token of the same class",
    "word": "the other copy of the same word",
    "noun": "the next noun",
    "verb": "the verb",
    "delimiter": "the delimiter, whatever the query is",
    "rhyme": "a token with the same number in another class",
    "rhyme_last": "the last token with the same number in another class",
    "same token": "earlier copies of the same token",
    "same class": "earlier tokens of the same class",
    "induction": "what followed an earlier copy of the token",
    "first": "the first position",
    "mixed": "no one thing: mixed, or something that has no name here",
}


def of_rows(rows: Iterable[Mapping[str, Any]], layer: int, n_heads: int) -> list[dict[str, Any]]:
    """The badge of each query head of a layer, from rows of `heads.csv`; [] without any."""
    roles: dict[int, str] = {}
    scores: list[dict[str, dict[str, float]]] = [{} for _ in range(n_heads)]
    for row in rows:
        if row["layer"] == layer and row["of"] == "n" and row["head"] < n_heads:
            roles[row["head"]] = row["role"]
            numbers = {key: row[key] for key in ("corrected", "low", "high", "value", "baseline")}
            scores[row["head"]][row["score"]] = numbers
    if len(roles) < n_heads:
        return []
    return [badge(roles[head], scores[head]) for head in range(n_heads)]


def of_record(record: Mapping[str, float], layer: int, n_heads: int) -> list[dict[str, Any]]:
    """The same from a row of `metrics.jsonl`, which holds corrected scores without intervals and
    no names; [] without any."""
    scores: list[dict[str, dict[str, float]]] = [{} for _ in range(n_heads)]
    for name, value in record.items():
        parts = name.split("/", 2)
        for head in range(n_heads):
            if parts[:2] == ["heads", f"l{layer}.n{head}"]:
                scores[head][parts[2]] = {"corrected": value}
    return [badge("", one) for one in scores] if any(scores) else []


def badge(role: str, scores: Mapping[str, Mapping[str, float]]) -> dict[str, Any]:
    """A role, "" where none is told, with the scores that can name one, its own first."""
    named = {_role_of(name): dict(numbers) for name, numbers in scores.items() if _role_of(name)}
    in_order = sorted(
        (name for name in named if math.isfinite(named[name]["corrected"])),
        key=lambda name: (name != role, -named[name]["corrected"]),
    )
    return {
        "role": role,
        "scores": [{"name": name} | _finite(named[name]) for name in in_order[:_MOST]],
    }


def words(roles: Sequence[str]) -> dict[str, str]:
    """What each role looks at, in words; its name where there are none."""
    return {role: WORDS.get(role, role) for role in dict.fromkeys((*roles, "mixed"))}


def _role_of(score: str) -> str:
    """The role that a score is of, "" for one that names no head."""
    kind, _, role = score.partition("/")
    return role if kind == "role" else GENERAL.get(score, "")


def _finite(numbers: Mapping[str, float]) -> dict[str, float]:
    return {name: x for name, x in numbers.items() if math.isfinite(x)}

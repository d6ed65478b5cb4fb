"""A config named by how it differs from another one: "n_heads=8,n_kv_heads=4,4,2"."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from mha_jax.keys import KEYS
from mha_jax.values import nearest, parse, show


def copied(config: dict[str, Any]) -> dict[str, Any]:
    """A nested dict with sections of its own; the values, which may be anything, are not copied."""
    return {
        key: copied(value) if isinstance(value, dict) else value for key, value in config.items()
    }


def parse_changes(text: str, sections: Sequence[str]) -> tuple[dict[str, Any], str]:
    """The changes as dotted key -> value, or {} and what is wrong with them.

    A comma starts the next change where a name and "=" follow; else it is part of a value.

    Args:
      text: name=value pairs; a name is that of a key without its section.
      sections: which sections' keys may change.
    """
    how = 'write it like "n_heads=8,n_kv_heads=8"'
    known = {key.split(".")[1]: key for key in KEYS if key.split(".")[0] in sections}
    changes: dict[str, Any] = {}
    for part in re.split(r",(?=[^,=]*=)", text):
        leaf, _, value = (piece.strip() for piece in part.partition("="))
        if not value:
            return {}, f"must be name=value pairs, and {show(part)} is none; {how}"
        if leaf not in known:
            told = " or ".join(f"config.{section}" for section in sections)
            fix = nearest(leaf, list(known)) or f"; {how}"
            return {}, f"must name keys of {told}, and {show(leaf)} is none{fix}"
        if known[leaf] in changes:
            return {}, f"must name each key once, and {show(leaf)} is there twice; {how}"
        changes[known[leaf]] = parse(KEYS[known[leaf]], value)
    return changes, ""

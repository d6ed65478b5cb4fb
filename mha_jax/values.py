"""One value of a config: what a key may hold, how a value is read, and how a refusal is worded."""

from __future__ import annotations

import dataclasses
import difflib
import math
import numbers
import os
import re
import traceback
from collections.abc import Iterable
from typing import Any

ABSENT = object()  # the value of a problem that has none, such as a missing key
NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,79}")  # a name that becomes a directory
_INT = re.compile(r"[+-]?[0-9]{1,4000}")
_FLOAT = re.compile(r"[+-]?(([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]{1,9})?|inf|nan)", re.I)
_TYPES: dict[str, Any] = {"int": int, "float": float, "bool": bool, "str": str}


@dataclasses.dataclass(frozen=True)
class Problem:
    """One thing that is wrong with what a user gave."""

    key: str  # full dotted name of a config key, or a flag
    value: Any  # as given; ABSENT: there is none
    message: str  # "rule; fix"

    def __str__(self) -> str:
        key = ascii(self.key)[1:-1]
        return f"{key}{'' if self.value is ABSENT else '=' + show(self.value)} {self.message}"


@dataclasses.dataclass(frozen=True)
class Key:
    """What one config key may hold."""

    kind: str  # int | float | bool | str
    low: float = -math.inf
    high: float = math.inf
    above: bool = False  # low itself is refused
    choices: tuple[str, ...] = ()
    per_layer: bool = False  # a comma string has one entry a layer
    optional: bool = False  # None is allowed
    example: str = ""  # how a value is written, where its type does not tell

    @property
    def rule(self) -> str:
        """What a value must be, for people."""
        if self.choices:
            rule = f"must be one of {', '.join(map(repr, self.choices))}"
        elif self.kind == "bool":
            rule = "must be True or False"
        elif self.kind == "str":
            rule = "must be a string of printable characters"
        else:
            rule = f"must be {'an integer' if self.kind == 'int' else 'a finite number'}"
            rule += f" above {_bound(self.low)}" if self.above else ""
            if math.isfinite(self.high):
                rule += f" and at most {_bound(self.high)}" if self.above else self._between()
        if self.per_layer:
            rule += ', or a comma string with one entry a layer ("4,4,2")'
        return rule + (", or None" if self.optional else "")

    def _between(self) -> str:
        return f" from {_bound(self.low)} to {_bound(self.high)}"


def _bound(value: float) -> str:
    return str(int(value)) if float(value).is_integer() and abs(value) < 1e12 else repr(value)


def show(value: Any) -> str:
    """A value in a message: one printable line, cut at 60 characters, whatever the value is."""
    try:
        text = ascii(value)
    except Exception:  # an int of more than 4300 digits, or a __repr__ of the user's that fails
        text = f"<{type(value).__name__}>"
    return text if len(text) <= 60 else text[:57] + "..."


def nearest(name: str, known: Iterable[str]) -> str:
    """ "; did you mean ...?" with the known names nearest to a mistyped one; "" where none is near.

    Dotted names are compared as a whole and by their last part, so that a right leaf in a wrong
    section is found.
    """
    by_leaf: dict[str, list[str]] = {}
    for one in dict.fromkeys(known):
        by_leaf.setdefault(one.rsplit(".", 1)[-1], []).append(one)
    whole = [one for names in by_leaf.values() for one in names]
    close = difflib.get_close_matches(name[:200], whole, n=1, cutoff=0.8)
    for leaf in difflib.get_close_matches(name.rsplit(".", 1)[-1][:80], by_leaf, n=2):
        close += by_leaf[leaf]
    close = list(dict.fromkeys(close))[:3]
    return f"; did you mean {' or '.join(close)}?" if close else ""


def read(key: Key, value: Any) -> tuple[Any, str | None]:
    """A value in its plain form (a tuple for a comma string), and what is wrong with it, or None.

    numpy scalars count as the Python numbers they stand for; an integer counts as a float. Nothing
    else is converted.
    """
    if value is None and key.optional:
        return None, None
    if key.per_layer and isinstance(value, str) and "," in value:
        return _read_layers(key, value)
    plain: Any = _plain(key, value)
    if type(plain) is not _TYPES[key.kind]:
        return value, f"{key.rule}; {_type_fix(key, value)}"
    if key.choices:
        if plain in key.choices:
            return plain, None
        fix = nearest(plain, key.choices) or f"; for example {key.choices[0]!r}"
        return value, key.rule + fix
    if key.kind == "str" and any(ord(c) < 32 or 0xD800 <= ord(c) < 0xE000 for c in plain):
        return value, f"{key.rule}; remove the others"
    if key.kind == "float" and not math.isfinite(plain):
        return value, f"{key.rule}; {plain} is none"
    if key.kind in ("int", "float") and (plain < key.low or (key.above and plain == key.low)):
        return value, f"{key.rule}; raise it"
    if key.kind in ("int", "float") and plain > key.high:
        return value, f"{key.rule}; lower it"
    return plain, None


def _plain(key: Key, value: Any) -> Any:
    """A numpy scalar, an integer for a float, a str subclass: as the Python value it stands for."""
    if isinstance(value, bool):
        return value
    if key.kind == "int" and isinstance(value, numbers.Integral):
        return int(value)
    if key.kind == "float" and isinstance(value, numbers.Real):
        try:
            return float(value) + 0.0  # one zero: the hash would tell -0.0 from 0.0
        except OverflowError:
            return math.inf
    if key.kind == "bool" and type(value).__name__ in ("bool", "bool_"):  # numpy's, by version
        return bool(value)
    if key.kind == "str" and isinstance(value, str):
        return str.__str__(value)
    return value


def _read_layers(key: Key, value: str) -> tuple[tuple[Any, ...], str | None]:
    one = dataclasses.replace(key, per_layer=False, optional=False)
    entries = []
    for i, part in enumerate(value.split(",")):
        entry, message = read(one, parse(one, part.strip()))
        if message or entry == "":
            return (), f"{key.rule}; entry {i + 1} is {show(part)}"
        entries.append(entry)
    return tuple(entries), None


def _type_fix(key: Key, value: Any) -> str:
    if key.example:
        return f"write it like {key.example}"
    if isinstance(value, str):
        meant = parse(key, value)
        return (
            f"{show(value)} is a string"
            if isinstance(meant, str)
            else f"write {show(meant)}, without quotes"
        )
    if isinstance(value, float) and key.kind == "int" and value.is_integer() and abs(value) < 1e12:
        return f"write {int(value)}"
    if isinstance(value, (list, tuple)) and key.per_layer:
        return f'write "{",".join(show(v) for v in value[:8])}"'
    return f"this is of type {type(value).__name__}"


def parse(key: Key, text: str) -> Any:
    """What a command line's text stands for; text of another kind stays, for `read` to refuse."""
    if key.optional and text.lower() == "none":
        return None
    if key.kind == "bool" and text.lower() in ("true", "false"):
        return text.lower() == "true"
    if key.kind == "int" and _INT.fullmatch(text):
        return int(text)
    if key.kind == "float" and _FLOAT.fullmatch(text):
        return float(text)
    return text


def blame(error: BaseException, prefer: str = "") -> str:
    """What an exception says and where, as one line: "file.py:12 raised ValueError: text".

    Args:
      error: an exception that was caught.
      prefer: a file whose innermost frame is named, if it has one; else the innermost frame of all.
    """
    frames = list(traceback.walk_tb(error.__traceback__))
    own = [(f.f_code.co_filename, line) for f, line in frames if f.f_code.co_filename == prefer]
    name, line = (own or [(f.f_code.co_filename, line) for f, line in frames] or [(prefer, 0)])[-1]
    try:
        text = str(error)
    except Exception:  # the exception's own __str__ failed
        text = ""
    if isinstance(error, SyntaxError):
        name, line, text = error.filename or prefer, error.lineno or 0, error.msg or ""
    at = f"{shorten(name)}:{line}" if line else shorten(name)
    text = " ".join(text.encode("ascii", "backslashreplace").decode().split())
    return f"{at} raised {type(error).__name__}{': ' if text else ''}{text[:300]}"


def shorten(path: str) -> str:
    """A path below the working directory without it."""
    try:
        relative = os.path.relpath(path)
    except (OSError, ValueError):  # the working directory is gone, or the path holds a null byte
        return ascii(path)[1:-1]
    return ascii(path if relative.startswith("..") else relative)[1:-1]

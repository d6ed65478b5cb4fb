"""Finds a mixer by its name: a module of `mha_jax.attention`, or a Python file of the user's.

A file is named by its path, which ends with .py. A `LayerSpec` holds the path with ten hex digits
of the file's SHA-256 behind an "@": a changed file is another run, and a run whose file has changed
since is refused. What mixers hold is told in `mha_jax/attention/__init__.py`. Files are read here,
not run; only `module` imports one.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib
import importlib.util
import os
import types
from collections.abc import Iterator
from pathlib import Path

from mha_jax.values import nearest

_HOME = Path(__file__).parent / "attention"


@functools.cache
def own() -> tuple[str, ...]:
    """Modules of `mha_jax.attention` that define a `Mixer`."""
    paths = sorted(_HOME.glob("*.py"))
    return tuple(path.stem for path in paths if "Mixer" in _defined(path.read_bytes()))


def wrong(name: str) -> str | None:
    """What is wrong with a mixer's name, as "rule; fix"; None if there is such a mixer."""
    if not name.endswith(".py"):
        if name in own():
            return None
        fix = nearest(name, own()) or f"; choose one of {', '.join(map(repr, own()))}"
        return f"must be a module of mha_jax/attention with a Mixer, or a file of yours{fix}"
    how = "give the path of a Python file, from the directory you work in"
    try:
        source = Path(name).read_bytes()
    except (OSError, ValueError) as error:  # ValueError: a null byte in the path
        reason = getattr(error, "strerror", None) or error
        return f"must be a file that can be read ({reason}); {how}"
    if "@" in name:
        return "must have no '@' in its path, which marks the digest of a mixer's file; rename it"
    try:
        missing = {"Mixer", "cost"} - _defined(source)
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None) or 0
        return f"must be Python, and line {line} is not; repair it"
    if missing:
        needs = " and ".join(sorted(missing))
        return f"must define {needs}, see mha_jax/attention/__init__.py; add it"
    return None


def identity(name: str) -> str:
    """The name that a LayerSpec holds: a file's with its digest.

    Args:
      name: a name that `wrong` has no objection to.
    """
    return f"{os.path.normpath(name)}@{_digest(name)}" if name.endswith(".py") else name


def short(mixer: str) -> str:
    """A mixer as tables and labels write it: a file without its path."""
    return Path(mixer.rpartition("@")[0]).stem if "@" in mixer else mixer


def module(mixer: str) -> types.ModuleType:
    """The module of the mixer that a LayerSpec names.

    Raises:
      ValueError: its file is not there, or has changed since.
      Exception: whatever the file raises.
    """
    path, _, digest = mixer.rpartition("@")
    if not path:
        return importlib.import_module(f"mha_jax.attention.{mixer}")
    try:
        now = _digest(path)
    except OSError as error:
        raise ValueError(
            f"mixer {path}: {error.strerror}; work in the directory that its path starts from"
        ) from None
    if now != digest:
        raise ValueError(f"mixer {path} has changed since the run was planned; put it back")
    return _load(path, digest)


@functools.cache
def _load(path: str, digest: str) -> types.ModuleType:
    spec = importlib.util.spec_from_file_location(f"mha_jax_mixer_{digest}", path)
    assert spec is not None and spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def _digest(path: str) -> str:
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()[:10]


def _defined(source: bytes) -> set[str]:
    """Names that a module's text defines at its top level."""
    return set(_names(ast.parse(source)))


def _names(tree: ast.Module) -> Iterator[str]:
    for node in tree.body:
        if isinstance(node, ast.Assign):
            yield from (target.id for target in node.targets if isinstance(target, ast.Name))
        elif isinstance(node, ast.ImportFrom):
            yield from (alias.asname or alias.name for alias in node.names)
        elif isinstance(node, (ast.ClassDef, ast.FunctionDef)):
            yield node.name

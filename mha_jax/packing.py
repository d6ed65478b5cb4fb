"""A tree of arrays as one array of bytes with a table of its leaves, and that array on the disk."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np

Table = list[tuple[str, str, list[int]]]  # path, dtype, shape of each leaf, in the order of bytes


class Unusable(Exception):
    """Why what was saved cannot be used, in one line."""


def pack(tree: Any) -> tuple[Table, np.ndarray]:
    """The bytes of all leaves, one after another.

    Args:
      tree: numpy or jax arrays and Python numbers in dicts, sequences and named tuples.

    Returns:
      The table of the leaves, and the bytes, uint8 [n].

    Raises:
      TypeError: a leaf is not an array of numbers.
      ValueError: there are no bytes, or two leaves have one path.
    """
    paths, leaves, _ = _flatten(tree)
    arrays = [np.asarray(leaf) for leaf in jax.device_get(leaves)]
    for path, array in zip(paths, arrays, strict=True):
        if not _is_plain(array.dtype):
            raise TypeError(f"{path}: an array of {array.dtype} cannot be saved")
    if len(set(paths)) < len(paths):
        raise ValueError(f"two leaves have one path among {', '.join(paths)}")
    packed = np.frombuffer(b"".join(array.tobytes() for array in arrays), np.uint8)
    if not packed.size:
        raise ValueError("there is nothing to save")
    table = [(p, a.dtype.name, list(a.shape)) for p, a in zip(paths, arrays, strict=True)]
    return table, packed


def unpack(packed: np.ndarray, table: Table, template: Any, partial: bool) -> Any:
    """The tree of `template` with the values that were packed.

    Args:
      packed: uint8 [n].
      table: as `pack` returned it.
      template: arrays, `ShapeDtypeStruct`s or Python numbers; numbers come back as numbers, all
        else as numpy arrays.
      partial: whether leaves that the template lacks are left out without complaint.

    Raises:
      Unusable: paths, shapes or dtypes differ from the template's.
    """
    saved = {}
    start = 0
    for path, dtype, shape in table:
        stop = start + math.prod(shape) * np.dtype(dtype).itemsize
        saved[path] = np.frombuffer(packed[start:stop].tobytes(), dtype).reshape(shape).copy()
        start = stop
    paths, wanted, structure = _flatten(template)
    if missing := [path for path in paths if path not in saved]:
        raise Unusable(f"it lacks {', '.join(missing)}")
    if not partial and (extra := sorted(set(saved) - set(paths))):
        raise Unusable(f"it holds {', '.join(extra)} besides what is expected")
    leaves = []
    for path, like in zip(paths, wanted, strict=True):
        array = saved[path]
        expected = like if hasattr(like, "dtype") else np.asarray(like)
        if (array.dtype, array.shape) != (expected.dtype, expected.shape):
            raise Unusable(
                f"{path} is {array.dtype} {list(array.shape)}, "
                f"not {expected.dtype} {list(expected.shape)}"
            )
        leaves.append(array if hasattr(like, "dtype") else array.item())
    return jax.tree.unflatten(structure, leaves)


def write(directory: Path, packed: np.ndarray) -> None:
    """Writes the bytes into a new directory, with orbax.

    Raises:
      Exception: whatever orbax raises.
    """
    with _quiet():
        _orbax().save(directory.absolute(), {"state": packed})


def read(directory: Path) -> np.ndarray:
    """The bytes that `write` wrote, uint8 [n].

    Raises:
      Unusable: orbax cannot read them. It does not notice all damage.
    """
    try:
        with _quiet():
            return np.asarray(_orbax().restore(directory.absolute())["state"])
    except Exception as error:  # of many types, most of them bare ones
        raise Unusable(f"orbax: {line(error)}") from error


def line(error: Exception) -> str:
    """An error in one line."""
    return (str(error).splitlines() or [type(error).__name__])[0][:300]


@functools.cache
def _orbax() -> Any:
    from mha_jax import alone  # orbax takes 0.3 s and more

    return alone.checkpointer()


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without orbax's own log: it prints tracebacks of what it raises anyway."""
    from absl import logging

    logger = logging.get_absl_logger()
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before


def _flatten(tree: Any) -> tuple[list[str], list[Any], Any]:
    flat, structure = jax.tree.flatten_with_path(tree)
    paths = [jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in flat]
    return paths, [leaf for _, leaf in flat], structure


def _is_plain(dtype: np.dtype) -> bool:
    """Whether the name of a dtype says all: not of objects, texts and foreign byte order."""
    try:
        return dtype.kind in "biufcV" and np.dtype(dtype.name) == dtype
    except TypeError:
        return False

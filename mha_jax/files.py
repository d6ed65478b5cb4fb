"""Files that are either the old one or the whole new one, whatever happens in between."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import tempfile
from pathlib import Path
from typing import Any


def write_atomic(path: Path, data: str | bytes) -> None:
    """Writes a file under a temporary name, forces it to the disk, and renames it into place."""
    raw = data.encode() if isinstance(data, str) else data
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except OSError as error:  # it names the temporary file
        raise OSError(error.errno, error.strerror, str(path)) from None
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(raw)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o644)  # mkstemp makes files that only their owner reads
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)
        raise
    sync_directory(path.parent)


def within(root: Path, path: Path) -> Path:
    """`path`, which must not lead out of `root` by a link.

    Raises:
      ValueError: it does.
    """
    if not path.resolve().is_relative_to(root.resolve()):
        raise ValueError(
            f"{path}: a link that leads out of {root}, to {path.resolve()}; put the directory "
            f"itself there, or name its own place"
        )
    return path


def sync_directory(path: Path) -> None:
    """Forces the names in a directory to the disk: without it a rename can be lost with the
    power."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_json_atomic(path: Path, value: Any) -> None:
    """`write_atomic` of a JSON value; a number that is not finite becomes the string "nan", "inf"
    or "-inf"."""
    write_atomic(path, json.dumps(plain(value), indent=1, allow_nan=False) + "\n")


def write_signed(path: Path, value: dict[str, Any]) -> None:
    """`write_json_atomic` of an object with the SHA-256 of its content beside it, by which
    `is_as_written` knows it again."""
    write_json_atomic(path, {**value, "sha256": _own_digest(value)})


def is_as_written(value: dict[str, Any]) -> bool:
    """Whether an object that was read is the one that `write_signed` was given. One that has no
    SHA-256 was written by hand, and counts as it stands."""
    body = dict(value)
    return body.pop("sha256", None) in (None, _own_digest(body))


def _own_digest(value: dict[str, Any]) -> str:
    """SHA-256 of a JSON object, hex: the same before it is written and after it is read."""
    as_read = json.loads(json.dumps(plain(value)))  # keys that are numbers become strings
    text = json.dumps(as_read, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def fingerprint(path: Path) -> list[Any]:
    """Size in bytes and SHA-256 of a file."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return [file.tell(), digest]


def plain(value: Any) -> Any:
    """`value` with every number that JSON lacks written as a string."""
    if isinstance(value, float) and not math.isfinite(value):
        return repr(value)
    if isinstance(value, dict):
        return {key: plain(v) for key, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    return value

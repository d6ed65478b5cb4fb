"""`metrics.jsonl`: the record of a run, one JSON object a line, only ever appended to."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mha_jax.files import plain, sync_directory, write_atomic


class WriterError(RuntimeError):
    """A record could not be written, or does not fit the checkpoint it should continue."""


class Records:
    """The open file. After a kill it ends with a whole line or with one torn line, never with more.

    Every method raises WriterError, which names the file, where the operating system refuses.
    """

    def __init__(self, path: Path, records_bytes: int | None, sha256: str | None = None):
        """Opens the file, as it was when it had `records_bytes` bytes: see `RunWriter`.

        Raises:
          WriterError: the file is shorter than that, has no line end there, or other bytes.
        """
        self.path = path
        with self._named():
            if records_bytes is not None:
                _check(path, records_bytes, sha256)
                _cut(path, records_bytes)
            self._file = path.open("ab", buffering=0)
            sync_directory(path.parent)
            self.length = self._file.tell()
            self._digest = hashlib.sha256(path.read_bytes())
            if self.length and not _ends_line(path, self.length):
                self._write(b"\n")  # a torn last line stays the only damaged one

    def append(self, row: Mapping[str, Any]) -> None:
        """One line: numbers by name, those that are not finite as "nan", "inf" or "-inf".

        A line that does not fit on the disk leaves nothing behind.
        """
        line = json.dumps(plain(dict(row)), sort_keys=True, allow_nan=False)
        with self._named():
            self._write(line.encode() + b"\n")

    @property
    def sha256(self) -> str:
        """Of all bytes of the file, hex."""
        return self._digest.hexdigest()

    def sync(self) -> None:
        """Forces the file to the disk."""
        with self._named():
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """Closes the file, on the disk. A second call does nothing."""
        if not self._file.closed:
            try:
                self.sync()
            finally:
                self._file.close()

    @contextlib.contextmanager
    def _named(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise WriterError(f"{self.path}: {error.strerror or error}") from error

    def _write(self, line: bytes) -> None:
        try:
            written = self._file.write(line)
            if written != len(line):
                raise OSError(f"only {written} of {len(line)} bytes fit on the disk")
        except OSError:
            with contextlib.suppress(OSError):
                self._file.truncate(self.length)
            raise
        self.length += len(line)
        self._digest.update(line)


def _check(path: Path, length: int, sha256: str | None) -> None:
    """Whether the file begins with what a checkpoint knows."""
    there = path.stat().st_size if path.exists() else 0
    if there < length:
        raise WriterError(
            f"{path}: the checkpoint needs its first {length} bytes, but there are {there}: "
            f"it was changed after the checkpoint; restore it or start the run afresh"
        )
    if length and not _ends_line(path, length):
        raise WriterError(
            f"{path}: no line ends at byte {length}, where the checkpoint was made: "
            f"it was changed after the checkpoint; restore it or start the run afresh"
        )
    if sha256 is not None and length:
        with path.open("rb") as file:
            found = hashlib.sha256(file.read(length)).hexdigest()
        if found != sha256:
            raise WriterError(
                f"{path}: its first {length} bytes are not those that the checkpoint knows: it was "
                f"changed after the checkpoint; restore it or start the run afresh"
            )


def _cut(path: Path, length: int) -> None:
    """Shortens the file to what a checkpoint knows; keeps the rest as `metrics.tail-<n>.jsonl`."""
    if not path.exists() or path.stat().st_size == length:
        return
    n = 1
    while (tail := path.with_name(f"{path.stem}.tail-{n}{path.suffix}")).exists():
        n += 1
    with path.open("rb+") as file:
        file.seek(length)
        write_atomic(tail, file.read())
        file.truncate(length)
        os.fsync(file.fileno())


def _ends_line(path: Path, length: int) -> bool:
    with path.open("rb") as file:
        file.seek(length - 1)
        return file.read(1) == b"\n"

"""Writes the records of one run: `metrics.jsonl`, and TensorBoard's event files, a view of it.

A line of `metrics.jsonl` is in the file when `scalars` returns. Images are drawn and event files
written by a host thread, so the training loop never waits for them; what goes wrong there is raised
by the next call.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import queue
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from mha_jax.events import EventFile
from mha_jax.picture import attention_png
from mha_jax.records import Records, WriterError

_Job = Callable[[EventFile], None]


class RunWriter:
    """The open records of a run. Use it from one thread."""

    def __init__(
        self,
        run_dir: str | os.PathLike[str],
        *,
        tensorboard: bool,
        records_bytes: int | None = None,
        records_sha256: str | None = None,
        start_step: int = 0,
    ):
        """Opens the records; with `records_bytes`, as they were when a checkpoint was made.

        Args:
          run_dir: the run's directory, which must exist.
          tensorboard: whether to write event files, in `<run_dir>/tb`.
          records_bytes: length of `metrics.jsonl` at the checkpoint that is continued, 0 for a run
            that starts at its first step: what comes after is moved to `metrics.tail-<n>.jsonl`.
            None appends to whatever is there.
          records_sha256: SHA-256 of those bytes, which they must have; None: it is not known.
          start_step: step of that checkpoint: TensorBoard hides what older event files hold of it
            and of later steps, and is given again what `metrics.jsonl` holds of them.

        Raises:
          WriterError: `metrics.jsonl` cannot be opened, is shorter than `records_bytes`, has no
            line end there, or other bytes before.
        """
        self._tb_dir = Path(run_dir) / "tb"
        self._records = Records(Path(run_dir) / "metrics.jsonl", records_bytes, records_sha256)
        self._start_step = start_step
        self._error: Exception | None = None
        self._queue: queue.Queue[_Job | None] = queue.Queue()
        self._thread: threading.Thread | None = None
        if tensorboard:
            self._thread = threading.Thread(target=self._work, name="tensorboard", daemon=True)
            self._thread.start()
            path, length = self._records.path, self._records.length
            self._queue.put(functools.partial(_restart, path, length, start_step))

    def scalars(self, step: int, values: Mapping[str, Any]) -> None:
        """One line of `metrics.jsonl` and one point on each curve of TensorBoard.

        Args:
          step: updates made so far.
          values: numbers (Python, numpy or a 0-d array) by name; those that are not finite are
            written as the strings "nan", "inf", "-inf".

        Raises:
          WriterError: the disk refused it (the file then ends with the line before), or an earlier
            event could not be written.
          ValueError: a value is named "step".
        """
        if "step" in values:
            raise ValueError("a value cannot be named 'step': that is the step itself")
        numbers = {name: np.asarray(value).item() for name, value in values.items()}
        self._records.append({"step": int(step), **numbers})
        self._view(lambda events: events.scalars(step, numbers))

    def images(self, step: int, images: Mapping[str, Any]) -> None:
        """Attention weights as images in TensorBoard.

        Args:
          step: updates made so far.
          images: tag -> weights in 0..1, float [t, s]: row t shows where query t looks. Values
            outside are clipped.

        Raises:
          WriterError: an earlier event could not be written.
          ValueError: an array has not two axes, or is empty.
        """
        for tag, weights in images.items():
            weights_ts = np.array(weights, np.float32)  # a copy: the caller may go on with its own
            if weights_ts.ndim != 2 or not weights_ts.size:
                raise ValueError(f"{tag}: weights must be a [t, s] array, got {weights_ts.shape}")
            self._view(functools.partial(_image, step, tag, weights_ts))

    def text(self, tag: str, text: str) -> None:
        """A text in TensorBoard, read as Markdown, at the step where these records were opened.

        Raises:
          WriterError: an earlier event could not be written.
        """
        self._view(lambda events: events.text(self._start_step, tag, text))

    def flush(self) -> int:
        """Waits until all that was given is written, and forces `metrics.jsonl` to the disk.

        Returns:
          The length of `metrics.jsonl` in bytes, for the checkpoint.

        Raises:
          WriterError: something could not be written.
        """
        self._records.sync()
        self._view(EventFile.flush)
        self._queue.join()
        self._check()
        return self._records.length

    @property
    def records_sha256(self) -> str:
        """SHA-256 of `metrics.jsonl`, for the checkpoint."""
        return self._records.sha256

    def close(self) -> None:
        """Flushes and closes everything. A second call does nothing.

        Raises:
          WriterError: something could not be written.
        """
        try:
            self._records.close()
        finally:
            if self._thread is not None:
                self._queue.put(None)
                self._thread.join()
                self._thread = None
        self._check()

    def _view(self, job: _Job) -> None:
        if self._thread is not None:
            self._queue.put(job)
        self._check()

    def _check(self) -> None:
        if self._error is not None:
            error, self._error = self._error, None
            raise WriterError(f"{self._tb_dir}: {error}") from error

    def _work(self) -> None:
        """The host thread: the jobs in their order. After an error it goes on with the next one."""
        events: EventFile | None = None
        while job := self._queue.get():
            try:
                events = events or EventFile(self._tb_dir, "run")
                job(events)
            except Exception as error:  # whatever it is, it is for the caller's thread
                self._error = self._error or error
            finally:
                self._queue.task_done()
        try:
            if events is not None:
                events.close()
        except OSError as error:
            self._error = self._error or error


def _restart(path: Path, length: int, step: int, events: EventFile) -> None:
    """Makes the curves from `step` on those of the first `length` bytes of the records."""
    events.restart(step)
    with path.open("rb") as file:
        lines = file.read(length).splitlines()
    for line in lines:
        with contextlib.suppress(ValueError, TypeError, KeyError):  # a damaged line has no points
            row = json.loads(line)
            if row["step"] >= step:
                events.scalars(row.pop("step"), {name: float(v) for name, v in row.items()})


def _image(step: int, tag: str, weights_ts: np.ndarray, events: EventFile) -> None:
    events.image(step, tag, *attention_png(weights_ts))

"""TensorBoard event files, written with TensorBoard's own record format and messages.

Not with tensorboardX, though it is the usual choice: importing it imports torch where torch is
installed (3 s), its `flush` does not wait for its own queue, a second writer that opens in the same
second overwrites the first one's file, and without a restart mark in the *first* file TensorBoard's
Python backend shows the steps that a resumed run does again twice.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_NAME = re.compile(r"events\.out\.tfevents\.(\d{10})\.(\d{9})\.")


class EventFile:
    """One new event file. What is written is on its way to the disk only after `flush`.

    Every method may raise OSError.
    """

    def __init__(self, directory: Path, kind: str, *, first: bool = False):
        """Makes the file, and `directory` if only that is missing.

        Args:
          directory: one directory is one run in TensorBoard.
          kind: the last part of the file's name.
          first: TensorBoard reads it before every other file of the directory.
        """
        # TensorBoard's messages take 0.3 s to import: only where an event is written.
        from tensorboard.compat.proto import event_pb2
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._messages = event_pb2
        directory.mkdir(exist_ok=True)
        stamp = 0 if first else _next_stamp(directory)
        seconds, nanoseconds = divmod(stamp, 10**9)
        self.path = directory / f"events.out.tfevents.{seconds:010d}.{nanoseconds:09d}.{kind}"
        self._file = self.path.open("xb")
        self._records = RecordWriter(self._file)
        self._write(file_version="brain.Event:2")

    def restart(self, step: int) -> None:
        """Hides what older files hold of `step` and later: the first mark of each session."""
        log = self._messages.SessionLog(status=self._messages.SessionLog.START)
        self._write(step=step, session_log=log)

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """One point on the curve of each tag; a value may be NaN or infinite."""
        self.summary(step, *({"tag": t, "simple_value": v} for t, v in values.items()))

    def image(self, step: int, tag: str, png: bytes, width: int, height: int) -> None:
        """An RGB image of `width` x `height` pixels, encoded as PNG."""
        image = {
            "width": width,
            "height": height,
            "colorspace": 3,
            "encoded_image_string": png,
        }
        self.summary(step, {"tag": tag, "image": image})

    def text(self, step: int, tag: str, text: str) -> None:
        """A text, which TensorBoard renders as Markdown."""
        from tensorboard.compat.proto import types_pb2
        from tensorboard.plugins.text import metadata

        tensor = {
            "dtype": types_pb2.DT_STRING,
            "tensor_shape": {"dim": [{"size": 1}]},
            "string_val": [text.encode()],
        }
        about = metadata.create_summary_metadata(display_name="", description="")
        self.summary(step, {"tag": tag, "metadata": about, "tensor": tensor})

    def summary(self, step: int, *values: dict[str, Any]) -> None:
        """An event of several `Summary.Value`s, each given by its fields."""
        self._write(step=step, summary={"value": values})

    def _write(self, **fields: Any) -> None:
        event = self._messages.Event(wall_time=time.time(), **fields)
        self._records.write(event.SerializeToString())

    def flush(self) -> None:
        """Hands everything written to the operating system: a kill loses nothing."""
        self._file.flush()

    def close(self) -> None:
        """Flushes and closes the file."""
        self._file.close()


def _next_stamp(directory: Path) -> int:
    """The time in nanoseconds, or just after the newest event file if the clock was set back.

    TensorBoard reads the files of a directory in the order of their names, and a restart mark acts
    on what was read before it.
    """
    stamps = [
        int(seconds) * 10**9 + int(nanoseconds)
        for name in directory.iterdir()
        if (match := _NAME.match(name.name))
        for seconds, nanoseconds in [match.groups()]
    ]
    return max([time.time_ns(), *(stamp + 1 for stamp in stamps)])

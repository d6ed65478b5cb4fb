"""Signals that end a launch in order, and what a worker does that is asked to leave. Imports no
jax."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType

LEAVE_S = 5.0  # that workers have to save what they are at
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stopped(KeyboardInterrupt):
    """A signal has ended a launch; the text says what became of its runs. What a user's config file
    raises is caught, and KeyboardInterrupt is not."""

    def __init__(self, signum: int, told: str = ""):
        name = signal.Signals(signum).name
        super().__init__(f"stopped by {name}{told and ': '}{told}; launch again to continue")
        self.code = 128 + signum  # as shells have it: 130 for SIGINT, 143 for SIGTERM


class Leave(BaseException):
    """A worker has saved its runs because it was asked to."""


@contextlib.contextmanager
def handled(act: Callable[[int], None]) -> Iterator[None]:
    """Calls `act` with the number of SIGINT, SIGTERM or SIGHUP. A signal that this process ignores,
    as under nohup, stays ignored; outside of the main thread nothing is changed."""
    before = {}

    def on(signum: int, frame: FrameType | None) -> None:
        act(signum)

    if threading.current_thread() is threading.main_thread():
        for signum in _ENDING:
            if signal.getsignal(signum) is not signal.SIG_IGN:
                before[signum] = signal.signal(signum, on)
    try:
        yield
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)


def stop(signum: int) -> None:
    """Ends a launch that has no worker at work.

    Raises:
      Stopped: always.
    """
    raise Stopped(signum)


class Wish:
    """Whether a worker is asked to leave. It leaves at once while nothing would be lost."""

    def __init__(self) -> None:
        self.asked = False
        self.unsaved = False  # updates were made that no checkpoint holds
        self.code = 0  # with which the worker exits

    def ask(self, code: int = 0) -> None:
        """From any thread, or a signal handler."""
        self.code, self.asked = code, True
        if not self.unsaved:
            os._exit(code)

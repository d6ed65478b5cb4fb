"""How a script says how far it is, lines up a table, and ends: every one in the same way."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import NoReturn


class Status:
    """One line on stderr that says how far a script is: written over itself on a terminal, printed
    every few seconds elsewhere."""

    _EVERY_S = 5.0  # between plain lines

    def __init__(self) -> None:
        self._on_terminal = sys.stderr.isatty()
        self._last = time.monotonic()

    def __call__(self, line: str) -> None:
        """Shows a line in place of the last one."""
        if self._on_terminal:
            print(f"\r\x1b[2K{line[:79]}", end="", file=sys.stderr, flush=True)
        elif time.monotonic() - self._last > self._EVERY_S:
            self._last = time.monotonic()
            print(line, file=sys.stderr, flush=True)

    def clear(self) -> None:
        """Takes the line off a terminal."""
        if self._on_terminal:
            print("\r\x1b[2K", end="", file=sys.stderr, flush=True)


def table(header: Sequence[str], body: Sequence[Sequence[str]]) -> list[str]:
    """Lines with columns that end below each other, indented by two."""
    widths = [max(map(len, column)) for column in zip(header, *body, strict=True)]
    return [
        "  "
        + "  ".join(word.rjust(width) for word, width in zip(row, widths, strict=True)).rstrip()
        for row in (header, *body)
    ]


def si(n: float) -> str:
    """Four digits, and the power of 1000."""
    power = 0
    while abs(n) >= 999.95 and power < 6:
        n, power = n / 1000, power + 1
    return f"{n:.4g} {' kMGTPE'[power]}".strip()


def answer(script: str, doc: str | None, argv: Sequence[str], work: Callable[[], str]) -> int:
    """What a script that answers in one text does around its work; its exit code.

    Args:
      script: its name, in front of what is wrong.
      doc: what --help prints.
      argv: its command line.
      work: the text; ValueError and OSError are bad input, told in one line.
    """
    if "--help" in argv or "-h" in argv:
        print(doc)
        return 0
    try:
        text = work()
    except (ValueError, OSError) as error:
        print(f"{script}: {error}", file=sys.stderr)
        return 2
    print(text)
    return 0


def leave(main: Callable[[], int], interrupted: str = "interrupted") -> NoReturn:
    """Runs a script and exits with its code: quietly where the reader of its output has left, as
    `head` does, and with a line and 130 at Ctrl-C.
    """
    try:
        code = main()
        sys.stdout.flush()
    except BrokenPipeError:
        # The interpreter flushes once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    except KeyboardInterrupt:
        print(interrupted, file=sys.stderr)
        code = 130
    sys.exit(code)

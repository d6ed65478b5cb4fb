"""How a script ends: every one of them in the same way."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import NoReturn


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

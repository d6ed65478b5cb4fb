"""One side of a ratio: a process that answers requests, one JSON object a line.

    python -m mha_jax.bench.side MODULE [--cpu=N] [--plain]

`MODULE.HANDLERS` is name -> function of the request's arguments that returns what JSON can hold.
Imports nothing but Python's own library, so that a peer's environment needs no jax.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import resource
import sys
import time
from collections.abc import Callable
from typing import Any

from mha_jax import host

Handlers = dict[str, Callable[..., dict[str, Any]]]


def timed(work: Callable[[], object]) -> dict[str, float]:
    """Runs `work`, which must return when it is done and not when it is begun.

    Returns:
      `seconds` by the wall, `cpu_s` of all threads of this process, and its `minor_faults`.
    """
    before, start = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    work()
    seconds, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_SELF)
    return {
        "seconds": seconds,
        "cpu_s": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        "minor_faults": after.ru_minflt - before.ru_minflt,
    }


def main() -> None:
    """Answers until standard input ends. What goes wrong is an answer too."""
    parser = argparse.ArgumentParser(prog="python -m mha_jax.bench.side", description=__doc__)
    parser.add_argument("module", help="where HANDLERS stand")
    parser.add_argument("--cpu", type=int, default=None, help="pin to this core")
    parser.add_argument("--plain", action="store_true", help="leave the allocator as it is")
    args = parser.parse_args()
    if args.plain:
        os.environ["MHA_JAX_HOST"] = "plain"
    settings = host.prepare(args.cpu)
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever a library prints must not mix with the answers

    def answer(told: dict[str, Any]) -> None:
        answers.write(json.dumps(told) + "\n")

    handlers: Handlers = importlib.import_module(args.module).HANDLERS
    answer(settings)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer(handlers[request.pop("do")](**request))
        except Exception as error:
            answer({"error": f"{type(error).__name__}: {error}".splitlines()[0]})


if __name__ == "__main__":
    main()

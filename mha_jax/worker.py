"""A worker process: reads jobs from standard input, trains them, writes events to standard output.

Both are JSON, one object a line. A job is `{"runs": [directory, ...]}`, all of one group. The end
of standard input means that
the launcher is gone, and the worker leaves at once: an orphan must never write into a run that a
later launch continues.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import sys
import threading
from pathlib import Path
from typing import Any

from mha_jax import host


def main() -> None:
    """Serves jobs until standard input ends."""
    parser = argparse.ArgumentParser(prog="python -m mha_jax.worker", description=__doc__)
    parser.add_argument("--cpu", type=int, default=None, help="pin to this core")
    settings = host.prepare(parser.parse_args().cpu)

    events = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever a library prints must not mix with the events

    def emit(event: dict[str, Any]) -> None:
        events.write(json.dumps(event) + "\n")

    jobs: queue.SimpleQueue[str] = queue.SimpleQueue()

    def read() -> None:
        for line in sys.stdin:
            jobs.put(line)
        os._exit(0)

    threading.Thread(target=read, daemon=True).start()

    import jax

    from mha_jax import runner

    environment = host.describe(jax.devices()[0].device_kind, settings)
    emit({"event": "ready"})
    while True:
        job = json.loads(jobs.get())
        runner.run_group([Path(run) for run in job["runs"]], emit, environment)
        emit({"event": "ready"})


if __name__ == "__main__":
    main()

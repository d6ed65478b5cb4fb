"""A worker process: reads jobs from standard input, trains them, writes events to standard output.

Both are JSON, one object a line. A job is `{"runs": [directory, ...]}`, all of one group, or
`{"leave": true}`. `{"stop": true}`, like SIGTERM, has the worker save the runs it is at, and leave;
SIGINT and SIGHUP are the launcher's to hear. The end of standard input means that the launcher is
gone, and the worker leaves at once: an orphan must never write into a run that a later launch
continues.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from mha_jax import host
from mha_jax.engines.base import ANY_CORE
from mha_jax.parts import held
from mha_jax.signals import Leave, Wish


def main() -> None:
    """Serves jobs until standard input ends."""
    parser = argparse.ArgumentParser(prog="python -m mha_jax.worker", description=__doc__)
    parser.add_argument("--cpu", help=f"pin to this core; {ANY_CORE}: one that no other has")
    parser.add_argument("--once", action="store_true", help="leave after the first job")
    parser.add_argument("--hosts", help="join others: auto, or HOST:PORT,INDEX,COUNT")
    flags = parser.parse_args()
    core = host.free_core() if flags.cpu == ANY_CORE else flags.cpu and int(flags.cpu)
    settings = host.prepare(core)

    events = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever a library prints must not mix with the events

    def emit(event: dict[str, Any]) -> None:
        events.write(json.dumps(event) + "\n")

    jobs: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    wish = Wish()
    for heard_by_launcher in (signal.SIGINT, signal.SIGHUP):
        signal.signal(heard_by_launcher, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda signum, frame: wish.ask(128 + signum))

    def read() -> None:
        for line in sys.stdin:
            job = json.loads(line)
            if "stop" in job:
                wish.ask()
            else:
                jobs.put(job)
        os._exit(0)

    threading.Thread(target=read, daemon=True).start()

    import jax

    if flags.hosts:
        _join(flags.hosts)  # before jax looks for devices

    from mha_jax import runner

    environment = host.describe(jax.local_devices()[0].device_kind, settings)
    emit({"event": "ready", "process": jax.process_index(), "processes": jax.process_count()})
    while "runs" in (job := jobs.get()):
        directories = [Path(run) for run in job["runs"]]
        names = {path.name[-10:]: path.name for path in directories}

        def wait(run_hash: str, names: dict[str, str] = names) -> None:
            text = f"{names[run_hash]}: waits for another worker that is still at it"
            emit({"event": "note", "text": text})

        with held(directories[0].parent, list(names), wait):
            try:
                runner.run_group(directories, emit, environment, wish)
            except Leave:
                os._exit(wish.code)
        emit({"event": "ready"})
        if flags.once:
            break
    if flags.hosts:
        jax.distributed.shutdown()  # waits for the others
    os._exit(0)  # the thread that reads would have Python end in an error


def _join(hosts: str) -> None:
    """Joins the workers of other hosts; returns when all are there."""
    import jax

    if hosts == "auto":
        jax.distributed.initialize()
    else:
        address, index, count = hosts.split(",")
        jax.distributed.initialize(address, int(count), int(index))


if __name__ == "__main__":
    main()

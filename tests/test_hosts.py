"""Two hosts on loopback, joined by jax.distributed, each with its part of a sweep."""

from __future__ import annotations

import os
import signal
import socket
import time
from pathlib import Path

from launched import finish, start, tables, write


def _port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def _launch(config: Path, workdir: Path) -> list:
    port = _port()
    hosts = [f"--hosts=127.0.0.1:{port},{i},2" for i in (0, 1)]
    return [start(config, workdir, flag) for flag in hosts]


def _worker(launcher: int) -> int:
    """The process that a launcher has started."""
    children = Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()
    return int(children[0])


def test_two_hosts_make_the_tables_of_one(tmp_path):
    """Also after the worker of the first has been killed: jax then ends that of the second."""
    config = write(tmp_path, n_steps=400)
    hosts = _launch(config, tmp_path / "hosts")
    root = tmp_path / "hosts" / "small"
    while len({path.parts[-4] for path in root.glob("*/checkpoints/[0-9]*/manifest.json")}) < 2:
        assert all(host.poll() is None for host in hosts), hosts[0].communicate()
        time.sleep(0.05)
    os.kill(_worker(hosts[0].pid), signal.SIGKILL)
    (first, told), (_, survivor) = (finish(host, code=1) for host in hosts)
    assert "the worker died (exit code -9)" in first and "cannot join the others again" in told
    assert "another host is gone" in survivor and "launch again on every host" in survivor
    assert len(survivor.splitlines()) == 1 and len(told.splitlines()) == 1

    said = [finish(host)[0] for host in _launch(config, tmp_path / "hosts")]
    assert sum("makes the tables" in out for out in said) == 1
    finish(start(config, tmp_path / "one", "--workers=1"))  # as many threads
    assert tables(tmp_path / "hosts") == tables(tmp_path / "one")

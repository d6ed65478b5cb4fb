"""A sweep on two Ray nodes, in a network namespace of their own."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys

import pytest
from launched import ROOT, finish, start, tables, write


def _namespace() -> list[str]:
    """The command that makes a network namespace; skips where there can be none."""
    if importlib.util.find_spec("ray") is None:
        pytest.skip("ray is not installed: pip install -e .[ray]")
    if not (shutil.which("unshare") and shutil.which("ip")):
        pytest.skip("a network namespace needs the commands unshare and ip")
    for command in (["unshare", "--net"], ["unshare", "--map-root-user", "--net"]):
        made = subprocess.run([*command, "ip", "link", "set", "lo", "up"], capture_output=True)
        if made.returncode == 0:
            return command
    pytest.skip("network namespaces are not allowed here")


@pytest.mark.slow
def test_a_sweep_whose_node_is_killed_ends_as_on_one_machine(tmp_path):
    namespace = _namespace()
    config = write(tmp_path, n_steps=400)
    finish(start(config, tmp_path / "local", "--workers=2"))
    script = f"{sys.executable} {ROOT}/tests/ray_two_nodes.py {config} {tmp_path / 'ray'}"
    done = subprocess.run(
        [*namespace, "sh", "-c", f"ip link set lo up && exec {script}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=1800,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "a node of the Ray cluster was lost" in done.stdout
    assert "waits for another worker" not in done.stdout  # that of the dead node has left
    assert tables(tmp_path / "ray") == tables(tmp_path / "local")
    assert not list((tmp_path / "ray" / "small" / "logs").glob("task-*"))


@pytest.mark.parametrize("address", ["127.0.0.1:1", "nonsense"])
def test_a_cluster_that_is_not_there_is_one_line(tmp_path, address):
    pytest.importorskip("ray", reason="ray is not installed: pip install -e .[ray]")
    launch = start(write(tmp_path), tmp_path, "--engine=ray", f"--ray_address={address}")
    _, err = finish(launch, code=2)
    assert f"no Ray cluster {address} (" in err and len(err.splitlines()) == 1

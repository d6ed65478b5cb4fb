"""Two Ray nodes on this machine, a sweep on both, and one of them killed in the middle of it.

`python tests/ray_two_nodes.py CONFIG WORKDIR`, in a network namespace with only `lo`: elsewhere Ray
puts the machine's other address in place of 127.0.0.1, and two nodes wait for each other. Exits
with the code of the launch, whose output is its own.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"}

from launched import start
from ray.cluster_utils import Cluster


def main(config: Path, workdir: Path) -> int:
    """The exit code of the launch."""
    cluster = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False}
    )
    other = cluster.add_node(num_cpus=1)
    launch = start(config, workdir, "--engine=ray", f"--ray_address={cluster.address}")
    root = workdir / "small"
    # A worker on either node: both have a run in work, and none is done.
    while launch.poll() is None and len({p.parts[-4] for p in _saved(root)}) < 2:
        time.sleep(0.05)
    cluster.remove_node(other, allow_graceful=False)
    out, err = launch.communicate()
    sys.stdout.write(out)
    sys.stderr.write(err)
    cluster.shutdown()
    return launch.returncode


def _saved(root: Path) -> list[Path]:
    return list(root.glob("*/checkpoints/[0-9]*/manifest.json"))


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1]), Path(sys.argv[2])))

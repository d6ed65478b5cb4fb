"""The engine that a launch asks for."""

from __future__ import annotations

from pathlib import Path

from mha_jax.engines.base import Engine
from mha_jax.engines.hosts import Hosts
from mha_jax.engines.local import Local
from mha_jax.engines.options import Options


def make(options: Options, root: Path, log: Path) -> Engine:
    """The engine that a launch asks for, not entered yet.

    Args:
      options: what the command line says.
      root: the experiment's directory; the compile cache is beside it.
      log: the file that takes what workers print.
    """
    cache = root.resolve().parent / ".cache" / "xla"
    if options.hosts is not None:
        return Hosts(options.hosts, cache, log)
    if options.engine == "ray":
        # Here, since Ray is an extra and takes a second.
        from mha_jax.engines.ray_tasks import RayTasks

        return RayTasks(options.part, options.ray_address, cache, log)
    return Local(options.part, cache, log)

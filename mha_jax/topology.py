"""Devices that programs can be compiled for: those of a TPU host, which need not be there, or
those of this machine.

`v5e:2x2` is a slice of TPUs by its generation and shape; libtpu compiles for it anywhere. `cpu`,
`gpu` and `tpu` are what jax finds here.
"""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import MutableMapping, Sequence
from typing import Any, NamedTuple

from mha_jax.accelerators import ACCELERATORS
from mha_jax.values import Problem, nearest

LOCAL = {"cpu": "cpu", "gpu": "cuda,cpu", "tpu": "tpu"}  # to what jax calls it when it starts


class _Generation(NamedTuple):
    accelerator: str  # its name in ACCELERATORS
    n_axes: int  # of a slice's shape
    settings: dict[str, str]  # as jax itself makes them on such a machine


_GENERATIONS = {
    # The two cores of a chip are one device of jax.
    "v4": _Generation("tpu-v4", 3, {"chip_config_name": "megacore"}),
    "v5e": _Generation("tpu-v5e", 2, {}),
    "v5p": _Generation("tpu-v5p", 3, {}),
    "v6e": _Generation("tpu-v6e", 2, {}),
}
_LARGEST = 16  # chips along an axis
# What libtpu would otherwise ask the machine for, loudly.
_WITHOUT_TPU = {
    "JAX_PLATFORMS": "cpu",
    "TPU_SKIP_MDS_QUERY": "1",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # beside another process that compiles
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TF_CPP_MIN_LOG_LEVEL": "3",
}


class Topology(NamedTuple):
    """Devices of one host: what a process of a sweep spreads its lanes over."""

    name: str
    devices: Sequence[Any]  # jax devices
    memory_bytes: int | None  # of each; None: not known

    @property
    def lane_mode(self) -> str:
        """How these devices carry lanes, as `placement.lane_mode` says."""
        return "sequential" if self.devices[0].platform == "cpu" else "vmap"


def prepare(name: str, environment: MutableMapping[str, str]) -> None:
    """Checks a name and makes the settings that jax reads when it starts: call before importing it.

    Raises:
      ValueError: no topology, or libtpu is not installed.
    """
    if name in LOCAL:
        environment["JAX_PLATFORMS"] = LOCAL[name]
        return
    _slice(name)
    if importlib.util.find_spec("libtpu") is None:
        wrong = "needs libtpu, which compiles for TPUs without one; pip install -e '.[tpu]'"
        raise ValueError(str(Problem("--topology", name, wrong)))
    environment.update(_WITHOUT_TPU)


def find(name: str) -> Topology:
    """The devices that a name stands for, after `prepare`.

    Raises:
      ValueError: there are none, or libtpu knows no such slice.
    """
    import jax

    try:
        if name in LOCAL:
            return Topology(name, jax.local_devices(backend=name), _memory(name))
        # An experimental module, and the only door to devices that are not there.
        from jax.experimental import topologies

        generation, shape = _slice(name)
        described = topologies.get_topology_desc(
            platform="tpu", topology_name=name, **_of_a_host(generation, shape)
        )
        all_devices: Sequence[Any] = described.devices
        first = all_devices[0].process_index
        devices = [one for one in all_devices if one.process_index == first]
        return Topology(name, devices, ACCELERATORS[generation.accelerator].memory_bytes)
    except RuntimeError as error:
        line = str(error).splitlines()[0]
        raise ValueError(str(Problem("--topology", name, f"is not to be had ({line})"))) from None


def _slice(name: str) -> tuple[_Generation, tuple[int, ...]]:
    word, _, shape = name.partition(":")
    if word not in _GENERATIONS:
        known = [*_GENERATIONS, *LOCAL]
        fix = nearest(word, known) or f"; choose from {', '.join(known)}"
        raise ValueError(str(Problem("--topology", name, f"is no topology{fix}")))
    generation = _GENERATIONS[word]
    sizes = tuple(map(int, shape.split("x"))) if re.fullmatch(r"\d{1,2}(x\d{1,2})+", shape) else ()
    if len(sizes) != generation.n_axes or not all(0 < size <= _LARGEST for size in sizes):
        example = "x".join(["2", "2", "1"][: generation.n_axes])
        wrong = f"must tell {generation.n_axes} numbers of chips to {_LARGEST}; like"
        raise ValueError(str(Problem("--topology", name, f"{wrong} {word}:{example}")))
    return generation, sizes


def _of_a_host(generation: _Generation, shape: Sequence[int]) -> dict[str, Any]:
    """How libtpu shares out the chips of a slice: 2 x 2 to a host, or the one that there is."""
    bounds = [min(size, most) for size, most in zip((*shape, 1), (2, 2, 1), strict=False)]
    return {**generation.settings, "chips_per_host_bounds": bounds}


def _memory(platform: str) -> int | None:
    import jax

    if platform == "cpu":
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return (jax.local_devices(backend=platform)[0].memory_stats() or {}).get("bytes_limit")

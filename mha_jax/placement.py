"""Where lanes run: how a backend carries them, how many at a time, and over which devices.

The lane axis r is split over the mesh axis `run` of all local devices. Lanes never read one
another, so the function over a device's own lanes stands inside `shard_map`, where no collective
can appear. What a device computes depends on the lanes it holds and not on how many others there
are: two devices and eight give the same bits. One device alone has a program without partitions,
which XLA simplifies in another order: other last digits (measured on the CPU), and so another
`lane_mode` in `run.json`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from mha_jax import cost
from mha_jax.config import StaticConfig
from mha_jax.programs import LaneFunction

_MAX_LANES = 64  # of a device


def lane_mode() -> str:
    """ "sequential" on a CPU, "vmap" on an accelerator."""
    return "sequential" if jax.default_backend() == "cpu" else "vmap"


def lanes_that_fit(static: StaticConfig, memory_bytes: int | None) -> int:
    """Lanes that a device has memory for, 1 at least, by the estimate that configs are checked by.

    A device that does not tell its memory, such as a CPU, is taken to have enough.
    """
    if memory_bytes is None:
        return _MAX_LANES
    return max(1, min(_MAX_LANES, memory_bytes // cost.memory_bytes(static)))


def memory_of(device: jax.Device) -> int | None:
    """Bytes that programs may use of a device; None where it does not tell."""
    return (device.memory_stats() or {}).get("bytes_limit")


def n_lanes(n_runs: int, mode: str, n_devices: int = 1, most: int = _MAX_LANES) -> int:
    """Lanes of a dispatch: equal for all batches of a group, so that the group compiles once, and
    as many on each device.

    Args:
      n_runs: of the group.
      mode: as `lane_mode` says.
      n_devices: over which lanes are split.
      most: lanes that a device can hold.
    """
    if mode == "sequential":
        return n_devices
    n_batches = -(-n_runs // (most * n_devices))
    per_device = -(-n_runs // (n_batches * n_devices))
    return per_device * n_devices


class Placement:
    """Lanes on devices, `per_device` on each. With one device there is no mesh.

    Raises:
      ValueError: lanes that the mode or the devices cannot carry.
    """

    def __init__(self, lanes: int, mode: str, devices: Sequence[jax.Device] = ()):
        n_devices = max(1, len(devices))
        if lanes % n_devices:
            raise ValueError(f"lanes={lanes} must be a multiple of the {n_devices} devices")
        if mode == "sequential" and lanes != n_devices:
            raise ValueError(
                f"lanes={lanes}: sequential mode carries one lane a device, of which there are "
                f"{n_devices}; use mode='vmap'"
            )
        self.mode, self.per_device = mode, lanes // n_devices
        self._mesh = Mesh(np.array(devices), ("run",)) if n_devices > 1 else None

    def over_lanes(self, function: Callable[..., Any], mapped: int) -> Callable[..., Any]:
        """`function` of one lane, over a lane axis in front of its first `mapped` arguments and of
        all that it returns; the other arguments are the same for every lane."""

        def on_device(*args: Any) -> Any:
            if self.mode == "vmap":
                axes = tuple(0 if i < mapped else None for i in range(len(args)))
                return jax.vmap(function, in_axes=axes)(*args)
            lane = jax.tree.map(lambda x: x[0], args[:mapped])
            return jax.tree.map(lambda x: x[None], function(*lane, *args[mapped:]))

        if self._mesh is None:
            return on_device

        def on_devices(*args: Any) -> Any:
            specs = tuple(
                PartitionSpec("run") if i < mapped else PartitionSpec() for i in range(len(args))
            )
            split = jax.shard_map(
                on_device,
                mesh=self._mesh,
                in_specs=specs,
                out_specs=PartitionSpec("run"),
                check_vma=False,  # it would ask every loop to start from values that vary by lane
            )
            return split(*args)

        return on_devices

    def shardings(self, mapped: int, n_args: int) -> dict[str, Any]:
        """Arguments of `jax.jit` that say where `over_lanes` finds and leaves its arrays."""
        if self._mesh is None:
            return {}
        split, everywhere = self.split, self.everywhere
        return {
            "in_shardings": tuple(split if i < mapped else everywhere for i in range(n_args)),
            "out_shardings": split,
        }

    def jitted(self, one: LaneFunction, n_args: int) -> Any:
        """`one` over lanes as a program of so many arguments."""
        return jax.jit(
            self.over_lanes(one.function, one.mapped),
            donate_argnums=(0,) if one.donated else (),
            **self.shardings(one.mapped, n_args),
        )

    def record(self) -> dict[str, Any]:
        """What `run.json` says of it."""
        n_devices = 1 if self._mesh is None else self._mesh.size
        return {
            "lane_mode": self.mode if n_devices == 1 else f"{self.mode} over devices",
            "n_devices": n_devices,
            "lanes_per_device": self.per_device,
        }

    @property
    def split(self) -> NamedSharding | None:
        """Of arrays [r, ...]: each device its lanes. None: the default device."""
        return None if self._mesh is None else NamedSharding(self._mesh, PartitionSpec("run"))

    @property
    def everywhere(self) -> NamedSharding | None:
        """Of what all lanes read."""
        return None if self._mesh is None else NamedSharding(self._mesh, PartitionSpec())

    def lane(self, tree: Any, r: int) -> Any:
        """Lane r of arrays [r, ...], [1, ...], from the device that holds it: a slice of the whole
        array would be a program of all devices."""

        def of(x: jax.Array) -> jax.Array:
            if self._mesh is None:
                return x[r : r + 1]
            own = x.addressable_shards[r // self.per_device].data
            return own[r % self.per_device : r % self.per_device + 1]

        return jax.tree.map(of, tree)

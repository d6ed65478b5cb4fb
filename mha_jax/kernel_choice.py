"""Which attention kernel a run uses: decided when its group starts, on its device, and recorded.

`auto` takes the fused kernel of the device where it can carry the model and a tiny program with it
compiles, runs and agrees with the fast form; else the fast form, and says why. A kernel that is
named is that kernel or an error.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mha_jax.attention import kernels
from mha_jax.attention.core import Mask
from mha_jax.config import LayerSpec, StaticConfig
from mha_jax.kernel_rules import FUSED, lacks, not_worth
from mha_jax.tasks import TaskSpec

OF_PLATFORM = {"gpu": "cudnn", "tpu": "splash"}  # the fused kernel of a device
# Relative to the largest entry: bfloat16 rounds each of a few products to 2^-9 of that.
_TOLERANCE = 0.05


class Choice(NamedTuple):
    """`kernels` of `run.json`."""

    wanted: str  # model.kernel
    used: str  # reference | fast | cudnn | splash
    why: str
    fallback: bool = False  # the device has a fused kernel, which is not used


def choose(static: StaticConfig, device: jax.Device) -> Choice:
    """The kernel that a group's programs have.

    Raises:
      ValueError: the kernel that the config names cannot run on the device.
    """
    wanted, layers = static.model.kernel, static.model.layers
    if wanted not in ("auto", *FUSED):
        return Choice(wanted, wanted, "named in the config")
    name = OF_PLATFORM.get(device.platform)
    if wanted == "auto":
        if name is None:
            return Choice(wanted, "fast", f"there is no fused kernel for a {device.platform}")
        lacking = lacks(name, layers, dataclasses.asdict(static.model), static.task.spec)
        why = lacking[0] if lacking else not_worth(name, layers, static.task.spec)
    else:
        why = None
        if wanted != name:
            why = f"does not run on a {device.platform}"
        name = wanted
    why = why or probe(name, static, device)
    if why is None:
        return Choice(wanted, name, "it compiles, runs and agrees with the fast form here")
    if wanted == "auto":
        return Choice(wanted, "fast", f"{name} {why}", fallback=True)
    raise ValueError(f"model.kernel={wanted!r} {why} ({device.device_kind}); choose 'auto'")


def expected(static: StaticConfig, platform: str) -> str:
    """The kernel that `choose` uses on such a device if its probe finds nothing wrong: for devices
    that are not there."""
    wanted, name = static.model.kernel, OF_PLATFORM.get(platform)
    if wanted != "auto":
        return wanted
    switches = dataclasses.asdict(static.model)
    if name is None or lacks(name, static.model.layers, switches, static.task.spec):
        return "fast"
    return name


def probe(kernel: str, static: StaticConfig, device: jax.Device) -> str | None:
    """Why a kernel does not work here: it is compiled and run for one sequence of every shape that
    the model has, forward and backward, and compared with the fast form. None: it works."""
    spec, dtype = static.task.spec, jnp.dtype(static.model.compute_dtype)
    shapes = {
        dataclasses.replace(layer, d_ff=0, kv_from=None)
        for layer in static.model.layers
        if layer.mixer in ("grouped", "gta")
    }
    for layer in sorted(shapes, key=repr):
        try:
            with jax.default_device(device):
                found = _run(kernel, layer, spec, dtype, static.model.sink_logit)
                desired = _run("fast", layer, spec, dtype, static.model.sink_logit)
        except Exception as error:  # whatever a compiler or a driver raises: it is told
            return f"fails: {type(error).__name__}: {error}".splitlines()[0]
        for one, other in zip(found, desired, strict=True):
            if not np.abs(one - other).max() <= _TOLERANCE * np.abs(other).max():  # nor NaN
                return "gives other numbers than the fast form"
    return None


def _run(
    kernel: str, layer: LayerSpec, spec: TaskSpec, dtype: Any, sink_logit: bool
) -> list[np.ndarray]:
    """z of one sequence under a kernel, and its gradients."""
    k, g, t, h = layer.n_kv_heads, layer.queries_per_kv, spec.length, layer.d_head
    mask = Mask(spec.mask, spec.n_context, layer.window, layer.n_sinks)
    q_key, k_key, v_key, z_key = jax.random.split(jax.random.key(0), 4)
    q_btkgh = jax.random.normal(q_key, (1, t, k, g, h), dtype)
    k_bskh, v_bskh = (jax.random.normal(key, (1, t, k, h), dtype) for key in (k_key, v_key))
    weight_btkgh = jax.random.normal(z_key, (1, t, k, g, h))
    sink_kg = jnp.zeros((k, g)) if sink_logit else None

    @jax.jit
    def program(q: jax.Array, k: jax.Array, v: jax.Array) -> list[jax.Array]:
        def total(q: jax.Array, k: jax.Array, v: jax.Array) -> tuple[jax.Array, jax.Array]:
            z_btkgh = kernels.attend(kernel, q, k, v, mask, h**-0.5, sink_kg)
            z_btkgh = z_btkgh.astype(jnp.float32)
            return (weight_btkgh * z_btkgh).sum(), z_btkgh

        grads, z_btkgh = jax.grad(total, (0, 1, 2), has_aux=True)(q, k, v)
        return [z_btkgh, *(grad.astype(jnp.float32) for grad in grads)]

    return list(jax.device_get(program(q_btkgh, k_bskh, v_bskh)))

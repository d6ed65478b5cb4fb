"""Whether the forms of attention, and decoding with a cache, say the same on this device.

Every product is taken in full float32, where a GPU or TPU would round its factors: what is asked is
whether a form computes the same, not how a device rounds. A row tells `name`, the `difference`, the
`tolerance` and whether it is `ok`; a difference that is no number is None. Or it
tells by which rule a kernel does not carry the model and is `skipped`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from mha_jax import loss, rng
from mha_jax.config import StaticConfig
from mha_jax.decode import Decoder
from mha_jax.kernel_rules import FUSED, lacks
from mha_jax.train import Program

Row = dict[str, Any]

_BATCH = 4
# bfloat16 keeps 8 bits, so that a factor is off by up to 0.4 %; gradients of two layers were seen
# to be off by 3 %.
_BFLOAT16 = 0.1
_PROMPTS, _N_READ, _N_NEW = (
    (5, 17),
    3,
    6,
)  # tokens of each prompt, then given one by one, then drawn


def tolerance() -> float:
    """Of two float32 computations of one formula on the default backend: on a CPU sums in another
    order differ by 1e-6, elsewhere exponentials are other algorithms as well.
    """
    return 1e-5 if jax.default_backend() == "cpu" else 1e-4


def forms(statics: Mapping[str, StaticConfig], kernels: Sequence[str]) -> list[Row]:
    """Outputs and gradients on a batch with each kernel, in float32 and with products in bfloat16,
    beside those of `reference` in float32; the difference is that of the norms, the larger one.

    Where there is another backend beside a CPU, `reference` itself is compared with the CPU.

    Args:
      statics: of runs, by name.
      kernels: values of `model.kernel`, without `reference`.
    """
    rows, cpu = [], _cpu()
    for name, static in statics.items():
        given = _given(static)
        wanted = _found(static, "reference", "float32", given)
        if cpu is not None:
            there = _found(static, "reference", "float32", given, cpu)
            rows.append(_compared(f"{name}, as on a CPU", tolerance(), wanted, there))
        for dtype, allowed in (("float32", tolerance()), ("bfloat16", _BFLOAT16)):
            for kernel in kernels:
                label = f"{name}, {kernel}, {dtype}"
                switches = {**dataclasses.asdict(static.model), "compute_dtype": dtype}
                layers, spec = static.model.layers, static.task.spec
                if kernel in FUSED and (lacking := lacks(kernel, layers, switches, spec)):
                    rows.append({"name": label, "skipped": lacking[0]})
                    continue
                found = _found(static, kernel, dtype, given)
                rows.append(_compared(label, allowed, found, wanted))
    return rows


def decoding(statics: Mapping[str, StaticConfig]) -> list[Row]:
    """Outputs of a cache against those of whole sequences: after prompts of two lengths, after
    further tokens one by one, and of tokens that the loop draws.

    Args:
      statics: of runs whose task decodes, by name.
    """
    rows = []
    for name, static in statics.items():
        told, whole = _decoded(static)
        rows.append(_compared(f"{name}, cached decode", tolerance(), told, whole))
    return rows


def _compared(name: str, allowed: float, found: Any, wanted: Any) -> Row:
    """The largest difference of the trees that two sequences hold, by their norms."""
    # Not max, which passes over a NaN that is not the first.
    apart = float(np.max([_apart(a, b) for a, b in zip(found, wanted, strict=True)]))
    told = apart if np.isfinite(apart) else None
    return {"name": name, "difference": told, "tolerance": allowed, "ok": apart <= allowed}


def _apart(found: Any, wanted: Any) -> float:
    """Norm of the difference of two trees over that of the second; NaN where a number is none."""
    pairs = list(zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True))
    apart = sum(np.sum(np.square(np.float64(a) - np.float64(b))) for a, b in pairs)
    return float(np.sqrt(apart / sum(np.sum(np.square(np.float64(b))) for _, b in pairs)))


def _cpu() -> jax.Device | None:
    """A CPU beside another device."""
    if jax.default_backend() == "cpu":
        return None
    try:
        return jax.local_devices(backend="cpu")[0]
    except RuntimeError:  # JAX_PLATFORMS leaves it out
        return None


def _given(static: StaticConfig) -> tuple[Any, Any]:
    """Fresh parameters and a batch of the task, as numpy: the same for every kernel."""
    program = Program.of(static)

    @jax.jit
    def make(constants: Any) -> tuple[Any, Any]:
        batch = program.sample(rng.stream(0, "probe"), constants, _BATCH)
        return program.model.init(jax.random.key(0)), batch

    made: tuple[Any, Any] = jax.device_get(make(static.task.constants("test")))
    return made


def _found(
    static: StaticConfig,
    kernel: str,
    dtype: str,
    given: tuple[Any, Any],
    device: jax.Device | None = None,
) -> tuple[Any, Any]:
    """Outputs and gradients, on a device or the default one."""
    model = dataclasses.replace(static.model, compute_dtype=dtype)
    program = Program.of(dataclasses.replace(static, model=model), kernel)

    def objective(params: Any, batch: Any) -> tuple[jax.Array, jax.Array]:
        outputs, _ = program.model.apply(params, batch.inputs)
        return loss.mean_loss(loss.sums(outputs, batch, program.spec)), outputs

    with jax.default_matmul_precision("highest"), jax.default_device(device):
        grads, outputs = jax.device_get(jax.jit(jax.grad(objective, has_aux=True))(*given))
    return outputs, grads


def _decoded(static: StaticConfig) -> tuple[list[Any], list[Any]]:
    """Logits [b, v] out of a cache, and the same of whole sequences."""
    program = Program.of(static)
    n = max(_PROMPTS) + _N_READ + _N_NEW
    at, rows = np.array(_PROMPTS), np.arange(len(_PROMPTS))
    tokens_bt = np.random.default_rng(0).integers(program.spec.output_size, size=(len(rows), n))
    with jax.default_matmul_precision("highest"):
        decoder = Decoder(program, jax.jit(program.model.init)(jax.random.key(0)))
        whole = jax.jit(lambda inputs: program.model.apply(decoder.params, inputs)[0][:, :, 0])
        state = decoder.prefill([row[:m] for row, m in zip(tokens_bt, at, strict=True)], n)
        told, wanted = [np.asarray(state.logits_bv)], [np.asarray(whole(tokens_bt))[rows, at - 1]]
        for _ in range(_N_READ):
            state = decoder.read(state, tokens_bt[rows, at][:, None])
            at = at + 1
            told.append(np.asarray(state.logits_bv))
            wanted.append(np.asarray(whole(tokens_bt))[rows, at - 1])
        drawn_bn, state = decoder.generate(state, _N_NEW)
        for row, m in zip(rows, at, strict=True):
            tokens_bt[row, m : m + _N_NEW] = drawn_bn[row]
        told.append(np.asarray(state.logits_bv))
        wanted.append(np.asarray(whole(tokens_bt))[rows, at + _N_NEW - 1])
    return told, wanted

"""What a model must be for a fused attention kernel, on whatever device: rules of a config. Imports
no jax.

Which kernel a run uses is `model.kernel`, and with "auto" what the device has; `kernel_choice.py`
decides when the run starts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mha_jax.config import LayerSpec
from mha_jax.rules import Values
from mha_jax.tasks import TaskSpec
from mha_jax.values import Problem

FUSED = ("cudnn", "splash")
_BLOCK = 128  # positions that splash attention takes at a time
_MAX_HEAD = 128  # width of a head that cuDNN takes on every GPU that it runs on
# A head takes 128 lanes in splash attention however narrow it is. By the TPU compiler's own count
# for a v5e, forward and backward in float32, it moves fewer bytes than XLA's products from this
# width times length on: heads of 64 at 128 positions (0.7 of the bytes), of 16 at 512 (0.8), not of
# 32 at 128 (1.3) nor of 16 at 256 (1.1); heads of 64 at 2048 move a tenth.
_NARROW = 8192


def lacks(
    kernel: str, layers: Sequence[LayerSpec], switches: Values, spec: TaskSpec
) -> tuple[str, str] | None:
    """Why a fused kernel cannot carry a model: the rule, and what would satisfy it. None: it can.

    Args:
      kernel: of `FUSED`.
      layers: of the model; mixers of a user's own have their own ways and do not count.
      switches: `compute_dtype`, `kv_quant` and `sink_logit` of the model.
      spec: of the task.
    """
    kinds = {layer.mixer for layer in layers}
    if not kinds & {"grouped", "gta"}:
        return (
            "is for layers of the mixers grouped and gta, of which there are none",
            "choose 'auto'",
        )
    if "mla" in kinds:
        return "has no form for model.mixer='mla'", "choose 'auto'"
    if switches.get("kv_quant", "none") != "none":
        return f"has no form for model.kv_quant={switches['kv_quant']!r}", "choose 'auto'"
    if kernel == "splash":
        if spec.length % _BLOCK:
            rule = f"goes in blocks of {_BLOCK} positions, and the task has {spec.length}"
            return rule, f"choose a multiple of {_BLOCK}, or 'auto'"
        return None
    if switches.get("compute_dtype") == "float32":
        return "needs 16-bit inputs", "set model.compute_dtype='bfloat16', or choose 'auto'"
    if switches.get("sink_logit"):
        return "has no form for model.sink_logit", "choose 'auto'"
    for layer in layers:
        if layer.n_sinks:
            return f"has no form for model.n_sinks={layer.n_sinks}", "choose 'auto'"
        if layer.d_head % 8 or layer.d_head > _MAX_HEAD:
            rule = f"needs heads whose width is a multiple of 8 up to {_MAX_HEAD}"
            return f"{rule}, not {layer.d_head}", "set model.d_head, or choose 'auto'"
    return None


def not_worth(kernel: str, layers: Sequence[LayerSpec], spec: TaskSpec) -> str | None:
    """Why a kernel that can carry a model would not make it faster; None: it would."""
    widths = [layer.d_head for layer in layers if layer.mixer in ("grouped", "gta")]
    if kernel == "splash" and min(widths) * spec.length < _NARROW:
        return f"moves more bytes than XLA with heads of {min(widths)} and {spec.length} positions"
    return None


def named(layers: Sequence[LayerSpec], got: Values, spec: TaskSpec) -> Iterator[Problem]:
    """The problem of a fused kernel that is named and cannot carry the model anywhere."""
    kernel = got.get("model.kernel")
    if kernel not in FUSED:
        return
    switches = {key.removeprefix("model."): value for key, value in got.items()}
    lacking = lacks(kernel, layers, switches, spec)
    if lacking is not None:
        rule, fix = lacking
        yield Problem("model.kernel", kernel, f"{rule}; {fix}")

"""What models cost to decode with, and which of them an accelerator holds: rows, and their text.

Of several devices each has an even share of the parameters and the kv heads of its query heads.
Activations and what a framework keeps for itself are not counted. Imports no jax.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from mha_jax import cost, decode_cost
from mha_jax.accelerators import Accelerator
from mha_jax.decode_cost import LanguageModel
from mha_jax.terminal import si, table


@dataclasses.dataclass(frozen=True)
class Load:
    """What is asked of every model."""

    context: int  # tokens of each sequence
    batch: int  # sequences
    dtype: str  # of parameters and cache
    n_devices: int
    accelerator: tuple[str, Accelerator] | None


def row(name: str, source: str, one: LanguageModel, load: Load) -> dict[str, Any]:
    """The costs of one model, by name; cache, bytes read and operations are those of the batch.

    Raises:
      ValueError: a model that has fewer positions than the context, or whose heads the devices
        cannot share out; the text says which.
    """
    one = one.stored_in(load.dtype)
    if one.model.positions == "learned" and load.context > one.spec.length:
        rule = f"but {name} has learned {one.spec.length} positions; ask for up to that"
        raise ValueError(f"a context of {load.context}, {rule}")
    b, context, dtype = load.batch, load.context, load.dtype
    told = {
        "model": name,
        "source": source,
        "variant": cost.variant(one.model),
        "n_params": decode_cost.n_params(one),
        "n_params_active": decode_cost.n_params_active(one),
        "made_for": one.spec.length,
        "kv_bytes_per_token": cost.kv_bytes_per_token(one.model, context),
        "ratio_to_mha": decode_cost.ratio_to_mha(one.model, context),
        "kv_bytes_resident": b * cost.kv_bytes_resident(one.model, context),
        "weight_bytes": decode_cost.weight_bytes(one, dtype),
        "bytes_read_per_step": decode_cost.bytes_read(one, b, context, dtype),
        "prefill_flops": b * decode_cost.prefill_flops(one, context),
        "decode_flops": b * decode_cost.decode_flops(one, context),
        "flops_per_byte": decode_cost.intensity(one, b, context, dtype),
    }
    return told if load.accelerator is None else told | _on_device(name, one, load, told)


def _on_device(name: str, one: LanguageModel, load: Load, told: dict[str, Any]) -> dict[str, Any]:
    """What each device must hold, and the least times that its speeds allow, fits or not."""
    assert load.accelerator is not None
    accelerator, n, b = load.accelerator[1], load.n_devices, load.batch
    try:
        share = decode_cost.shard(one.model, n)
    except ValueError as error:
        raise ValueError(f"{name}: {error}; choose another number") from None
    weights, cache = told["weight_bytes"] / n, cost.kv_bytes_resident(share, load.context)
    free = accelerator.memory_bytes - weights
    read = decode_cost.weight_bytes_read(one, b, load.dtype) / n
    read += b * cost.kv_bytes_read(share, load.context)
    reading = read / accelerator.bytes_per_s
    # The makers give no comparable speed for float32.
    speed = n * accelerator.flops_per_s if load.dtype == "bfloat16" else None
    step = max(reading, told["decode_flops"] / speed if speed else 0)
    return {
        "bytes_on_device": round(weights + b * cache),
        "fits": b * cache <= free,
        "largest_batch": max(0, int(free // cache)) if cache else None,
        "step_s": step,
        "step_bound": "memory" if step == reading else "compute",
        "tokens_per_s": b / step,
        "prefill_s": told["prefill_flops"] / speed if speed else None,
    }


def to_json(rows: Sequence[dict[str, Any]], load: Load) -> dict[str, Any]:
    """Rows and what was asked."""
    asked = {**dataclasses.asdict(load), "accelerator": None}
    if load.accelerator:
        name, accelerator = load.accelerator
        asked["accelerator"] = {"name": name, **accelerator._asdict()}
    return {**asked, "models": list(rows)}


def to_text(rows: Sequence[dict[str, Any]], load: Load) -> str:
    """The same for people."""
    of = f"; cache, reads and FLOPs of all {load.batch:,}" if load.batch > 1 else ""
    asked = f"context {load.context:,}, batch {load.batch:,}, {load.dtype}{of}"
    header = ["model", "attention", "params", "KV B/token", "of MHA", "KV B", "weights B"]
    header += ["read B/step", "prefill FLOP", "step FLOP", "FLOP/B"]
    lines = [asked, "", *table(header, [_cells(told) for told in rows])]
    if load.accelerator:
        lines += ["", *_device_lines(rows, load, *load.accelerator)]
    lines += ["", "k, M, G, T, P: powers of 1000. FLOP: 2 for each multiply-and-add."]
    if any(_sparse(told) for told in rows):
        lines += _EXPERTS
    beyond = [told["model"] for told in rows if load.context > told["made_for"]]
    if beyond:
        lines.append(f"Beyond the context that they were made for: {', '.join(beyond)}.")
    return "\n".join([*lines, "", *(f"  {told['model']}: {told['source']}" for told in rows)])


_EXPERTS = (
    "(): parameters that a token passes. A step reads the experts that a sequence of the batch is",
    "sent to, in the mean over even, independent choices.",
)


def _sparse(told: dict[str, Any]) -> bool:
    return bool(told["n_params_active"] < told["n_params"])


def _cells(told: dict[str, Any]) -> list[str]:
    sizes = ("kv_bytes_resident", "weight_bytes", "bytes_read_per_step")
    return [
        told["model"],
        told["variant"],
        si(told["n_params"]) + (f" ({si(told['n_params_active'])})" if _sparse(told) else ""),
        f"{told['kv_bytes_per_token']:,.0f}",
        f"{told['ratio_to_mha']:.1%}",
        *(si(told[key]) for key in (*sizes, "prefill_flops", "decode_flops")),
        f"{told['flops_per_byte']:.3g}",
    ]


def _device_lines(
    rows: Sequence[dict[str, Any]], load: Load, name: str, accelerator: Accelerator
) -> list[str]:
    each = f"{load.n_devices} x {name}" if load.n_devices > 1 else name
    memory, speed, flops = (si(x) for x in accelerator[:3])
    lines = [
        f"{each}: {memory}B, {speed}B/s, {flops}FLOP/s in bfloat16 ({accelerator.source})",
        "activations not counted; times are the least that these allow",
    ]
    header = ["model", "fits", "B a device", "largest batch"]
    header += ["step ms", "bound by", "tokens/s", "prefill s"]
    body = []
    for told in rows:
        times = [f"{told['step_s'] * 1e3:.4g}", told["step_bound"], f"{told['tokens_per_s']:,.0f}"]
        times.append("?" if told["prefill_s"] is None else f"{told['prefill_s']:.3g}")
        most = told["largest_batch"]
        held = [si(told["bytes_on_device"]), "any" if most is None else f"{most:,}"]
        body.append(
            [told["model"], "yes", *held, *times]
            if told["fits"]
            else [told["model"], "no", *held, *["-"] * 4]
        )
    return [*lines, *table(header, body)]

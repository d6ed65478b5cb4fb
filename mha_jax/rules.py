"""Rules that look at several config keys at once; keys that are not sound are skipped."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from mha_jax import mixers, tune
from mha_jax.config import LayerSpec
from mha_jax.keys import KEYS
from mha_jax.tasks import TaskSpec
from mha_jax.values import NAME, Problem

Values = dict[str, Any]  # dotted key -> value; of `got` the sound ones only, in plain form
PER_LAYER = tuple(key for key, spec in KEYS.items() if spec.per_layer)


def all_rules(got: Values, raw: Values) -> Iterator[Problem]:
    """Problems between keys outside the task's section.

    Args:
      got: the sound keys, as `values.read` returns them.
      raw: every key, as the user gave it.
    """
    yield from _experiment(got)
    yield from _lengths(got, raw)
    rows = layer_rows(got)
    for i, row in enumerate(rows):
        yield from _heads(got, raw, row, i)
        yield from _window(raw, row, i)
        yield from _width(got, row, i, len(rows))
    yield from _schedule(got, raw)
    yield from _tune(got)
    if got.get("match.policy", "none") != "none" and got.get("match.to") == "":
        fix = 'write it like "n_heads=8,n_kv_heads=8"'
        yield Problem("match.to", "", f"must name the model to match; {fix}")


def layer_rows(got: Values) -> list[Values]:
    """One dict a layer of the sound per-layer keys.

    A d_head or n_kv_heads of None is filled in; it stays None if what it follows is not sound.
    """
    rows = []
    for i in range(got.get("model.n_layers", 0)):
        row: Values = {}
        for key in PER_LAYER:
            value = got.get(key, ())
            if not isinstance(value, tuple):
                row[key] = value
            elif len(value) == got["model.n_layers"]:
                row[key] = value[i]
        n, d = row.get("model.n_heads"), got.get("model.d_model")
        if row.get("model.n_kv_heads", 0) is None:
            row["model.n_kv_heads"] = n
        if row.get("model.d_head", 0) is None:
            # A width that does not divide stays a fraction, for `_heads` to refuse.
            row["model.d_head"] = (d / n if d % n else d // n) if n and d else None
        rows.append(row)
    return rows


def unsound(row: Values) -> bool:
    """Whether a layer lacks a key that is sound; only kv_from may be None in the end."""
    return any(row.get(key) is None for key in PER_LAYER if key != "model.kv_from") or (
        "model.kv_from" not in row
    )


def divisors(n: int, near: int, limit: int = 10) -> str:
    """Divisors of n as text: all of them, or the `limit` nearest to `near`."""
    low = [i for i in range(1, math.isqrt(n) + 1) if n % i == 0]
    both = sorted(set(low + [n // i for i in low]), key=lambda i: abs(i - near))[:limit]
    return ", ".join(map(str, sorted(both)))


def at(raw: Values, value: Any, i: int) -> str:
    """Which layer is meant, where layers differ."""
    differ = any(isinstance(raw.get(key), str) and "," in raw[key] for key in PER_LAYER)
    return f"(layer {i}: {value}) " if differ else ""


def _experiment(got: Values) -> Iterator[Problem]:
    name = got.get("experiment", "")
    if name and not NAME.fullmatch(name):
        rule = "must be 1 to 80 letters, digits, '.', '_' or '-', not starting with '.'"
        yield Problem("experiment", name, f"names a directory and {rule}; set config.experiment")


def _lengths(got: Values, raw: Values) -> Iterator[Problem]:
    n_layers = got.get("model.n_layers")
    for key in PER_LAYER:
        value = got.get(key)
        if n_layers is not None and isinstance(value, tuple) and len(value) != n_layers:
            rule = f"has {len(value)} entries and must have one a layer, model.n_layers={n_layers}"
            yield Problem(key, raw[key], f"{rule}; write {n_layers} entries, or one value for all")


def _heads(got: Values, raw: Values, row: Values, i: int) -> Iterator[Problem]:
    mixer, n = row.get("model.mixer"), row.get("model.n_heads")
    k, h = row.get("model.n_kv_heads"), row.get("model.d_head")
    wrong = None if mixer is None else mixers.wrong(mixer)
    if wrong:
        yield Problem("model.mixer", raw["model.mixer"], f"{at(raw, mixer, i)}{wrong}")
    if n is not None and k is not None and n % k:
        rule = f"{at(raw, k, i)}must divide model.n_heads={n}"
        fix = f"choose one of {divisors(n, k)}"
        yield Problem("model.n_kv_heads", raw["model.n_kv_heads"], f"{rule}; {fix}")
    if isinstance(h, float):
        d = got["model.d_model"]
        rule = f"{at(raw, n, i)}must divide model.d_model={d} while model.d_head is None"
        fix = f"choose one of {divisors(d, n or 1)}, or set model.d_head"
        yield Problem("model.n_heads", raw["model.n_heads"], f"{rule}; {fix}")
    elif h is not None and h % 2 and got.get("model.positions") == "rope":
        key = "model.n_heads" if raw["model.d_head"] is None else "model.d_head"
        rule = f"makes heads of width {h}, which must be even with model.positions='rope'"
        fix = "make model.d_head even, or choose other positions"
        yield Problem(key, raw[key], f"{rule}; {fix}")
    if got.get("model.qk_from") == "positions" and got.get("model.positions") != "learned":
        rule = f"needs model.positions='learned', not {got.get('model.positions')!r}"
        yield Problem("model.qk_from", "positions", f"{rule}; set one of the two")
    if got.get("model.qk_from") == "positions" and got.get("model.share") in ("kv", "qkv"):
        rule = f"has keys that values cannot share, and model.share={got['model.share']!r}"
        yield Problem("model.qk_from", "positions", f"{rule}; choose 'none' or 'qk'")
    if got.get("model.share") in ("qk", "qkv") and k is not None and n is not None and k != n:
        rule = f"{at(raw, k, i)}must have model.n_kv_heads={k} equal to model.n_heads={n}"
        fix = "set model.n_kv_heads=None, or choose 'none' or 'kv'"
        yield Problem("model.share", got["model.share"], f"{rule}; {fix}")


def _window(raw: Values, row: Values, i: int) -> Iterator[Problem]:
    window, sinks = row.get("model.window"), row.get("model.n_sinks")
    if window is None or not sinks or sinks < window:
        return
    rule, fix = f"must be below model.window={window}", "lower it, or widen the window"
    if window == 0:
        rule, fix = (
            "must be 0 where model.window is 0, all keys",
            "set model.window, or lower it to 0",
        )
    yield Problem("model.n_sinks", raw["model.n_sinks"], f"{at(raw, sinks, i)}{rule}; {fix}")


def _width(got: Values, row: Values, i: int, n_layers: int) -> Iterator[Problem]:
    n: Any = row.get("model.n_heads")
    h, f, d = row.get("model.d_head"), row.get("model.d_ff"), got.get("model.d_model")
    if got.get("model.use_wo", True) or None in (n, h, f, d) or n * h == d:
        return
    after = {"residual": got.get("model.residual"), "MLP": f, "next layer": i + 1 < n_layers}
    follows = [name for name, there in after.items() if there]
    if follows:
        rule = f"leaves n_heads * d_head = {n * h:g} columns in layer {i}, and the {follows[0]} "
        rule += f"that follows must have model.d_model={d}"
        fix = "set model.use_wo=True, or make the two equal"
        yield Problem("model.use_wo", False, f"{rule}; {fix}")


def _schedule(got: Values, raw: Values) -> Iterator[Problem]:
    warmup, n_steps = got.get("optim.warmup_steps"), got.get("train.n_steps")
    fraction = got.get("optim.decay_fraction")
    if warmup is None or fraction is None or n_steps is None:
        return
    room = n_steps - round(fraction * n_steps)
    if warmup > room:
        rule = f"must end before the decay over the last {n_steps - room} of "
        rule += f"train.n_steps={n_steps} begins"
        fix = f"lower it to {room} or less, or raise train.n_steps"
        yield Problem("optim.warmup_steps", raw["optim.warmup_steps"], f"{rule}; {fix}")


def _tune(got: Values) -> Iterator[Problem]:
    text = got.get("tune.lrs", "")
    try:
        lrs = tune.rates(text)
    except ValueError as error:
        yield Problem("tune.lrs", text, str(error))
        return
    if got.get("tune.widen") and len(lrs) < 2:
        rule = "needs a grid of two rates or more in tune.lrs, whose step it takes"
        yield Problem("tune.widen", got["tune.widen"], f"{rule}; set it to 0, or give a grid")
    high = 2**31 - 1 - tune.SELECTION_SEEDS - 1000
    for key in ("train.seed", "train.data_seed"):
        if lrs and got.get(key, 0) > high:
            rule = f"must leave room for {tune.SELECTION_SEEDS:,} and more above it with tune.lrs"
            yield Problem(key, got[key], f"{rule}; lower it to {high} or less")


def window_needs_causal(
    layers: Iterable[LayerSpec], raw: Values, spec: TaskSpec, task: str
) -> Iterator[Problem]:
    """A window is about the newest keys, which only a causal mask has."""
    if spec.mask != "causal" and any(layer.window for layer in layers):
        rule = f"must be 0 with the {spec.mask} mask of the task {task!r}, which has no newest keys"
        yield Problem("model.window", raw["model.window"], f"{rule}; set it to 0")


def no_readout_needs_width(
    layers: Sequence[LayerSpec], got: Values, spec: TaskSpec, task: str
) -> Iterator[Problem]:
    """Where the last layer's columns are the answer there must be as many as the task asks for."""
    d_model, use_wo = got.get("model.d_model"), got.get("model.use_wo")
    if spec.readout != "none" or not layers or None in (d_model, use_wo):
        return
    columns, last = len(spec.outputs) * spec.output_size, layers[-1]
    if use_wo and d_model != columns:
        rule = f"must be {columns}, the columns of the task {task!r} without a read-out"
        yield Problem("model.d_model", d_model, f"{rule}; set it, or task.{task}.readout='linear'")
    elif not use_wo and last.n_heads * last.d_head != columns:
        found = f"n_heads * d_head = {last.n_heads * last.d_head}"
        rule = (
            f"leaves {found} columns, and the task {task!r} without a read-out must have {columns}"
        )
        fix = f"make them equal, or set task.{task}.readout='linear'"
        yield Problem("model.use_wo", False, f"{rule}; {fix}")

"""Rules about how keys and values are stored and shared; keys that are not sound are skipped."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mha_jax.config import LayerSpec
from mha_jax.mixers import own
from mha_jax.rules import Values, at, layer_rows
from mha_jax.tasks import TaskSpec
from mha_jax.values import Problem

# What a layer must have in common with the one whose keys and values it reads.
_COMMON = ("n_kv_heads", "d_head", "window", "n_sinks")
# Switches of `grouped` that the other two lack, with the value that means "off". A mixer of the
# user's may read the first two itself.
_ONLY_GROUPED = {"share": "none", "qk_from": "content", "kv_quant": "none"}


def all_rules(got: Values, raw: Values) -> Iterator[Problem]:
    """Problems between keys outside the task's section.

    Args:
      got: the sound keys, as `values.read` returns them.
      raw: every key, as the user gave it.
    """
    rows = layer_rows(got)
    mixers: set[str] = {row["model.mixer"] for row in rows if "model.mixer" in row}
    for i, row in enumerate(rows):
        yield from _kv_from(got, raw, rows, i)
        if row.get("model.mixer") == "gta":
            yield from _halves(got, raw, row, i)
    yield from _latents(got, "mla" in mixers)
    for name, off in _ONLY_GROUPED.items():
        value = got.get(f"model.{name}", off)
        able = {"grouped"} if name == "kv_quant" else {"grouped", *mixers.difference(own())}
        lacking = sorted(mixers - able)
        if value != off and lacking:
            rule = f"is a switch of the mixer 'grouped', and model.mixer={lacking[0]!r} has none"
            yield Problem(f"model.{name}", value, f"{rule}; set it to {off!r}")
    if got.get("model.qk_norm") and "gta" in mixers:
        rule = "normalises keys, and those of model.mixer='gta' are values too"
        yield Problem("model.qk_norm", True, f"{rule}; set it to False")
    users = sorted(mixers.difference(own()))
    if got.get("model.sink_logit") and users:
        rule = f"is a switch of {', '.join(own())}, and model.mixer={users[0]!r} has none"
        yield Problem("model.sink_logit", True, f"{rule}; set it to False")
    if got.get("model.kv_quant", "none") != "none":
        yield from _quantised(got, raw, rows)


def _kv_from(got: Values, raw: Values, rows: Sequence[Values], i: int) -> Iterator[Problem]:
    j = rows[i].get("model.kv_from")
    if j is None or j == i:
        return
    where, fix = at(raw, j, i), "write each layer's own number, or that of an earlier one"
    if j > i:
        rule = f"must be a layer up to {i} for layer {i}"
        yield Problem("model.kv_from", raw["model.kv_from"], f"{where}{rule}; {fix}")
        return
    if rows[j].get("model.kv_from") not in (None, j):
        rule = f"names layer {j}, which has no keys and values of its own"
        fix = f"write {rows[j]['model.kv_from']} for layer {i}"
        yield Problem("model.kv_from", raw["model.kv_from"], f"{where}{rule}; {fix}")
    others = {rows[m].get("model.mixer", "grouped") for m in (i, j)} - {"grouped"}
    if others:
        rule = f"is for the mixer 'grouped', and layers {j} and {i} are not both of it"
        yield Problem("model.kv_from", raw["model.kv_from"], f"{where}{rule}; set it to None")
    for name in _COMMON:
        pair = [rows[m].get(f"model.{name}") for m in (i, j)]
        if None not in pair and pair[0] != pair[1]:
            rule = f"needs model.{name} of layer {i}, {pair[0]}, to be that of layer {j}, {pair[1]}"
            yield Problem(
                "model.kv_from", raw["model.kv_from"], f"{where}{rule}; make the two equal"
            )
    if got.get("model.share", "none") in ("qk", "qkv"):
        rule = f"reads another layer's keys, and model.share={got['model.share']!r} makes them here"
        yield Problem(
            "model.kv_from", raw["model.kv_from"], f"{where}{rule}; choose 'none' or 'kv'"
        )


def _halves(got: Values, raw: Values, row: Values, i: int) -> Iterator[Problem]:
    h, of = row.get("model.d_head"), 4 if got.get("model.positions") == "rope" else 2
    if isinstance(h, int) and h % of:
        key = "model.n_heads" if raw.get("model.d_head") is None else "model.d_head"
        why = "whose rotated half must be even" if of == 4 else "which has two halves"
        rule = f"makes heads of width {h}, {why} with model.mixer='gta'"
        yield Problem(key, raw[key], f"{at(raw, h, i)}{rule}; make it a multiple of {of}")


def _latents(got: Values, there: bool) -> Iterator[Problem]:
    widths = {name: got.get(f"model.{name}") for name in ("d_latent", "d_latent_q", "d_rope")}
    if not there:
        for name, width in widths.items():
            if width:
                rule = "is a width of the mixer 'mla', which no layer has"
                yield Problem(f"model.{name}", width, f"{rule}; set it to 0")
        return
    if widths["d_latent"] == 0:
        rule = "must be 1 or more with model.mixer='mla': the width of what is stored of a token"
        yield Problem("model.d_latent", 0, f"{rule}; 4 * d_head is usual with one latent")
    rotates, e = got.get("model.positions") == "rope", widths["d_rope"]
    if e is not None and rotates and (e < 2 or e % 2):
        rule = "must be even and 2 or more with model.mixer='mla' and model.positions='rope'"
        yield Problem("model.d_rope", e, f"{rule}; d_head / 2 is usual")
    if e and got.get("model.positions") in ("learned", "none"):
        rule = f"is what rotates, and model.positions={got['model.positions']!r} does not"
        yield Problem("model.d_rope", e, f"{rule}; set it to 0, or model.positions='rope'")


def _quantised(got: Values, raw: Values, rows: Sequence[Values]) -> Iterator[Problem]:
    how, group, tail = got["model.kv_quant"], got.get("model.kv_group"), got.get("model.kv_tail")
    if group and tail is not None and tail % group:
        rule = f"must be a multiple of model.kv_group={group}"
        yield Problem("model.kv_tail", tail, f"{rule}; write {tail // group * group}")
    if got.get("model.share") in ("kv", "qkv"):
        rule = (
            f"stores keys per channel and values per token, and model.share={got['model.share']!r}"
        )
        yield Problem("model.kv_quant", how, f"{rule} has one array for both; choose 'none'")
    if got.get("model.kernel") == "fast":
        rule = f"has no form for model.kv_quant={how!r}"
        yield Problem("model.kernel", "fast", f"{rule}; choose 'auto'")
    for i, row in enumerate(rows):
        h, window = row.get("model.d_head"), row.get("model.window")
        if window:
            rule = f"{at(raw, window, i)}must be 0 with model.kv_quant={how!r}, whose tokens are"
            rule += " quantised together"
            yield Problem("model.window", raw["model.window"], f"{rule}; set it to 0")
        if how == "int4" and isinstance(h, int) and h % 2:
            rule = f"puts two numbers in a byte, and heads have width {h}"
            yield Problem("model.kv_quant", how, f"{at(raw, h, i)}{rule}; make it even")


def decodes(
    layers: Sequence[LayerSpec], got: Values, spec: TaskSpec, task: str
) -> Iterator[Problem]:
    """Whether there is a decode path for what only decoding is for."""
    how = got.get("model.kv_quant", "none")
    if how != "none" and layers and spec.mask != "causal":
        rule = (
            f"is about the newest tokens, which the {spec.mask} mask of the task {task!r} has not"
        )
        yield Problem("model.kv_quant", how, f"{rule}; choose 'none'")

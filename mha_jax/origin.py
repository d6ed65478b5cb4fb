"""A run that begins with another run's parameters: `start.source` names that run by its config.

`"n_kv_heads=8,n_steps=3000"` is the run of the same seeds whose config is this one with these
changes, and with parameters that are drawn. It is planned with the sweep if it is not part of it,
and trained first. What may differ between the two is how many heads they have (fewer kv heads are
made of the source's by `start.merge`, fewer query heads are those that `start.keep` chooses), what
makes no parameters, and all of `train.` and `optim.`. Imports no jax.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Container, Iterator, Sequence
from typing import Any, NamedTuple

from mha_jax import schema
from mha_jax.analysis import procrustes
from mha_jax.changes import copied, parse_changes
from mha_jax.config import LayerSpec, ModelSpec, Run, StartSpec, StaticConfig
from mha_jax.keys import put
from mha_jax.planned import PlannedRun, costs
from mha_jax.values import Problem

# They make no parameters, so that a run may differ from its source in them.
_FREE = (
    *("kv_init", "kernel", "compute_dtype", "cache_dtype", "scale"),
    *("kv_quant", "kv_group", "kv_tail"),
)
_FREE_OF_LAYERS = ("window", "n_sinks")
_SEEDS = ("train.seed", "train.data_seed")


class Started(NamedTuple):
    """A run with its source."""

    run: Run
    changes: dict[str, Any]  # dotted key -> value: how the source's config differs; {}: no source
    problems: list[Problem]


def started(config: dict[str, Any], run: Run, base: dict[str, Any]) -> Started:
    """Adds its source to a run.

    Args:
      config: nested dict that `schema.resolve` made `run` of.
      run: the run as configured.
      base: the same before the sweep changed it: its rate and weight decay are those of the source,
        so that runs at several rates start from one.
    """
    told = config["start"]
    text = told["source"]
    if not text:
        return Started(run, {}, [])
    changes, wrong = parse_changes(text, ("model", "train", "optim"))
    seeds = [key for key in _SEEDS if key in changes]
    if seeds:
        wrong = f"starts with the same seeds, and {seeds[0]} is one; leave it out"
    elif not wrong and config["match"]["policy"] != "none":
        wrong = "keeps the sizes of its source, so match.policy must be 'none'; set it"
    if wrong:
        return Started(run, {}, [Problem("start.source", text, wrong)])
    other = copied(config)
    other["start"]["source"] = ""
    for key in ("lr", "weight_decay"):
        other["optim"][key] = base["optim"][key]
    for key, value in changes.items():
        put(other, key, value)
    source, refused = schema.resolve(other)
    if source is None:
        wrong = f"names a run that is refused ({refused[0]}); name another"
        return Started(run, {}, [Problem("start.source", text, wrong)])
    pairs = list(zip(run.static.model.layers, source.static.model.layers, strict=False))
    merged = any(new.n_heads == old.n_heads and new != old for new, old in pairs)
    pruned = any(new.n_heads != old.n_heads for new, old in pairs)
    spec = StartSpec(
        source=source.static,
        lr=source.hypers.lr,
        weight_decay=source.hypers.weight_decay,
        merge=told["merge"] if merged else "",
        align=told["align"] and merged,
        keep=told["keep"] if pruned else "",
    )
    problems = [
        Problem(key, text if key == "start.source" else told[key.split(".")[1]], wrong)
        for key, wrong in unfit(run.static.model, spec)
    ]
    return Started(
        dataclasses.replace(run, static=dataclasses.replace(run.static, start=spec)),
        changes,
        problems,
    )


def unfit(model: ModelSpec, start: StartSpec) -> Iterator[tuple[str, str]]:
    """Why a model cannot be made of the source's parameters: pairs of key and what is wrong."""
    source = start.source.model
    for field in dataclasses.fields(ModelSpec):
        old, new = getattr(source, field.name), getattr(model, field.name)
        if field.name not in ("layers", *_FREE) and old != new:
            rule = f"names a source with model.{field.name}={old!r}, and it must be {new!r} as here"
            yield "start.source", f"{rule}; leave it out"
    if len(source.layers) != len(model.layers):
        counts = f"{len(source.layers)} layers, and must have {len(model.layers)} as here"
        yield "start.source", f"names a source of {counts}; leave n_layers out"
        return
    for i, (old, new) in enumerate(zip(source.layers, model.layers, strict=True)):
        wrong = _unfit_layer(old, new)
        if wrong:
            yield "start.source", f"{wrong} (layer {i})"
            return
    for i, layer in enumerate(model.layers):
        if (start.merge or start.keep) and (layer.mixer != "grouped" or layer.kv_from is not None):
            what = "start.merge" if start.merge else "start.keep"
            yield what, f"is for mixer='grouped' with keys and values of its own (not layer {i})"
            return
    if start.merge and source.share in ("qk", "qkv"):
        share = f"model.share={source.share!r}"
        yield "start.merge", f"makes fewer keys than queries, and {share} makes both of one matrix"
    if start.keep and not model.use_wo:
        yield "start.keep", "needs model.use_wo=True: without it what follows reads every head"
    if start.merge == "similar" and not model.use_wo:
        yield "start.merge", "moves query heads, which needs model.use_wo=True; choose 'mean'"
    if start.align and start.merge == "random":
        yield "start.align", "must be False with start.merge='random', which keeps no kv head"
    elif start.align and not procrustes.turnable(source):
        fix = "set it to False"
        yield "start.align", f"must be False where neither keys nor values can turn (share=); {fix}"


def _unfit_layer(old: LayerSpec, new: LayerSpec) -> str:
    """Why a layer cannot be made of the source's, or ""."""
    heads = ("n_heads", "n_kv_heads")
    for field in dataclasses.fields(LayerSpec):
        a, b = getattr(old, field.name), getattr(new, field.name)
        if field.name not in (*heads, *_FREE_OF_LAYERS) and a != b:
            fix = f"set model.{field.name}={a}"
            return f"names a source with {field.name}={a}, and it is {b} here; {fix}"
    for name in heads:
        a, b = getattr(old, name), getattr(new, name)
        if b > a:
            return f"names a source with {name}={a}, which must be at least the {b} here; raise it"
    if (new.n_heads, new.n_kv_heads) == (old.n_heads, old.n_kv_heads):
        return ""
    if old.mixer != "grouped":
        return f"names a source whose mixer {old.mixer!r} has other heads; only 'grouped' converts"
    if new.n_heads == old.n_heads:
        n, k = old.n_kv_heads, new.n_kv_heads
        return f"merges {n} kv heads to {k}, which must divide {n}; change it" if n % k else ""
    if new.queries_per_kv > old.queries_per_kv:
        return (
            f"would both remove query heads, {old.n_heads} to {new.n_heads}, and merge kv heads, "
            f"{old.n_kv_heads} to {new.n_kv_heads}; one run can do one of the two"
        )
    return ""


def unread(key: str, static: StaticConfig) -> bool:
    """Whether a dotted key says how a run starts, and this one does not start so."""
    section, _, leaf = key.partition(".")
    return section == "start" and not (
        static.start and (leaf == "source" or getattr(static.start, leaf))
    )


def sources(planned: Sequence[PlannedRun], known: Container[str]) -> list[PlannedRun]:
    """The sources of planned runs that are not among the known hashes; each once.

    Their labels are those of the runs that start from them: the caller names them anew.
    """
    found: dict[str, PlannedRun] = {}
    for one in planned:
        run = one.run.source
        if run is not None and run.hash not in known and run.hash not in found:
            found[run.hash] = _source(one, run)
    return list(found.values())


def _source(one: PlannedRun, run: Run) -> PlannedRun:
    changed = dict(one.about["source"])
    hypers = {"optim.lr": run.hypers.lr, "optim.weight_decay": run.hypers.weight_decay}
    changed |= {key: value for key, value in hypers.items() if key in one.overrides}
    ratio, known = one.about["params_ratio"], costs(run.static)
    about = {
        **one.about,
        **known,
        "purpose": "selection source" if one.about["purpose"] == "selection" else "source",
        "params_ratio": ratio and ratio * known["n_params"] / one.about["n_params"],
        "tune": None,
        "source": {},
        "overrides": _drawn(one.about["overrides"]) | changed,
    }
    overrides, swept = (_drawn(values) | changed for values in (one.overrides, one.swept))
    return PlannedRun(run, one.label, overrides, swept, about)


def _drawn(values: dict[str, Any]) -> dict[str, Any]:
    """Values of dotted keys without those that a run without a source does not read."""
    return {key: v for key, v in values.items() if key.split(".")[0] not in ("start", "tune")}

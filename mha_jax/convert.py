"""A trained run, planned again with fewer kv heads: uptraining after Ainslie et al. 2023.

The new run lies beside its source, starts from its last parameters and trains on for a share alpha
of its steps, at its own rate and with warm-up and decay shortened alike. Imports no jax.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from mha_jax import origin
from mha_jax.config import Run, StartSpec
from mha_jax.labels import cut, describe
from mha_jax.planned import PlannedRun, costs
from mha_jax.store import StoredRun, read_run


def plan(
    stored: StoredRun,
    n_kv_heads: list[int],
    *,
    merge: str,
    align: bool,
    alpha: float,
    lr: float | None,
) -> PlannedRun:
    """The run that starts from a stored one.

    Args:
      stored: a run that is done.
      n_kv_heads: of each layer, or one number for all.
      merge: as `start.merge`.
      align: as `start.align`.
      alpha: share of the source's steps, above 0.
      lr: peak learning rate; None: that of the source.

    Raises:
      ValueError: the run is not done, or cannot be converted so.
    """
    source, about = stored.run, stored.about
    if stored.status != "done":
        raise ValueError(f"{stored.directory}: the run is {stored.status}; let it come to its end")
    layers = source.static.model.layers
    counts = n_kv_heads * len(layers) if len(n_kv_heads) == 1 else n_kv_heads
    if len(counts) != len(layers):
        raise ValueError(f"--n_kv_heads has {len(counts)} entries, the model {len(layers)} layers")
    for i, (layer, k) in enumerate(zip(layers, counts, strict=True)):
        if layer.n_kv_heads % k:
            where = f"{stored.directory}: layer {i} has {layer.n_kv_heads} kv heads"
            raise ValueError(f"{where}, and --n_kv_heads={k} must divide that; choose a divisor")
    model = dataclasses.replace(
        source.static.model,
        layers=tuple(
            dataclasses.replace(layer, n_kv_heads=k)
            for layer, k in zip(layers, counts, strict=True)
        ),
    )
    if model == source.static.model:
        raise ValueError(f"{stored.directory}: has {about['variant']} already; name fewer kv heads")
    optim = source.static.optim
    n_steps = max(1, round(alpha * source.static.train.n_steps))
    warmup = min(round(alpha * optim.warmup_steps), optim.trunk_steps(n_steps))
    start = StartSpec(
        source=source.static,
        lr=source.hypers.lr,
        weight_decay=source.hypers.weight_decay,
        merge=merge,
        align=align,
        keep="",
    )
    wrong = [f"{key.replace('start.', '--')} {what}" for key, what in origin.unfit(model, start)]
    if wrong:
        raise ValueError(f"{stored.directory}: {'; '.join(wrong)}")
    static = dataclasses.replace(
        source.static,
        model=model,
        train=dataclasses.replace(source.static.train, n_steps=n_steps),
        optim=dataclasses.replace(optim, warmup_steps=warmup),
        start=start,
    )
    hypers = dataclasses.replace(source.hypers, lr=source.hypers.lr if lr is None else lr)
    kv_heads = counts[0] if len(set(counts)) == 1 else ",".join(map(str, counts))
    changes: dict[str, Any] = {
        "model.n_kv_heads": kv_heads,
        "train.n_steps": n_steps,
        "optim.warmup_steps": warmup,
        "start.source": describe({"n_steps": source.static.train.n_steps}),
        "start.merge": merge,
        "start.align": align,
    }
    told = {
        **about,
        **costs(static),
        "purpose": "sweep",
        "tune": None,
        "converge": {**about["converge"], "confirm": False},
        "params_ratio": None,
        "match": "none",
        "match_to": "",
        "source": {"model.n_kv_heads": None, "train.n_steps": source.static.train.n_steps},
        "overrides": {**about["overrides"], **changes},
    }
    label = f"n_kv_heads={kv_heads},{'aligned-' * align}{merge},n_steps={n_steps},{stored.label}"
    return PlannedRun(Run(static, hypers), cut(label), changes, changes, told)


def told(source: StoredRun, directory: Path) -> dict[str, Any]:
    """What conversion and uptraining did to quality and cache, from the files of both runs."""
    run = read_run(directory)
    metric = run.spec.metric
    before, after = source.summary["final"], run.summary.get("final", {})
    return {
        "run": str(directory),
        "source": str(source.directory),
        "variant": [source.about["variant"], run.about["variant"]],
        "kv_bytes_per_token": [x.about["kv_bytes_per_token"] for x in (source, run)],
        "n_steps": [x.run.static.train.n_steps for x in (source, run)],
        "metric": metric,
        "validation": {
            "source": before.get(f"eval/{metric}"),
            "converted": run.summary.get("initial"),
            "uptrained": after.get(f"eval/{metric}"),
        },
        "test": {"source": before.get(f"test/{metric}"), "uptrained": after.get(f"test/{metric}")},
    }

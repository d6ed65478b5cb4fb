"""The dry run: what a sweep would do and cost, as text and as JSON. Imports no jax."""

from __future__ import annotations

import collections
from typing import Any

from mha_jax import cost
from mha_jax.config import StaticConfig, doubled, static_hash, to_json
from mha_jax.labels import describe
from mha_jax.planned import PlannedRun, begins, groups
from mha_jax.sweep import Sweep
from mha_jax.values import shorten

# Measured on one core for training steps of the tasks here at d_model 64: 15 to 40 GFLOP/s.
FLOPS_PER_SECOND = 20e9
COMPILE_S = 10.0  # the programs of one group: init, train, two evaluations, analysis
_ASSUMPTION = (
    f"3 x forward FLOPs x tokens at {FLOPS_PER_SECOND / 1e9:g} GFLOP/s, {COMPILE_S:g} s a group to "
    "compile; one core, within a factor of three"
)


def run_seconds(static: StaticConfig) -> float:
    """Rough time of one run on one core, without compilation.

    A training step is three forward passes (the backward one costs two); an evaluation is one.
    """
    train, length = static.train, static.task.spec.length
    n_evaluations = 1 + train.n_steps // train.eval_every
    sequences = 3 * train.n_steps * train.batch_size + n_evaluations * train.n_eval + train.n_test
    return sequences * length * cost.flops_per_token(static) / FLOPS_PER_SECOND


def dry_run_json(sweep: Sweep) -> dict[str, Any]:
    """Every group and run with its costs, and what was dropped."""
    described = []
    for group_hash, planned in groups(sweep.runs).items():
        static, about = planned[0].run.static, planned[0].about
        described.append(
            {
                "group_hash": group_hash,
                "task": about["task"],
                "variant": about["variant"],
                "n_params": about["n_params"],
                "match": about["match"],
                "params_ratio": about["params_ratio"],
                "kv_bytes_per_token": about["kv_bytes_per_token"],
                "flops_per_token": about["flops_per_token"],
                "memory_bytes": cost.memory_bytes(static),
                "seconds_per_run": round(run_seconds(static), 1),
                "static": to_json(static),
                "runs": [
                    {
                        "hash": one.run.hash,
                        "directory": _directory(one),
                        "label": one.label,
                        "overrides": one.overrides,
                        "hypers": to_json(one.run.hypers),
                    }
                    for one in planned
                ],
            }
        )
    return {
        "experiment": sweep.experiment,
        "config": shorten(sweep.loaded.path),
        "arg": sweep.loaded.arg,
        "n_runs": len(sweep.runs),
        "n_groups": len(described),
        "later": _later(sweep),
        "estimate": {"core_seconds": round(_total_seconds(sweep), 1), "assumption": _ASSUMPTION},
        "groups": described,
        "dropped": [
            {"overrides": overrides, "reason": reason} for overrides, reason in sweep.dropped
        ],
    }


def dry_run_table(sweep: Sweep) -> str:
    """The same for people."""
    by_group = groups(sweep.runs)
    arg = f":{sweep.loaded.arg}" if sweep.loaded.arg else ""
    lines = [
        f"{sweep.experiment}: {_count(len(sweep.runs), 'run')} in {_count(len(by_group), 'group')} "
        f"({shorten(sweep.loaded.path)}{arg})"
    ]
    for i, (group_hash, planned) in enumerate(by_group.items(), 1):
        static, about = planned[0].run.static, planned[0].about
        matched = ""
        if about["params_ratio"] is not None:
            matched = (
                f" ({about['params_ratio']:.4g} x {about['match_to']}, match {about['match']})"
            )
        lines += [
            "",
            f"group {i}  {group_hash}  {about['task']} {about['variant']}: {_shape(static)}",
            f"  {about['n_params']:,} parameters{matched}, {about['kv_bytes_per_token']:,} KV "
            f"bytes/token, "
            f"{about['flops_per_token']:,} FLOPs/token, about {_time(run_seconds(static))} a run",
        ]
        if static.start:
            told = f"{begins(static)} of group {static_hash(static.start.source)}"
            lines.append(f"  starts from another run: {told}")
        lines += [f"    {_directory(one)}  {_set(one)}" for one in planned]
    if sweep.dropped:
        lines += ["", f"dropped: {_count(len(sweep.dropped), 'combination')}"]
        lines += [f"    {describe(overrides)}: {reason}" for overrides, reason in sweep.dropped]
    later = _later(sweep)
    lines += [""] * any(later.values())
    if later["reported"]:
        lines += [
            f"then {_count(later['reported'], 'run')} at the learning rates that these choose"
        ]
    n_wider = max(
        (one.about["tune"]["widen"] for one in sweep.runs if one.about["tune"]), default=0
    )
    if n_wider:
        rates = _count(n_wider, "more rate")
        lines += [
            f"  and up to {rates} of a model whose best one lies at a rising edge of its grid"
        ]
    if later["sources"]:
        lines += [f"  and {_count(later['sources'], 'run')} that these start from"]
    if later["twins"]:
        lines += [f"then up to {_count(later['twins'], 'run')} with twice the steps"]
    lines += [
        "",
        f"about {_time(_total_seconds(sweep))} of one core in all, a rough estimate:",
        f"  {_ASSUMPTION}",
    ]
    return "\n".join(lines)


def _total_seconds(sweep: Sweep) -> float:
    """Core seconds of all stages, compilation included."""
    training = sum(run_seconds(planned.run.static) for planned in sweep.runs)
    n_programs = 0
    for planned in groups(sweep.runs).values():
        static = planned[0].run.static
        reported, twins = _later_runs(planned)
        n_programs += 2 if twins else 1
        training += reported * run_seconds(static)
        # A twin begins where the trunk of its run ends.
        share = 1 - static.optim.trunk_steps(static.train.n_steps) / (2 * static.train.n_steps)
        training += twins * share * run_seconds(doubled(static))
    for static, n in _later_sources(sweep).items():
        training += n * run_seconds(static)
    return training + COMPILE_S * n_programs


def _later(sweep: Sweep) -> dict[str, int]:
    """Runs of the later stages, at most; a wider grid is not among them."""
    counts = [_later_runs(planned) for planned in groups(sweep.runs).values()]
    return {
        "reported": sum(n for n, _ in counts),
        "sources": sum(_later_sources(sweep).values()),
        "twins": sum(n for _, n in counts),
    }


def _later_sources(sweep: Sweep) -> dict[StaticConfig, int]:
    """Runs that reported ones will start from, by their config."""
    found: dict[StaticConfig, int] = {}
    for planned in groups(sweep.runs).values():
        start = planned[0].run.static.start
        if start is not None:
            found[start.source] = max(found.get(start.source, 0), _later_runs(planned)[0])
    return found


def _later_runs(planned: list[PlannedRun]) -> tuple[int, int]:
    """Reported runs and twins that follow from the planned runs of one model."""
    about, started = planned[0].about, planned[0].run.static.start is not None
    reported = about["tune"]["n_reported"] if about["tune"] else 0
    if not about["converge"]["confirm"] or started:
        return reported, 0
    if reported:
        return reported, reported
    hypers = [one.run.hypers for one in planned]
    return 0, max(collections.Counter((h.lr, h.weight_decay) for h in hypers).values())


def _directory(planned: PlannedRun) -> str:
    return f"{planned.label}-{planned.run.hash}"


def _set(planned: PlannedRun) -> str:
    """The four hypers, and the overrides that are none of them."""
    hypers = planned.run.hypers
    own = {f"train.{name}" for name in ("seed", "data_seed")} | {"optim.lr", "optim.weight_decay"}
    rest = {key: value for key, value in planned.overrides.items() if key not in own}
    told = f"seed={hypers.seed},data_seed={hypers.data_seed},"
    told += f"lr={hypers.lr:g},weight_decay={hypers.weight_decay:g}"
    return told + (f"  {describe(rest)}" if rest else "")


def _shape(static: StaticConfig) -> str:
    model = static.model
    fields = ["n_heads", "n_kv_heads", "d_head", "d_ff", "window", "n_sinks"]
    told = [f"n_layers={len(model.layers)}", f"d_model={model.d_model}"]
    for field in fields:
        values = [getattr(layer, field) for layer in model.layers]
        if any(values) or field == "d_ff":
            told.append(
                f"{field}="
                + (str(values[0]) if len(set(values)) == 1 else ",".join(map(str, values)))
            )
    return " ".join([*told, f"cache={model.cache_dtype}", f"n_steps={static.train.n_steps}"])


def _count(n: int, noun: str) -> str:
    return f"{n} {noun}{'' if n == 1 else 's'}"


def _time(seconds: float) -> str:
    for unit, size in (("day", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:,.1f} {unit}" + ("s" if unit == "day" else "")
    return f"{seconds:.0f} s"

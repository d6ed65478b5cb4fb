"""`scripts/heads.py` as text and JSON."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from mha_jax.importance import KINDS, Head, importance, rank_correlations, rows, with_gates
from mha_jax.redundancy import Layer, Redundancy, redundancy
from mha_jax.run import LoadedRun
from mha_jax.terminal import table


class Told(NamedTuple):
    """All that is said of the heads of a run."""

    directory: str
    step: int
    unit: str  # of the loss
    heads: list[Head]
    roles: dict[str, str]  # address of a query head -> its name in heads.csv
    redundancy: Redundancy


def examine(
    run: LoadedRun,
    at: str | int = "last",
    *,
    gates: bool = False,
    tell: Callable[[str], None] = lambda line: None,
) -> Told:
    """Everything, for one checkpoint.

    Args:
      run: a trained run.
      at: which checkpoint, as `LoadedRun` says.
      gates: train L0 gates too, as one more importance.
      tell: takes a line that says how far that is, again and again.

    Raises:
      ValueError: no checkpoint, the corpus has changed, or the model has no attention heads.
    """
    if run.summary.get("status") == "diverged":
        raise ValueError(f"{run.directory}: the run diverged, its weights are no numbers")
    heads = importance(run, at)
    if not heads:
        raise ValueError(f"{run.directory}: no layer of the model has attention heads")
    heads = with_gates(run, heads, at, tell) if gates else heads
    unit = "nats" if run.spec.kind == "class" else "squared error"
    # Heads are named at the end of a run, and may have been others before.
    roles = run.head_roles() if run.step(at) == run.summary.get("step") else {}
    return Told(str(run.directory), run.step(at), unit, heads, roles, redundancy(run, at))


def to_text(told: Told) -> str:
    """Tables for a terminal."""
    lines = [f"{told.directory}, step {told.step}"]
    for kind, name in KINDS.items():
        chosen = [head for head in told.heads if head.kind == kind]
        measures = list(chosen[0].measures)
        lines += ["", f"{name}s: rise of the loss per answer without each ({told.unit})"]
        lines[-1] += "; gate: P(open), mean over lambdas" if "gate" in measures else ""
        lines += table(
            ("head", "role", *measures, "gradient / layer"),
            [
                (
                    one.address,
                    told.roles.get(one.address, ""),
                    *(_number(one.measures[measure][0]) for measure in measures),
                    _number(one.gradient_per_layer),
                )
                for one in chosen
            ],
        )
        known = {
            pair: rho
            for pair, rho in rank_correlations(told.heads, kind).items()
            if not math.isnan(rho)
        }
        if known:
            told_of = (f"{a} and {b} {rho:.2f}" for (a, b), rho in known.items())
            lines.append("rank correlation: " + ", ".join(told_of))
    for layer in told.redundancy.layers:
        lines += ["", *_layer(layer)]
    if told.redundancy.pooled:
        costs = (f"{k} {_number(rise)}" for k, rise in told.redundancy.pooled.items())
        lines += ["", f"neighbouring kv heads pooled, untrained, loss rise: {', '.join(costs)}"]
    for (i, j), of in told.redundancy.composition.items():
        best = {
            name: np.unravel_index(int(np.argmax(matrix)), matrix.shape)
            for name, matrix in of.items()
        }
        most = (
            f"{name.upper()} l{i}.n{a} -> l{j}.n{b} {of[name][b, a]:.2f}"
            for name, (b, a) in best.items()
        )
        lines += ["", f"strongest composition of layers {i} and {j}: {', '.join(most)}"]
    return "\n".join(lines)


def to_json(told: Told) -> dict[str, Any]:
    """The same, with all matrices; what is undefined is null."""
    return plain(
        {
            "run": told.directory,
            "step": told.step,
            "unit": told.unit,
            "heads": [row | {"role": told.roles.get(row["head"])} for row in rows(told.heads)],
            "rank_correlations": {
                name: {
                    f"{a}/{b}": rho for (a, b), rho in rank_correlations(told.heads, kind).items()
                }
                for kind, name in KINDS.items()
            },
            "layers": [
                layer._asdict() | {"agreement": layer.agreement._asdict()}
                for layer in told.redundancy.layers
            ],
            "pooled": told.redundancy.pooled,
            "composition": {f"l{i}/l{j}": of for (i, j), of in told.redundancy.composition.items()},
        }
    )


def _layer(layer: Layer) -> list[str]:
    """The lines of one layer."""
    n, k = len(layer.js_nn), len(layer.key_cka_kk)
    lines = [f"layer {layer.layer}"]
    if n > 1:
        lines.append("Jensen-Shannon divergence of attention (nats), CKA of outputs below it")
        both = np.where(np.triu(np.ones((n, n), bool), 1), layer.js_nn, layer.output_cka_nn)
        lines += _matrix(both, "n")
    if not math.isnan(layer.agreement.ratio):
        lines.append(f"agreement within kv groups against across: {layer.agreement.ratio:.2f}")
    if k > 1:
        lines.append("CKA of keys, of values below it")
        both = np.where(np.triu(np.ones((k, k), bool), 1), layer.key_cka_kk, layer.value_cka_kk)
        lines += _matrix(both, "k")
    for fewer, (key, value) in layer.sharing.items():
        lines.append(f"weight-sharing error, {k} to {fewer} kv heads: K {key:.2f}, V {value:.2f}")
    if layer.copying_n is not None:
        lines.append("copying (OV): " + " ".join(f"{x:+.2f}" for x in layer.copying_n))
    return lines


def _matrix(matrix: np.ndarray, letter: str) -> list[str]:
    names = [f"{letter}{i}" for i in range(len(matrix))]
    return table(
        ("", *names),
        [
            (name, *("" if i == j else f"{x:.2f}" for j, x in enumerate(row)))
            for i, (name, row) in enumerate(zip(names, matrix, strict=True))
        ],
    )


def _number(x: float) -> str:
    return f"{x:.3g}"


def plain(value: Any) -> Any:
    """A value as JSON holds it: arrays as lists, what is undefined as null."""
    if isinstance(value, dict):
        return {str(key): plain(x) for key, x in value.items()}
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, list | tuple):
        return [plain(x) for x in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value

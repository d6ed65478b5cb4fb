"""How much a trained model needs each of its heads: four measures side by side, on the probe draw.

    zero, mean, resample   rise of the loss per answer without the head: three ways to take it away
    gradient               |dL / d factor of the head| per answer, Michel et al. 2019

for query heads and for kv heads; see `analysis.ablation` and docs/scores.md. They need not agree:
the rank correlations say how far they do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mha_jax import examine
from mha_jax.analysis import ablation, bootstrap
from mha_jax.analysis.scores import Sums
from mha_jax.run import LoadedRun

MEASURES = (*ablation.KINDS, "gradient")
KINDS = {"n": "query head", "k": "kv head"}


class Head(NamedTuple):
    """One head, with each measure: value and 95 % interval over sequences, in the loss's unit."""

    layer: int
    kind: str  # n: query head, k: kv head
    head: int
    measures: dict[str, tuple[float, float, float]]  # measure -> value, low, high
    # The gradient over the l2 norm of its layer, as the paper compares layers.
    gradient_per_layer: float

    @property
    def address(self) -> str:
        """ "l1.n3", "l0.k1"."""
        return f"l{self.layer}.{self.kind}{self.head}"


def importance(run: LoadedRun, at: str | int = "last") -> list[Head]:
    """Every query head, then every kv head, layer by layer.

    Args:
      run: a trained run.
      at: which checkpoint, as `LoadedRun` says.

    Raises:
      ValueError: no checkpoint, or the corpus of the task has changed.
    """
    program, params, constants = run.program, run.params(at), run.probe_constants()
    compiled = jax.jit(lambda params, constants, i: _of_batch(program, params, constants, i))
    batches = [
        jax.device_get(compiled(params, constants, np.int32(i)))
        for i in range(examine.n_batches(program))
    ]
    joined = jax.tree.map(lambda *x: np.concatenate(x), *batches)
    return [
        head
        for kind in KINDS
        for layer in range(len(run.run.static.model.layers))
        for head in _of_layer(joined, kind, layer)
    ]


def _of_batch(program: Any, params: Any, constants: Any, i: Any) -> dict[str, Any]:
    """`answers` [b], and for each kind of head and measure a list of [b, heads], one a layer."""
    batch = examine.probe_batch(program, constants, i)
    _, stops = program.model.apply(params, batch.inputs, probe=lambda stops: stops)
    losses = examine.losses(program, params, batch)
    out: dict[str, Any] = {"answers": batch.loss_mask.sum((1, 2)).astype(jnp.int32)}
    for kind in KINDS:
        measured = {
            measure: ablation.leave_one_out(losses, stops, measure, kind)
            for measure in ablation.KINDS
        }
        n_heads = [x.shape[1] for x in measured["zero"]]
        gradient = ablation.gradient_importance(losses, len(out["answers"]), n_heads, kind)
        out[kind] = {**measured, "gradient": gradient}
    return out


def _of_layer(joined: dict[str, Any], kind: str, layer: int) -> list[Head]:
    answers = joined["answers"]
    if not joined[kind]["zero"][layer].shape[1]:
        return []
    nothing = np.zeros(len(answers))
    scores = {
        measure: bootstrap.finish(Sums(joined[kind][measure][layer], nothing, answers, answers))
        for measure in MEASURES
    }
    gradient_n = scores["gradient"].value
    per_layer_n = np.asarray(ablation.per_layer([jnp.asarray(gradient_n)])[0])
    return [
        Head(
            layer,
            kind,
            head,
            {
                measure: (float(s.value[head]), float(s.low[head]), float(s.high[head]))
                for measure, s in scores.items()
            },
            float(per_layer_n[head]),
        )
        for head in range(len(gradient_n))
    ]


def rank_correlations(heads: Sequence[Head], kind: str) -> dict[tuple[str, str], float]:
    """Spearman's rho between each two measures over all heads of a kind; NaN for fewer than three
    heads, or a measure that is the same for all.
    """
    from scipy.stats import spearmanr  # seconds to import

    chosen = [head for head in heads if head.kind == kind]
    out = {}
    for i, a in enumerate(MEASURES):
        for b in MEASURES[i + 1 :]:
            x, y = ([head.measures[m][0] for head in chosen] for m in (a, b))
            known = len(chosen) > 2 and len(set(x)) > 1 and len(set(y)) > 1
            out[a, b] = float(spearmanr(x, y).statistic) if known else float("nan")
    return out


def rows(heads: Sequence[Head]) -> list[dict[str, Any]]:
    """One row for each head, for a table or a file."""
    return [
        {
            "head": one.address,
            **{
                f"{measure}{end}": value
                for measure, values in one.measures.items()
                for end, value in zip(("", "_low", "_high"), values, strict=True)
            },
            "gradient_per_layer": one.gradient_per_layer,
        }
        for one in heads
    ]

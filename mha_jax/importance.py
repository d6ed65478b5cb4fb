"""How much a trained model needs each of its heads: measures side by side, on the probe draw.

    zero, mean, resample   rise of the loss per answer without the head: three ways to take it away
    gradient               |dL / d factor of the head| per answer, Michel et al. 2019
    gate                   P(its L0 gate is open), mean over lambdas, Voita et al. 2019: if asked

for query heads and for kv heads; see `analysis.ablation` and docs/scores.md. They need not agree:
the rank correlations say how far they do. `under_masks` is for pruning: the same of a pruned model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mha_jax import evaluate, examine, gating, held_out, rng
from mha_jax.analysis import ablation, bootstrap, pruning
from mha_jax.analysis.scores import Sums
from mha_jax.config import StaticConfig
from mha_jax.run import LoadedRun
from mha_jax.train import Program

MEASURES = (*ablation.KINDS, "gradient")
_GATE_STEPS, _GATE_LR = 500, 0.1
KINDS = {"n": "query head", "k": "kv head"}


class Head(NamedTuple):
    """One head, with each measure: value and 95 % interval over sequences, in the loss's unit; of
    a gate the probability that it is open, without an interval (NaN)."""

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


def with_gates(
    run: LoadedRun,
    heads: Sequence[Head],
    at: str | int = "last",
    tell: Callable[[str], None] = lambda line: None,
) -> list[Head]:
    """The same heads with the measure "gate" beside the others: the mean of P(open) over
    `gating.lambdas`. The gates alone are trained, on training data.

    One lambda tells open from closed; the mean over lambdas, ours, also tells who closes first.

    Args:
      run: a trained run.
      heads: what `importance` says of it.
      at: which checkpoint, as `LoadedRun` says.
      tell: takes a line that says how far it is, again and again.

    Raises:
      ValueError: as `importance`, or gates that diverge.
    """
    params, task, layers = run.params(at), run.run.static.task, run.run.static.model.layers
    measure = held_out.measure(run.program, task.constants("validation"), "validation")
    constants = task.constants("train")
    shared = any(layer.queries_per_kv > 1 for layer in layers)
    open_n: list[np.ndarray] = []
    found: dict[tuple[str, int, int], float] = {}
    for of in KINDS:
        if of == "n" or shared:
            lams = gating.lambdas(measure, params, layers, of)
            recipe = gating.Recipe(of, _GATE_STEPS, lr=0.0, gate_lr=_GATE_LR)
            gated = gating.sweep(run.program, params, constants, lams, recipe, measure, tell)
            by_layer = zip(*(one.open_probability for one in gated), strict=True)
            open_n = [np.mean(x, axis=0) for x in by_layer]
        for layer, values in enumerate(open_n):
            found |= {(of, layer, head): float(p) for head, p in enumerate(values)}
    nan = float("nan")
    return [
        one._replace(
            measures=one.measures | {"gate": (found[one.kind, one.layer, one.head], nan, nan)}
        )
        for one in heads
    ]


def under_masks(
    program: Program, params: Any, constants: dict[str, Any], of: str, by: str
) -> Callable[[list[np.ndarray]], list[np.ndarray]]:
    """From head masks to the importance of each head in that pruned model, as `pruning.iterative`
    asks: for each layer [heads], per answer.

    On `n_probe` sequences of the validation draw, rounded up to whole batches. The gradient is
    divided by the l2 norm of its layer, as the paper compares layers.

    Args:
      program: the model and its task.
      params: of the trained model.
      constants: of the validation split.
      of: "n", query heads, or "k", kv heads.
      by: one of `MEASURES`.
    """
    counts = gating.n_gates(program.static.model.layers, of)

    def of_batch(params: Any, constants: Any, masks: list[jax.Array], i: Any) -> Any:
        batch = validation_batch(program, constants, i)
        losses = pruning.masked(examine.losses(program, params, batch), masks)
        if by == "gradient":
            found = ablation.gradient_importance(losses, len(batch.loss_mask), counts, of)
        else:
            probed = program.model.apply(
                params, batch.inputs, probe=lambda stops: stops, head_mask=masks
            )
            found = ablation.leave_one_out(losses, probed[1], by, of)
        return [x.sum(0) for x in found], batch.loss_mask.sum()

    compiled = jax.jit(of_batch)

    def worth(masks: list[np.ndarray]) -> list[np.ndarray]:
        batches = [
            jax.device_get(compiled(params, constants, masks, np.int32(i)))
            for i in range(n_batches(program.static))
        ]
        sums, answers = jax.tree.map(lambda *x: np.sum(np.stack(x), axis=0), *batches)
        means = [x / max(answers, 1) for x in sums]
        return list(map(np.asarray, ablation.per_layer(means))) if by == "gradient" else means

    return worth


def validation_batch(program: Program, constants: Any, i: Any) -> Any:
    """Batch i of the validation draw: as many sequences as training held the gradient of."""
    key = jax.random.fold_in(rng.stream(program.static.task.seed, "validation"), i)
    return program.sample(key, constants, _size(program.static))


def n_batches(static: StaticConfig) -> int:
    """Of these, so many have `n_probe` sequences."""
    return -(-static.train.n_probe // _size(static))


def _size(static: StaticConfig) -> int:
    return min(static.train.batch_size, evaluate.batch_size(static))


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
    measures = list(chosen[0].measures) if chosen else []
    out = {}
    for i, a in enumerate(measures):
        for b in measures[i + 1 :]:
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

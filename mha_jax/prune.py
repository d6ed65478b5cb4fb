"""What it costs a trained run to go without heads: curves of held-out loss and metric.

    one-shot    the heads in the order of their importance, the least important first
    iterative   importance estimated again after every tenth of the heads (Michel et al. 2019)
    random      in random orders: the control
    L0          the gates that are left at each lambda, the parameters trained beside them
    L0 mask     the heads that L0 leaves open, in the run's own parameters

Importance is measured on the validation draw, gates are trained on training data, and every point
is measured on the whole test draw. Query heads and kv heads have curves of their own, since a query
head frees no cache unless its whole kv group goes; where every head has its own keys and values
they are the same, and there is one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from mha_jax import cost, gating, held_out, shrink
from mha_jax.analysis import pruning
from mha_jax.config import LayerSpec, ModelSpec
from mha_jax.importance import under_masks
from mha_jax.run import LoadedRun

METHODS = ("one-shot", "iterative", "random", "L0", "L0 mask")
_POINTS = 32  # of a curve, at most; those of a model with more heads lie evenly
_NAMES = {"n": "query heads", "k": "kv heads"}

Tell = Callable[[str], None]


@dataclasses.dataclass(frozen=True)
class Plan:
    """What is measured."""

    # The importance of a head, one of importance.MEASURES. Not the paper's gradient: that of a head
    # whose answers are certain is near 0, and one-shot orders of solved tasks were near random.
    by: str = "zero"
    n_random: int = 5  # random orders
    lambdas: tuple[float, ...] = ()  # of the gates; (): `gating.lambdas`
    gate_steps: int = 500  # updates for each lambda
    gate_lr: float = 0.1
    frozen: bool = False  # the gates alone are trained
    seed: int = 0  # of the gates; random orders have this one and those after it
    remove: int | None = None  # kv heads that `shrink` takes out; None: half of them, if they can


class Point(NamedTuple):
    """One pruned model, measured on the test draw."""

    of: str  # what was pruned: "n", query heads, or "k", kv heads
    method: str  # one of METHODS
    seed: int | None
    lam: float | None
    n_heads: int  # query heads that are left, of all layers
    n_kv_heads: int  # kv heads that are still read
    kv_bytes_per_token: float
    loss: float
    value: float  # of the task's metric
    gone: tuple[str, ...]  # "l0.n3", in the order in which they went


class Pruned(NamedTuple):
    """All that is said of a run."""

    step: int
    points: list[Point]
    gated: dict[str, list[gating.Gated]]  # of what was pruned, lambda by lambda
    removed: shrink.Removed | str  # or why no kv head can be taken out


def kinds(layers: Sequence[LayerSpec]) -> tuple[str, ...]:
    """What has a curve of its own: "n", and "k" where query heads share kv heads."""
    return ("n",) if all(layer.queries_per_kv == 1 for layer in layers) else ("n", "k")


def prune(
    run: LoadedRun, plan: Plan, at: str | int = "last", tell: Tell = lambda line: None
) -> Pruned:
    """Every curve of a run; the same for the same arguments.

    Args:
      run: a trained run.
      plan: what is measured.
      at: which checkpoint, as `LoadedRun` says.
      tell: takes a line that says how far it is, again and again.

    Raises:
      ValueError: no checkpoint, a run that diverged, a corpus that has changed, a mixer without kv
        heads, more kv heads to remove than can go, or gates that diverge.
    """
    if run.summary.get("status") == "diverged":
        raise ValueError(f"{run.directory}: the run diverged, its weights are no numbers")
    params, task, model = run.params(at), run.run.static.task, run.run.static.model
    cost.kv_head_bytes_per_token(model, run.spec.length)  # refuses a mixer without kv heads
    most = shrink.n_removable(model.layers)
    if plan.remove is not None and not 0 < plan.remove <= most:
        raise ValueError(f"remove={plan.remove}: at most {most} kv heads can go, a layer keeps one")
    constants = {"test": run.probe_constants()}
    constants |= {split: task.constants(split) for split in ("train", "validation")}
    measure = held_out.measure(run.program, constants["test"])
    points: list[Point] = []
    gated: dict[str, list[gating.Gated]] = {}
    for of in kinds(model.layers):

        def tell_of(line: str, of: str = of) -> None:
            tell(f"{_NAMES[of]}: {line}")

        tell_of("importance")
        worth = under_masks(run.program, params, constants["validation"], of, plan.by)
        again = pruning.iterative(worth, model.layers, of=of)
        orders: list[tuple[str, int | None, list[pruning.Head]]] = [
            ("one-shot", None, pruning.order(worth(_ones(model)), of)),
            ("iterative", None, again),
        ]
        for seed in range(plan.seed, plan.seed + plan.n_random):
            counts = gating.n_gates(model.layers, of)
            orders.append(("random", seed, pruning.random_order(counts, seed, of)))
        points += _curves(orders, run, params, measure, tell_of)
        gated[of] = _gated(run, params, constants, of, plan, measure, tell_of)
        for found in gated[of]:
            open_heads = [(gate > 0).astype(np.float32) for gate in found.head_mask]
            for method, metrics in (
                ("L0", found.metrics),
                ("L0 mask", measure(params, open_heads)),
            ):
                made = (of, method, plan.seed, found.lam)
                points.append(_point(run, made, found.closed, open_heads, metrics))
    n = min(most, sum(layer.n_kv_heads for layer in model.layers) // 2)
    removed: shrink.Removed | str = "no kv head can be removed: a layer keeps one"
    if n:
        tell("removal")
        try:
            removed = shrink.without(run, params, again, plan.remove or n)
        except ValueError as error:  # a model without a wo
            removed = str(error)
    return Pruned(run.step(at), points, gated, removed)


def _curves(
    orders: Sequence[tuple[str, int | None, list[pruning.Head]]],
    run: LoadedRun,
    params: Any,
    measure: held_out.Measure,
    tell: Tell,
) -> Iterator[Point]:
    """The points of curves; (method, seed, order) of each."""
    layers = run.run.static.model.layers
    seen: dict[bytes, dict[str, float]] = {}  # orders begin and end alike
    for i, (method, seed, order) in enumerate(orders):
        for m in np.linspace(0, len(order), min(len(order), _POINTS) + 1).round().astype(int):
            tell(f"order {i + 1}/{len(orders)}, {m}/{len(order)} gone")
            masks = pruning.masks(order[:m], layers)
            key = b"".join(mask.tobytes() for mask in masks)
            if key not in seen:
                seen[key] = measure(params, masks)
            made = (order[0].of, method, seed, None)
            yield _point(run, made, order[:m], masks, seen[key])


def _gated(
    run: LoadedRun,
    params: Any,
    constants: dict[str, Any],
    of: str,
    plan: Plan,
    measure: held_out.Measure,
    tell: Tell,
) -> list[gating.Gated]:
    """Gates at every lambda of the plan."""
    hypers = run.run.hypers
    recipe = gating.Recipe(
        of=of,
        n_steps=plan.gate_steps,
        lr=0.0 if plan.frozen else hypers.lr,
        gate_lr=plan.gate_lr,
        weight_decay=hypers.weight_decay,
        seed=plan.seed,
    )
    lams = plan.lambdas
    if not lams:
        validated = held_out.measure(run.program, constants["validation"], "validation")
        lams = gating.lambdas(validated, params, run.run.static.model.layers, of)
    return gating.sweep(run.program, params, constants["train"], lams, recipe, measure, tell)


def _point(
    run: LoadedRun,
    made: tuple[str, str, int | None, float | None],
    gone: Sequence[pruning.Head],
    masks: Sequence[np.ndarray],
    metrics: dict[str, float],
) -> Point:
    """The point of a model under masks; `made` are the fields from `of` to `lam`."""
    model = run.run.static.model
    of_head = cost.kv_head_bytes_per_token(model, run.spec.length)
    kept_bytes = pruning.kv_bytes_per_token(masks, model.layers, of_head)
    return Point(
        *made,
        n_heads=sum(int((mask > 0).sum()) for mask in masks),
        n_kv_heads=sum(int(x.sum()) for x in pruning.kept_kv_heads(masks, model.layers)),
        kv_bytes_per_token=cost.tidy(float(kept_bytes)),
        loss=metrics["loss"],
        value=metrics[run.spec.metric],
        gone=tuple(map(str, gone)),
    )


def _ones(model: ModelSpec) -> list[np.ndarray]:
    return [np.ones(layer.n_heads, np.float32) for layer in model.layers]

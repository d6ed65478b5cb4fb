"""Equal parameters: changes one size of a model until it has as many as a reference model.

`match.to` names the reference as changes to the run's own model ("n_kv_heads=8"), `match.policy`
the size that is changed: d_ff, d_model or n_layers. With "none" nothing is changed and only the
ratio is told. What a smaller attention saves, 2 (n - k) h d for n - k kv heads fewer, is given back
to the MLP by `d_ff`, as in Shazeer 2019, section 4.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, NamedTuple

from mha_jax import cost, schema
from mha_jax.changes import copied, parse_changes
from mha_jax.config import ModelSpec, Run
from mha_jax.keys import KEYS, put
from mha_jax.tasks import TaskSpec
from mha_jax.values import Problem


class Matched(NamedTuple):
    """A run after matching."""

    run: Run
    params_ratio: float | None  # parameters over those of the reference; None: there is none
    problems: list[Problem]


def match(config: dict[str, Any], run: Run) -> Matched:
    """Matches a run to its reference.

    Args:
      config: nested dict that `schema.resolve` made `run` of.
      run: the run as configured.
    """
    policy, to = config["match"]["policy"], config["match"]["to"]
    if not to:
        return Matched(run, None, [])
    changes, wrong = parse_changes(to, ("model",))
    if wrong:
        return Matched(run, None, [Problem("match.to", to, wrong)])
    other = copied(config)
    for key, value in changes.items():
        put(other, key, value)
    reference, refused = schema.resolve(other)
    if reference is None:
        wrong = f"names a model that is refused ({refused[0]}); name another"
        return Matched(run, None, [Problem("match.to", to, wrong)])
    target = cost.n_params(reference.static)
    if policy != "none":
        changed = copied(config)
        obstacle = _change(policy, changed, run, target)
        if obstacle:
            return Matched(run, None, [Problem("match.policy", policy, obstacle)])
        matched, refused = schema.resolve(changed)
        if matched is None:
            wrong = f"makes a model that is refused ({refused[0]}); choose another"
            return Matched(run, None, [Problem("match.policy", policy, wrong)])
        run = matched
    return Matched(run, cost.n_params(run.static) / target, [])


def _change(policy: str, config: dict[str, Any], run: Run, target: int) -> str | None:
    """Sets the size with which the model comes nearest to `target`, or says why it cannot."""
    model, spec = run.static.model, run.static.task.spec
    if policy == "d_ff":
        if not any(layer.d_ff for layer in model.layers):
            others = "'d_model' or 'n_layers'" if _uniform(config) else "'d_model'"
            return f"must have an MLP to act on; choose {others}, or set model.d_ff"
        # The count is linear in the width.
        now, one = cost.model_params(model, spec), cost.model_params(_widened(model, 1), spec)
        by = round((target - now) / (one - now))
        narrowest = by + min(layer.d_ff for layer in model.layers if layer.d_ff)
        if narrowest < 1:
            return f"would need an MLP of width {narrowest}; widen model.d_ff, or match another"
        widths = [layer.d_ff for layer in _widened(model, by).layers]
        config["model"]["d_ff"] = widths[0] if len(set(widths)) == 1 else ",".join(map(str, widths))
    elif policy == "d_model":
        config["model"]["d_model"] = _best_d_model(config, model, spec, target)
    else:
        if not _uniform(config):
            return "must have equal layers, no comma strings; choose 'd_ff' or 'd_model'"
        now = cost.model_params(model, spec)
        longer = dataclasses.replace(model, layers=(*model.layers, model.layers[-1]))
        more = round((target - now) / (cost.model_params(longer, spec) - now))
        config["model"]["n_layers"] = max(1, len(model.layers) + more)
    return None


def _uniform(config: dict[str, Any]) -> bool:
    """Whether all layers are written as one."""
    return not any(isinstance(v, str) and "," in v for v in config["model"].values())


def _widened(model: ModelSpec, by: int) -> ModelSpec:
    """The model with every MLP it has wider by `by`."""
    layers = tuple(
        dataclasses.replace(layer, d_ff=layer.d_ff + by) if layer.d_ff else layer
        for layer in model.layers
    )
    return dataclasses.replace(model, layers=layers)


def _best_d_model(config: dict[str, Any], model: ModelSpec, spec: TaskSpec, target: int) -> int:
    """The allowed width with the nearest count.

    Where the heads split it, it is a multiple of every n_heads, and twice that under rope.
    """
    split = config["model"]["d_head"] is None
    step = math.lcm(*(layer.n_heads for layer in model.layers)) if split else 1
    step *= 2 if split and model.positions == "rope" else 1

    def count(multiple: int) -> int:
        d = step * multiple
        layers = tuple(
            dataclasses.replace(layer, d_head=d // layer.n_heads) if split else layer
            for layer in model.layers
        )
        return cost.model_params(dataclasses.replace(model, d_model=d, layers=layers), spec)

    low, high = 1, max(1, int(KEYS["model.d_model"].high) // step)
    while low < high:  # the count grows with the width: the first multiple that reaches the target
        middle = (low + high) // 2
        low, high = (low, middle) if count(middle) >= target else (middle + 1, high)
    return step * min({max(1, low - 1), low}, key=lambda multiple: abs(count(multiple) - target))

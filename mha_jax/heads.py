"""What is told of the heads of a run: the rows of its `heads.csv`, and the indices of the model.

From the sums of `examine`, on the host. `docs/scores.md` defines every number.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from mha_jax import examine
from mha_jax.analysis import bootstrap, catalogue, information, naming, similarity, specialization
from mha_jax.analysis.bootstrap import Score
from mha_jax.analysis.scores import Sums
from mha_jax.analysis.specialization import Drawn
from mha_jax.config import StaticConfig

COLUMNS = (
    *("layer", "of", "head", "kv_head", "role", "score", "value", "baseline", "corrected"),
    *("low", "high", "share", "n_rows"),
)
# Resamples of an index: a cell draws its interval from those of all of its runs.
_N_DRAWS = 200
# What a head of a task without roles is named for.
GENERAL = {
    "offset/-1": "previous",
    "same_token": "same token",
    "same_class": "same class",
    "induction": "induction",
    "sink/first": "first",
    "sink/delimiter": "delimiter",
}


class LayerHeads(NamedTuple):
    """The heads of one layer."""

    layer: int
    found: Mapping[str, Any]  # the layer's sums, see `examine`
    scores: dict[str, Score]  # by name
    names: list[str]  # the role of each head, "mixed", or "" where that cannot be told


def read(layers: Sequence[Any], static: StaticConfig) -> list[LayerHeads]:
    """The heads of every layer that has attention weights.

    Args:
      layers: what `Group.examine` returns for one lane.
      static: the run's.
    """
    out = []
    for layer, (found, names) in enumerate(zip(layers, examine.score_names(static), strict=True)):
        if found is not None:
            scores = layer_scores(found, names)
            out.append(LayerHeads(layer, found, scores, head_names(found, scores)))
    return out


def table(heads: Sequence[LayerHeads], static: StaticConfig) -> list[dict[str, Any]]:
    """The rows of `heads.csv`, with the keys of `COLUMNS`: one for each layer, head and score.

    Layers, heads and kv heads count from 0, and query head i reads kv head i // (n / k). `role` is
    the head's name, the same in all of its rows. `of` is "n" for a query head, and "k" for a kv
    head that several query heads read: their mean.
    """
    rows, names = [], examine.score_names(static)
    for one in heads:
        g = static.model.layers[one.layer].queries_per_kv
        rows += _rows(one, "n", g)
        if g > 1:
            rows += _rows(_of_groups(one, g, names[one.layer]), "k", 1)
    return rows


def _rows(heads: LayerHeads, of: str, queries_per_kv: int) -> list[dict[str, Any]]:
    return [
        {
            "layer": heads.layer,
            "of": of,
            "head": head,
            "kv_head": head // queries_per_kv,
            "role": role,
            "score": name,
            "value": float(score.value[head]),
            "baseline": float(score.baseline),
            "corrected": float(score.corrected[head]),
            "low": float(score.low[head]),
            "high": float(score.high[head]),
            "share": float(score.share),
            "n_rows": int(score.n_rows),
        }
        for head, role in enumerate(heads.names)
        for name, score in heads.scores.items()
    ]


def _of_groups(heads: LayerHeads, g: int, names: Sequence[str]) -> LayerHeads:
    """Each kv head as the mean of the g query heads that read it. It has no `loss_rise`: to lose
    a kv head is not the mean of losing one of its readers.
    """

    def mean(x: np.ndarray) -> np.ndarray:
        return x.reshape(len(x), -1, g, *x.shape[2:]).mean(2)

    found = heads.found
    of_groups = {
        "scores": found["scores"]._replace(value=mean(found["scores"].value)),
        "fixed": found["fixed"],
        "repeated": {
            name: sums._replace(value=mean(sums.value)) for name, sums in found["repeated"].items()
        },
        "roles": found["roles"] | {"mass": mean(found["roles"]["mass"])},
    }
    scores = layer_scores(of_groups, names)
    return LayerHeads(heads.layer, of_groups, scores, head_names(of_groups, scores))


def layer_scores(found: Mapping[str, Any], names: Sequence[str]) -> dict[str, Score]:
    """Every score of a layer's heads, by name, with its interval.

    Beside those of `names`, `weight/<role>`, the head as a mixture of roles (`naming.role_weights`;
    without an interval), and where `found` has "rise" `loss_rise`, in the unit of the loss.
    """
    ideals = np.array([catalogue.ideal(name) for name in names])
    together = bootstrap.finish(found["scores"], ideals)
    out = {name: Score(*(x[..., i] for x in together)) for i, name in enumerate(names)}
    for role, offsets in found["fixed"].items():
        accuracy = Sums(*(x[..., names.index(f"dependency/{role}")] for x in found["scores"]))
        out[f"dependency/{role}"] = bootstrap.above_offset(accuracy, offsets)
    out |= {name: bootstrap.finish(sums) for name, sums in found["repeated"].items()}
    weights_nr = naming.role_weights(found["roles"])
    unknown_n = np.full(len(weights_nr), math.nan)
    n_rows, n_queries = found["roles"]["n_rows"].sum(), found["scores"].n_queries[:, 0].sum()
    for role, weight_n in zip(sorted(found["fixed"]), weights_nr.T, strict=True):
        out[f"weight/{role}"] = Score(
            value=weight_n,
            baseline=np.zeros(()),
            corrected=weight_n,
            low=unknown_n,
            high=unknown_n,
            n_rows=n_rows,
            share=n_rows / np.maximum(n_queries, 1),
        )
    return out | ({"loss_rise": bootstrap.finish(found["rise"])} if "rise" in found else {})


def head_names(found: Mapping[str, Any], scores: Mapping[str, Score]) -> list[str]:
    """The role of each head of a layer, or "mixed"; "" where that cannot be told.

    Of the task's roles, by the weights of `naming.role_weights`; where the task has none, or no row
    tells them apart, by corrected scores that need no ground truth.
    """
    roles, weights_nr = sorted(found["fixed"]), naming.role_weights(found["roles"])
    if not roles or np.isnan(weights_nr).all():
        general = {name: scores[key].corrected for key, name in GENERAL.items() if key in scores}
        roles = sorted(name for name, x in general.items() if not np.isnan(x).any())
        if not roles:
            return [naming.UNDEFINED] * len(weights_nr)
        weights_nr = np.stack([general[name] for name in roles], axis=1)
    return [naming.role_name(weights_r, roles) for weights_r in weights_nr]


def indices(heads: Sequence[LayerHeads]) -> dict[str, Drawn]:
    """The indices of the model, means over its layers, each with its resamples: `specialization`
    over roles, `offset_specialization`, and `specialization_used`, in which a head weighs what its
    absence costs. {} for a model without heads.
    """
    if not heads:
        return {}
    used = [information.used_shares(one.scores["loss_rise"].value) for one in heads]
    roles = [one.found["roles"] for one in heads]
    drawn = {
        "specialization": [specialization.of_roles(masses, n_draws=_N_DRAWS) for masses in roles],
        "offset_specialization": [
            specialization.of_offsets(one.found["offsets"], n_draws=_N_DRAWS) for one in heads
        ],
        "specialization_used": [
            specialization.of_roles(masses, shares, n_draws=_N_DRAWS)
            for masses, shares in zip(roles, used, strict=True)
        ],
    }
    return {name: specialization.over_layers(layers) for name, layers in drawn.items()}


def summary(heads: Sequence[LayerHeads], static: StaticConfig) -> dict[str, Any]:
    """What `summary.json` holds of the heads: of the model, means over its layers, and of each."""
    layers = {f"l{one.layer}": _of_layer(one, static) for one in heads}
    if not layers:
        return {}

    def mean(name: str) -> float:
        known = [x[name] for x in layers.values() if not math.isnan(x[name])]
        return float(np.mean(known)) if known else math.nan

    firsts = []
    for one in heads:
        column = examine.score_names(static)[one.layer].index("sink/first")
        firsts.append(Sums(*(x[..., column] for x in one.found["scores"])))
    return {
        "roles_covered": naming.covered([name for one in heads for name in one.names]),
        "role_entropy": mean("role_entropy"),
        "js": mean("js"),
        "sink_rate": float(bootstrap.sink_rate(firsts).corrected),
        "layers": layers,
    }


def _of_layer(heads: LayerHeads, static: StaticConfig) -> dict[str, Any]:
    found, n_kv_heads = heads.found, static.model.layers[heads.layer].n_kv_heads
    named = naming.sensitivity(naming.role_weights(found["roles"]), sorted(found["fixed"]))
    js_nn = similarity.js_matrix(found["js"])
    groups = similarity.agreement(js_nn, n_kv_heads)
    nats, share = information.role_entropy(found["roles"])
    return {
        "names": heads.names,
        "covered": {str(one.tau): one.n_covered for one in named},
        "role_entropy_nats": nats,
        "role_entropy": share,
        "js": similarity.layer_mean(js_nn),
        "js_within_groups": groups.within,
        "js_across_groups": groups.across,
        "group_agreement": groups.ratio,
    }

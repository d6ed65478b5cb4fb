"""The first tab of the demonstration: a model of four heads that do what they were told, and the
same parameters cut into two heads and one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from mha_jax.analysis import constructed
from mha_jax.analysis.constructed import Construction
from mha_jax.analysis.constructed_weights import model_spec, params, resplit
from mha_jax.config import OptimSpec, StaticConfig, TaskRef, TrainSpec
from mha_jax.model import build
from mha_jax.page import badges, tabs
from mha_jax.page.view import Looked
from mha_jax.tasks import english

_TEXT = (
    "Nothing is trained here: the weights of four heads were written down. One head looks at the "
    "neighbour on the left, one at the other word of the same part of speech, one at the other "
    "copy of the same word, one at the final full stop, where it can rest.",
    "The buttons re-split the same weights into two heads and into one. A wider head adds the "
    "scores of the heads that it is made of: it has one softmax for all of their wishes, and must "
    "mix them. The table tells how much of each role's attention is left.",
)
_N_VALUES = 16


def tab(text: str) -> dict[str, Any]:
    """The tab, for a sentence of the task `english`.

    Raises:
      ValueError: a word that the task does not have, or too many of them.
    """
    inputs_tf = english.encode(english.Config(512, _N_VALUES), text)
    cfg = english.Config(max(len(inputs_tf), 7), _N_VALUES)
    spec = english.spec(cfg)
    built = constructed.demonstration(spec, spec.classes, english.VOCAB.index("."))
    words_t = inputs_tf[:, 0]
    models = [_model(built, inputs_tf, cfg, n_heads) for n_heads in (4, 2, 1)]
    _, chance = masses(built, words_t, None)
    return tabs.tab(
        "Constructed",
        models,
        text=_TEXT,
        numbers_of="attention on the keys of each role, in the head that has the role",
        chance=chance,
        roles=built.spec.roles,
    )


def masses(
    built: Construction, words_t: np.ndarray, weights_nts: np.ndarray | None
) -> tuple[dict[str, float], dict[str, float]]:
    """Role -> mean attention on its keys, over the queries that have such a key; and by chance,
    which is what an even spread puts there.

    Args:
      built: one layer of heads with one role each.
      words_t: the sentence.
      weights_nts: of the heads, or of fewer of which each is some neighbours made one; None: even.
    """
    heads = built.layers[0]
    found, chance = {}, {}
    for j, head in enumerate(heads):
        (role,) = head
        keys_ts = constructed.matches(built, words_t[None], role)[0] > 0
        rows_t = keys_ts.any(-1)
        if not rows_t.any():
            continue
        chance[role] = float(keys_ts[rows_t].mean())
        if weights_nts is not None:
            weights_ts = weights_nts[j * len(weights_nts) // len(heads)]
            found[role] = float((weights_ts * keys_ts).sum(-1)[rows_t].mean())
    return found, chance


def _model(
    built: Construction, inputs_tf: np.ndarray, cfg: english.Config, n_heads: int
) -> dict[str, Any]:
    model = resplit(model_spec(built), n_heads)
    weights = params(built)
    apply = build(model, built.spec).apply
    _, stops = jax.jit(lambda p, x: apply(p, x, probe=lambda s: s))(weights, inputs_tf[None])
    static = StaticConfig(
        TaskRef("english", 0, tuple(sorted(vars(cfg).items())), ""),
        model,
        # Nothing is trained.
        TrainSpec(0, 0, 0, 0, 0, 0, "stop", 0.0),
        OptimSpec(0, 0.0, 0.0, 0.0, 0.0, 0.0),
    )
    layers = [jax.tree.map(np.asarray, layer) for layer in stops]
    mixers = [layer["mixer"] for layer in weights["layers"].values()]
    tokens = [english.VOCAB[word] for word in inputs_tf[:, 0]]
    weights_nts = layers[0]["weights_bkgts"][0, :, 0]
    found, chance = masses(built, inputs_tf[:, 0], weights_nts)

    def told(step: int) -> tuple[list[list[dict[str, Any]]], dict[str, float]]:
        del step
        return [_badges(built, found, chance, n_heads)], found

    looked = Looked(static, 0, tokens, layers, mixers)
    return tabs.model(tabs.heads_told(n_heads), [looked], told)


def _badges(
    built: Construction, found: Mapping[str, float], chance: Mapping[str, float], n_heads: int
) -> list[dict[str, Any]]:
    """A head that is made of one is named for its role, others are mixed."""
    roles = [role for (role,) in built.layers[0]]
    out = []
    for own in np.array_split(np.array(roles), n_heads):
        scores = {
            f"role/{role}": {
                "corrected": (found[role] - chance[role]) / (1 - chance[role]),
                "value": found[role],
                "baseline": chance[role],
            }
            for role in own.tolist()
            if role in found
        }
        out.append(badges.badge(own[0].item() if len(own) == 1 else "mixed", scores))
    return out

"""Which scores the heads of a task are given: their names, and the sums behind each.

    role/<role>          mass on the role's key                          tasks with roles
    alignment            mass on the keys of all roles                   tasks with roles
    dependency/<role>    how often the heaviest key is the role's        tasks with roles
    retrieval/<role>     the same, and the model's answer is right       roles that are read out
    offset/<k>           mass on the key k positions on, k = -3 to +2    offsets that the mask shows
    argmax/<k>           how often the heaviest key is there             the same
    sink/first           mass on the first position
    sink/delimiter       mass on delimiters                              tasks with delimiters
    same_token           mass on earlier copies of the token             tasks over tokens
    same_class           mass on earlier other tokens of its class       tasks with classes
    induction            mass on what followed earlier copies            tasks over tokens
    entropy, normalised_entropy, confidence, distance                    of each row
    score_variance               variance of the scores of each row      mixers with scores

A definition stands with its function, in `targets` and `scores`.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from mha_jax.analysis import scores, targets
from mha_jax.analysis.scores import Sums
from mha_jax.tasks import Batch, TaskSpec

_ROW_SCORES = {
    "entropy": scores.entropy,
    "normalised_entropy": scores.normalised_entropy,
    "confidence": scores.confidence,
    "distance": scores.distance,
}
# Value of the ideal head, where it is not 1.
_IDEAL = {"entropy": 0.0, "normalised_entropy": 0.0, "distance": 0.0}
# Rates of the heaviest key, by the mass that they go with.
_RATES = {"role": "dependency", "offset": "argmax"}
_FOLLOWED = (
    *("offset/-1", "same_token", "induction", "sink/first", "normalised_entropy"),
    "score_variance",
)


def ideal(name: str) -> float:
    """The value at which a score's corrected form is 1."""
    return _IDEAL.get(name, 1.0)


def followed(name: str) -> bool:
    """Whether the score is recorded while a run trains: the roles, and what can stand for one."""
    return name.startswith("role/") or name in _FOLLOWED


def names(visible_ts: np.ndarray, spec: TaskSpec) -> tuple[str, ...]:
    """The scores of a layer's heads, in the order of `layer_sums`.

    Args:
      visible_ts: bool, whether query t sees key s.
      spec: of the task.
    """
    masses, retrieved = _masses(visible_ts, spec), _retrieved(spec)
    of_rows = (*(f"retrieval/{r}" for r in retrieved), *_ROW_SCORES, "score_variance")
    return (*masses, *_rates(masses), *of_rows)


def layer_sums(
    weights_bnts: jax.Array,
    scores_bnts: jax.Array | None,
    visible_ts: np.ndarray,
    batch: Batch,
    outputs_btov: jax.Array,
    spec: TaskSpec,
) -> Sums:
    """Sums of every score, for the heads of one layer: the last axis is that of `names`.

    Args:
      weights_bnts: attention weights.
      scores_bnts: the scores behind them; None: the mixer has none, and no row of `score_variance`
        counts.
      visible_ts: bool, whether query t sees key s: a constant of the program.
      batch: what they were computed for.
      outputs_btov: the model's outputs for it.
      spec: of its task.
    """
    masses = _masses(visible_ts, spec)
    keys = {name: _target(name, batch, spec) for name in masses}
    top_bnts = scores.argmax_share(weights_bnts)
    parts = [
        _all_masses(weights_bnts, list(keys.values()), visible_ts),
        _all_masses(top_bnts, [keys[name] for name in _rates(masses).values()], visible_ts),
    ]
    of_rows = []
    for role, o in _retrieved(spec).items():
        right_bt = jnp.argmax(outputs_btov[:, :, o], axis=-1) == batch.targets[..., o]
        pointer_bt = batch.pointers[role]
        of_rows.append(scores.retrieval(weights_bnts, pointer_bt, right_bt, visible_ts))
    of_rows += [score(weights_bnts, visible_ts) for score in _ROW_SCORES.values()]
    none = None if scores_bnts is not None else jnp.zeros((1, spec.length), bool)
    known_bnts = weights_bnts if scores_bnts is None else scores_bnts
    of_rows.append(scores.score_variance(known_bnts, visible_ts, rows_bt=none))
    parts.append(Sums(*(jnp.stack(x, axis=-1) for x in zip(*of_rows, strict=True))))
    return Sums(*(jnp.concatenate(x, axis=-1) for x in zip(*parts, strict=True)))


def token_ids(spec: TaskSpec, inputs: jax.Array) -> jax.Array:
    """The token at each position, int32 [b, t]: of fields the first one, -1 at the query token."""
    tokens_bt = inputs if spec.inputs == "tokens" else inputs[..., 0]
    return jnp.pad(tokens_bt, ((0, 0), (0, int(spec.query_token))), constant_values=-1)


def _masses(visible_ts: np.ndarray, spec: TaskSpec) -> list[str]:
    """Names of the masses."""
    out = [f"role/{role}" for role in spec.roles]
    out += ["alignment"] if spec.roles else []
    out += [f"offset/{k:+d}" for k in targets.OFFSETS if np.diagonal(visible_ts, k).any()]
    out += ["sink/first"]
    if spec.inputs != "vectors":
        out += ["sink/delimiter"] if spec.delimiters else []
        out += ["same_token", *(["same_class"] if spec.classes else []), "induction"]
    return out


def _rates(masses: list[str]) -> dict[str, str]:
    """Rate -> the mass whose keys it counts."""
    split = [(name, *name.split("/")) for name in masses if name.split("/")[0] in _RATES]
    return {f"{_RATES[kind]}/{which}": name for name, kind, which in split}


def _retrieved(spec: TaskSpec) -> dict[str, int]:
    """Role -> the read-out head that says what stands at the role's key: that of its name, or the
    only one of a task with one role.
    """
    if spec.kind != "class":
        return {}
    if len(spec.outputs) == len(spec.roles) == 1:
        return {spec.roles[0]: 0}
    return {role: spec.outputs.index(role) for role in spec.roles if role in spec.outputs}


def _target(name: str, batch: Batch, spec: TaskSpec) -> jax.Array:
    """The keys that a mass counts, bool [b, t, s]; b may be 1."""
    kind, _, which = name.partition("/")
    if kind == "role":
        return targets.pointer(batch.pointers[which])
    if kind == "alignment":
        return targets.pointed(batch.pointers)
    if kind == "offset":
        return targets.offset(spec.length, int(which))
    if name == "sink/first":
        return targets.position(spec.length, 0)
    tokens_bt = token_ids(spec, batch.inputs)
    if name == "sink/delimiter":
        return targets.token_in(tokens_bt, spec.delimiters)
    if name == "same_token":
        return targets.same_token(tokens_bt)
    if name == "same_class":
        # The query token is in a class of its own.
        class_bt = jnp.where(tokens_bt >= 0, jnp.asarray(spec.classes)[tokens_bt], -1)
        return targets.same_class(class_bt, tokens_bt)
    return targets.induction(tokens_bt)


def _all_masses(weights_bnts: jax.Array, keys_bts: list[jax.Array], visible_ts: np.ndarray) -> Sums:
    """`scores.mass` on each target, m, the last axis: in one loop, since a program with a copy of
    it for each takes long to compile.
    """
    b, _, *ts = weights_bnts.shape
    stacked_mbts = jnp.stack([jnp.broadcast_to(target_bts, (b, *ts)) for target_bts in keys_bts])
    sums = jax.lax.map(lambda target: scores.mass(weights_bnts, target, visible_ts), stacked_mbts)
    return Sums(*(jnp.moveaxis(x, 0, -1) for x in sums))

"""Transformers whose heads do what they were told: ground truth for every score.

Nothing is trained. `constructed_weights` writes the parameters down, and this file says, from the
words alone, what each head then attends to. A head is a mixture of roles; a role names the keys s
of a query t (x is the word, c its class):

    prev            s = t - 1
    word            another copy of the word: x_s = x_t, s != t
    class           another word of the class: c(x_s) = c(x_t), x_s != x_t
    class_or_copy   either of these two: c(x_s) = c(x_t), s != t
    delimiter       x_s is the delimiter, s = t included
    induction       what followed an earlier copy: x_(s-1) = x_t, 0 < s < t

A head that gives role r the weight w_r and spreads the rest, u = 1 - sum of w_r, evenly scores key
s with the sum of log(1 + w_r T / u) over the roles that s is a key of. Its softmax over T keys is,
where every role has one key and no two share it, exactly

    u / T on every key, and w_r more on the key of r.

u is at least 1e-6: what a pure head leaves to other keys. Elsewhere the softmax is still known:
- all keys of a role score alike: copies of a word share equally, and weigh more together;
- a role without a key leaves its share to the others, in proportion; a query without any key of
  any role looks at all keys alike;
- a key of two roles has the product of their factors;
- behind a causal mask query t sees t + 1 keys: every weight is divided by a smaller sum;
- an induction head hides the query itself and key 0, by the factor (1 + w_r T / u)^-2.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

import numpy as np

from mha_jax.attention.core import Mask
from mha_jax.tasks import TaskSpec

ROLES = ("prev", "word", "class", "class_or_copy", "delimiter", "induction")
FLOOR = 1e-6  # smallest part of a head that is spread evenly
Head = Mapping[str, float]  # role -> weight


@dataclasses.dataclass(frozen=True)
class Construction:
    """What to build.

    Args:
      spec: tokens, or fields of which the first is the word and the last the value; of tokens the
        word is the value too. One read-out a head of the last layer, as large as the values.
      classes: the class of each word, from 0.
      layers: the heads of each layer.
      delimiter: the word that the role `delimiter` looks at.
      n_kv_heads: of every layer; None: as many as heads.

    Raises:
      ValueError: a spec for which there is no such model, a role that is unknown or lacks what it
        needs, weights that are not above 0 or add up to more than 1.
    """

    spec: TaskSpec
    classes: tuple[int, ...]
    layers: tuple[tuple[Head, ...], ...]
    delimiter: int = 0
    n_kv_heads: int | None = None

    def __post_init__(self) -> None:
        spec = self.spec
        linear = spec.encoder == spec.readout == "linear"
        if spec.inputs not in ("tokens", "fields") or not linear or spec.query_token:
            raise ValueError("needs tokens or fields, linear encoder and read-out, no query token")
        if len(self.classes) != spec.input_sizes[0]:
            raise ValueError(f"{len(self.classes)} classes for {spec.input_sizes[0]} words")
        if not 0 <= self.delimiter < len(self.classes):
            raise ValueError(f"delimiter={self.delimiter} is no word")
        if not self.layers:
            raise ValueError("needs a layer")
        outputs = len(self.layers[-1]), spec.input_sizes[-1]
        if (len(spec.outputs), spec.output_size) != outputs:
            raise ValueError(f"needs {outputs[0]} read-outs of size {outputs[1]}")
        for i, heads in enumerate(self.layers):
            if len(heads) % (self.n_kv_heads or 1):
                raise ValueError(f"n_kv_heads={self.n_kv_heads} must divide {len(heads)} heads")
            for head in heads:
                self._check(i, head)

    def _check(self, layer: int, head: Head) -> None:
        if unknown := head.keys() - set(ROLES):
            raise ValueError(f"{sorted(unknown)} not among the roles {', '.join(ROLES)}")
        if not (min(head.values(), default=1) > 0 and sum(head.values()) <= 1 + 1e-9):
            raise ValueError(f"weights {dict(head)} must be above 0 and add up to 1 at most")
        ready = self.spec.inputs == "tokens" and self.spec.mask == "causal"
        if "induction" in head and not (ready and self.previous_head(layer) is not None):
            raise ValueError(
                "induction needs tokens, a causal mask, and a head {'prev': 1} in the layer before"
            )

    @property
    def has_induction(self) -> bool:
        """Whether any head has the role."""
        return any("induction" in head for heads in self.layers for head in heads)

    def previous_head(self, layer: int) -> int | None:
        """The head of the layer before through which an induction head sees what came before a
        key: the first one that is `prev` and nothing else."""
        heads = self.layers[layer - 1] if layer else ()
        return next((j for j, head in enumerate(heads) if dict(head) == {"prev": 1}), None)

    def logits(self, head: Head) -> dict[str, float]:
        """What each role of a head adds to the score of its keys: log(1 + w T / u)."""
        rest = max(1 - sum(head.values()), FLOOR)
        return {role: math.log1p(w * self.spec.length / rest) for role, w in head.items()}


def demonstration(spec: TaskSpec, classes: tuple[int, ...], delimiter: int) -> Construction:
    """One layer of four heads, one role each: previous word, same part of speech, same word,
    delimiter.

    Their parameters also fit 2 and 1 heads (`constructed_weights.resplit`).

    Args:
      spec: a task of words and values with four read-outs, such as `english`; these are renamed.
      classes: the part of speech of each word.
      delimiter: the word of the last head.
    """
    roles = ("prev", "class_or_copy", "word", "delimiter")
    spec = dataclasses.replace(spec, outputs=roles, roles=roles)
    heads = tuple({role: 1.0} for role in roles)
    return Construction(spec, classes, (heads,), delimiter)


def expected(
    built: Construction, words_bt: np.ndarray, n_heads: int | None = None
) -> list[np.ndarray]:
    """The attention weights of each layer, float64 [b, n, t, s], from the words alone.

    They differ from the model's by less than 1e-4: by its float32, and in an induction head by
    what the previous-token head leaves to other keys.

    Args:
      built: the construction.
      words_bt: int [b, t], at most spec.length positions.
      n_heads: fewer heads than were built: each group of neighbours is one head, whose scores are
        the sum of theirs, divided by the root of their number (the scale of a wider head).

    Raises:
      ValueError: n_heads does not divide the heads, or there are several layers or shared kv
        heads, of which the closed form does not speak.
    """
    visible_ts = visible(built, words_bt.shape[1])
    layers = []
    for heads in built.layers:
        scores_bnts = np.stack([_scores(built, words_bt, head) for head in heads], axis=1)
        if n_heads is not None:
            if len(built.layers) > 1 or built.n_kv_heads is not None or len(heads) % n_heads:
                raise ValueError(f"n_heads={n_heads} needs one layer of MHA that it divides")
            b, n, t, s = scores_bnts.shape
            group_bngts = scores_bnts.reshape(b, n_heads, n // n_heads, t, s)
            scores_bnts = group_bngts.sum(2) / math.sqrt(n // n_heads)
        scores_bnts = np.where(visible_ts, scores_bnts, -np.inf)
        exp_bnts = np.exp(scores_bnts - scores_bnts.max(-1, keepdims=True))
        layers.append(exp_bnts / exp_bnts.sum(-1, keepdims=True))
    return layers


def pointers(
    built: Construction, words_bt: np.ndarray, roles: tuple[str, ...]
) -> dict[str, np.ndarray]:
    """Role -> int32 [b, t]: the role's key at those queries where each of `roles` has one visible
    key and no two have the same, so that weights are what was asked for; -1 elsewhere."""
    visible_ts = visible(built, words_bt.shape[1])
    keys = {role: (matches(built, words_bt, role) == 1) & visible_ts for role in roles}
    key_bts = np.stack(list(keys.values()))
    clear_bt = (key_bts.sum(-1) == 1).all(0) & (key_bts.sum(0) <= 1).all(-1)
    return {
        role: np.where(clear_bt, found_bts.argmax(-1), -1).astype(np.int32)
        for role, found_bts in keys.items()
    }


def visible(built: Construction, length: int) -> np.ndarray:
    """Which key each query sees, bool [t, s]."""
    return Mask(built.spec.mask, built.spec.n_context).table(length)


def matches(built: Construction, words_bt: np.ndarray, role: str) -> np.ndarray:
    """How often a role's logit is added to each score, int [b, t, s]: 1 at the keys of a role.

    0 elsewhere, and negative at the keys that an induction head hides.
    """
    length = words_bt.shape[1]
    t, s = np.arange(length)[:, None], np.arange(length)[None, :]
    class_bt = np.asarray(built.classes)[words_bt]
    same_bts = words_bt[:, :, None] == words_bt[:, None, :]
    kin_bts = class_bt[:, :, None] == class_bt[:, None, :]
    if role == "induction":
        before_bs = words_bt[:, np.maximum(np.arange(length) - 1, 0)]  # key 0 sees only itself
        follows_bts = words_bt[:, :, None] == before_bs[:, None, :]
        return follows_bts.astype(int) - 2 * (s == t) - 2 * (s == 0)
    found = {
        "prev": s == t - 1,
        "word": same_bts & (s != t),
        "class": kin_bts & ~same_bts,
        "class_or_copy": kin_bts & (s != t),
        "delimiter": (words_bt == built.delimiter)[:, None, :],
    }
    return np.broadcast_to(found[role], same_bts.shape).astype(int)


def _scores(built: Construction, words_bt: np.ndarray, head: Head) -> np.ndarray:
    scores_bts = np.zeros((*words_bt.shape, words_bt.shape[1]))
    for role, logit in built.logits(head).items():
        scores_bts += logit * matches(built, words_bt, role)
    return scores_bts

"""The tasks: one module each, chosen by its file name.

A task module holds

    Config                        frozen dataclass without defaults (those are in configs/base.py)
    problems(cfg)                 -> iterator of (field, the rule it breaks, the fix)         no jax
    spec(cfg)                     -> TaskSpec                                                 no jax
    sample(key, constants, cfg, n) -> Batch of n sequences, drawn on the device

and, where the task has such a thing,

    constants(cfg, seed, split)   -> dict of numpy arrays: arguments of the compiled program  no jax
    ceiling(cfg, seed, model)     -> bound of the metric for the model, None: none is known   no jax
    baselines(cfg, seed, model)   -> {name: value of the metric} of what is no trained model:
                                     a Bayes predictor, least squares, a fixed offset         no jax
    data_hash(cfg)                -> SHA-256 of the corpus that it reads                      no jax
    documents(cfg, seed)          -> Documents: the test split, document by document          no jax
    encode(cfg, text)             -> inputs of one sequence, numpy [t, ...] as TaskSpec.inputs
                                     says; ValueError, one line: what cannot be read          no jax

`problems` expects values of the declared types and checks ranges and rules between fields; a
problem reads as "field=value <rule>; <fix>". The others expect a config without problems. `seed`
is the task's seed.

`split` is "train", "validation" or "test". A generated task draws the splits from different keys
and returns the same constants for each; a task over a corpus returns the part of the corpus that
belongs to the split.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

NAMES = (
    "relations",
    "english",
    "taps",
    "wide_taps",
    "attr",
    "d_retrieval",
    "copy",
    "histogram",
    "sort",
    "agreement",
    "dyck",
    "modular_addition",
    "memorise",
    "nearest",
    "mixture",
    "mqar",
    "induction",
    "k_hop",
    "needle",
    "selective_copy",
    "markov",
    "text",
)
SPLITS = ("train", "validation", "test")


@dataclasses.dataclass(frozen=True)
class TaskSpec:
    """What a model must be told about a task.

    Axes: b sequences, t positions (the learned query token, if there is one, is the last), o
    read-out heads, v size of a read-out.
    """

    # tokens: int [b, t] | fields: int [b, t, field], embeddings added | vectors: float [b, t, size]
    inputs: str
    input_sizes: tuple[
        int, ...
    ]  # tokens: (vocabulary,) | fields: one vocabulary a field | vectors: (size,)
    length: int  # positions the model reads-out over, t, the query token included
    mask: str  # causal | full | context_query: every position sees the first n_context ones only
    outputs: tuple[str, ...]  # names of the read-out heads
    output_size: int  # v
    kind: str  # class: targets are ids, cross entropy | regression: vectors, squared error
    metric: str  # accuracy | r2 | nmse | bits_per_byte | bits_per_token
    direction: str  # max | min
    chance: float  # value of the metric for a model that ignores its input
    solved_at: float | None  # value from which every output must count as solved
    roles: tuple[str, ...]  # keys of Batch.pointers
    n_context: int = 0  # with context_query
    query_token: bool = False  # append one learned position that has no input
    encoder: str = "linear"  # linear | mlp (one hidden ReLU layer)
    d_encoder: int = 0  # hidden width of the mlp encoder
    # linear | mlp (one hidden GELU layer) | none: the last layer's columns are the answer
    readout: str = "linear"
    d_readout: int = 0  # hidden width of the mlp read-out
    autoregressive: bool = False  # position t predicts the input of position t + 1
    vocab: tuple[
        str, ...
    ] = ()  # how a token (fields: the first field) is written, for plots; (): no text form
    # Of the tokens (fields: of the first field), for the scores of heads.
    classes: tuple[int, ...] = ()  # the class of each, such as its part of speech; (): none
    delimiters: tuple[int, ...] = ()  # those that part others


class Documents(NamedTuple):
    """Every token of the test split once, in windows that do not cross a document's end."""

    names: tuple[str, ...]
    index: Any  # int [w]: the document of each window
    inputs: Any  # int [w, t]: tokens
    targets: Any  # int [w, t, o]
    loss_mask: Any  # float32 [w, t, o]: 0 behind a document's end


class Batch(NamedTuple):
    """One batch. Every array is drawn inside the compiled program."""

    inputs: Any  # as TaskSpec.inputs says, without the query token
    targets: Any  # class: int32 [b, t, o]; regression: float32 [b, t, o, v]
    loss_mask: Any  # float32 [b, t, o]: 1 where an answer is asked for and defined
    pointers: dict[
        str, Any
    ]  # role -> int32 [b, t]: the key position the answer stands at; -1 where undefined

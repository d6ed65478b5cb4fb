"""What a run *is*: the frozen, hashable description that every other module reads.

A run is `(static, hypers)`. The static part fixes shapes, program and task, and is the key that
groups runs into one compilation; the four hypers are arguments of the compiled program. The
identity of a run is the SHA-256 of the canonical JSON of `(schema_version, static, hypers)`.
Nothing here imports jax.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from typing import Any

from mha_jax.taskref import TaskRef

SCHEMA_VERSION = 5
KV_BITS = {"int8": 8, "int4": 4}  # of a number, by ModelSpec.kv_quant


@dataclasses.dataclass(frozen=True)
class LayerSpec:
    """One layer: a mixer (attention) followed by an MLP."""

    mixer: str  # module of mha_jax.attention, or a user's file with its digest, see mixers.py
    n_heads: int  # query heads, n
    n_kv_heads: int  # key/value heads, k; divides n; the number of latents with `mla`
    d_head: int  # width of a head, h
    d_ff: int  # hidden width of the MLP, f; 0: the layer has no MLP
    window: int  # a query sees this many newest keys, itself included; 0: all of them
    n_sinks: int  # with a window: the first positions, which stay visible
    kv_from: int | None  # the earlier layer whose keys and values it reads; None: its own

    @property
    def queries_per_kv(self) -> int:
        """Query heads per kv head, g."""
        return self.n_heads // self.n_kv_heads


@dataclasses.dataclass(frozen=True)
class ModelSpec:
    """Shapes and switches of the transformer."""

    d_model: int
    layers: tuple[LayerSpec, ...]
    positions: str  # rope | learned | none
    qk_from: str  # content | positions: what queries and keys are made from
    norm: str  # none | layer | rms, before each mixer, each MLP and the read-out
    residual: bool
    bias: bool
    activation: str  # gelu | relu | swiglu
    scale: bool  # divide the scores by sqrt(d_head)
    use_wo: bool  # multiply the concatenated heads by W_O
    share: str  # none | qk | kv | qkv: projections that are one matrix
    qk_norm: bool  # RMS-normalise queries and keys per head
    gate: bool  # elementwise sigmoid gate on each head's output
    sink_logit: bool  # a learned logit per head in the denominator of the softmax
    d_latent: int  # with `mla`: width of a latent
    d_latent_q: int  # with `mla`: width of the queries' latent; 0: they have none
    d_rope: int  # with `mla`: width of the rotated part of queries and keys
    kv_quant: str  # none | int8 | int4: how keys and values are stored
    kv_group: int  # with kv_quant: tokens that are quantised together; else 0
    kv_tail: int  # with kv_quant: the newest tokens, which stay as they are; else 0
    kv_init: str  # mean | fresh: how fewer kv heads start (attention/grouped.py)
    kernel: str  # auto | reference | fast | cudnn | splash
    compute_dtype: str  # float32 | bfloat16
    cache_dtype: str  # float32 | bfloat16: what a key or value is rounded to and stored in


@dataclasses.dataclass(frozen=True)
class TrainSpec:
    """Budget and evaluation."""

    n_steps: int
    batch_size: int
    eval_every: int  # steps between evaluations; step 0 and the last step are always evaluated
    n_eval: int  # sequences of the validation draw
    n_test: int  # sequences of the test draw, used once, at the end
    n_probe: int  # sequences whose attention is analysed at the end
    on_bad_step: str  # "stop": the run has diverged; "ignore": without that update
    explode: float  # a loss this many times the first one, or 1, is bad too; 0: none is


@dataclasses.dataclass(frozen=True)
class OptimSpec:
    """AdamW and its unit-height schedule."""

    warmup_steps: int
    decay_fraction: float  # the last share of the steps, in which the rate falls linearly to zero
    b1: float
    b2: float
    eps: float
    clip: float  # largest global norm of the gradient; 0: no clipping

    def decay_steps(self, n_steps: int) -> int:
        """Length of the linear decay at the end of `n_steps` updates; 0: there is none."""
        return max(1, round(self.decay_fraction * n_steps)) if self.decay_fraction > 0 else 0

    def trunk_steps(self, n_steps: int) -> int:
        """Updates before the decay begins: a run with a larger budget has the same ones."""
        return n_steps - self.decay_steps(n_steps)


@dataclasses.dataclass(frozen=True)
class StartSpec:
    """The run whose last parameters a run begins with: one of the same seeds."""

    source: StaticConfig  # of that run
    lr: float  # its hypers beside the seeds
    weight_decay: float
    merge: str  # mean | first | random | similar: how kv heads become fewer; "": none do
    align: bool  # turn the kv heads of a group towards each other before
    keep: str  # zero | mean | resample | gradient | random: which heads stay; "": all do


@dataclasses.dataclass(frozen=True)
class StaticConfig:
    """Everything that fixes the compiled program: the group key."""

    task: TaskRef
    model: ModelSpec
    train: TrainSpec
    optim: OptimSpec
    start: StartSpec | None = None  # None: the parameters are drawn

    @property
    def n_sources(self) -> int:
        """Runs that must be over before one of this config can begin."""
        return self.start.source.n_sources + 1 if self.start else 0

    @property
    def steps_before(self) -> int:
        """Updates behind the parameters at step 0: those of the sources."""
        if self.start is None:
            return 0
        return self.start.source.steps_before + self.start.source.train.n_steps

    @property
    def n_sequences(self) -> int:
        """Training sequences that the parameters have seen at the end, sources included: the
        budget.
        """
        before = self.start.source.n_sequences if self.start else 0
        return before + self.train.n_steps * self.train.batch_size


@dataclasses.dataclass(frozen=True)
class Hypers:
    """The four numbers that are arguments of the compiled program."""

    seed: int
    data_seed: int
    lr: float
    weight_decay: float


@dataclasses.dataclass(frozen=True)
class Run:
    """One row of `runs.csv`."""

    static: StaticConfig
    hypers: Hypers

    @property
    def hash(self) -> str:
        """First ten hex digits of the identity."""
        return _digest({"static": to_json(self.static), "hypers": to_json(self.hypers)})

    @property
    def group_hash(self) -> str:
        """The same for the static part alone: one group, one cell of the frontier."""
        return static_hash(self.static)

    @property
    def source(self) -> Run | None:
        """The run whose last parameters this one begins with; None: they are drawn."""
        start = self.static.start
        if start is None:
            return None
        hypers = dataclasses.replace(self.hypers, lr=start.lr, weight_decay=start.weight_decay)
        return Run(start.source, hypers)


def static_hash(static: StaticConfig) -> str:
    """First ten hex digits of the SHA-256 of a static config: its group, its row of
    `frontier.csv`."""
    return _digest({"static": to_json(static)})


def _digest(body: dict[str, Any]) -> str:
    text = json.dumps(
        {"schema_version": SCHEMA_VERSION, **body}, sort_keys=True, separators=(",", ":")
    )
    return hashlib.sha256(text.encode()).hexdigest()[:10]


def doubled(static: StaticConfig) -> StaticConfig:
    """The same with twice the steps: its twin."""
    train = dataclasses.replace(static.train, n_steps=2 * static.train.n_steps)
    return dataclasses.replace(static, train=train)


def to_json(spec: Any) -> dict[str, Any]:
    """Plain JSON values of one of the dataclasses above; `task.params` becomes an object."""
    out: dict[str, Any] = {}
    for field in dataclasses.fields(spec):
        value = getattr(spec, field.name)
        if dataclasses.is_dataclass(value):
            value = to_json(value)
        elif field.name == "layers":
            value = [to_json(layer) for layer in value]
        elif field.name == "params":
            value = {key: list(v) if isinstance(v, tuple) else v for key, v in value}
        out[field.name] = value
    return out


def run_from_json(data: dict[str, Any]) -> Run:
    """The run that `config.json` describes.

    Raises:
      ValueError: the file is of another schema version, or a field is missing or unknown.
    """
    if data.get("schema_version") != SCHEMA_VERSION:
        raise ValueError(
            f"config.json has schema_version {data.get('schema_version')!r}, "
            f"this code reads {SCHEMA_VERSION}"
        )
    try:
        return Run(_static(data["static"]), Hypers(**data["hypers"]))
    except (KeyError, TypeError) as error:
        raise ValueError(f"config.json does not describe a run: {error}") from None


def _static(data: dict[str, Any]) -> StaticConfig:
    model = dict(data["model"])
    model["layers"] = tuple(LayerSpec(**layer) for layer in model["layers"])
    task = dict(data["task"])
    task["params"] = tuple(
        sorted((k, tuple(v) if isinstance(v, list) else v) for k, v in task["params"].items())
    )
    start = data["start"]
    return StaticConfig(
        task=TaskRef(**task),
        model=ModelSpec(**model),
        train=TrainSpec(**data["train"]),
        optim=OptimSpec(**data["optim"]),
        start=start and StartSpec(**{**start, "source": _static(start["source"])}),
    )

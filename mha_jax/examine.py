"""What the heads of a model do, on the probe draw. Pure functions of the parameters.

Everything is kept sequence by sequence, so that the host can draw sequences again for an interval.
`look`, `compare` and `repeated` are three programs: the first one also follows a run while it
trains.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from mha_jax import loss, rng
from mha_jax.analysis import ablation, catalogue, partition, repeats, scores, similarity
from mha_jax.attention.core import visible_keys
from mha_jax.attention.stops import on_one_axis
from mha_jax.config import StaticConfig
from mha_jax.tasks import Batch, TaskSpec
from mha_jax.train import Program

_PROBE_BATCH = 32  # sequences at a time
_PROBE_FLOATS = 2**24  # and at most this many weights of a layer: a probe holds all of its batch

# One entry a layer; None for a mixer without attention weights.
Layers = list[dict[str, Any] | None]


def look(
    program: Program, params: Any, constants: dict[str, jax.Array], i: jax.typing.ArrayLike
) -> Layers:
    """Where the heads look, in batch i of the probe draw; b are its sequences.

    Returns:
      For each layer

        scores    `scores.Sums` with the last axis of `score_names`
        fixed     `scores.fixed_offsets` of every role: role -> `scores.Sums`
        roles     `partition.role_masses`
        offsets   `partition.offset_masses`
        example   weights [n, t, s] of the first sequence
    """
    batch = probe_batch(program, constants, i)
    outputs, layers = program.model.apply(params, batch.inputs, probe=_attention)
    pointers = {role: batch.pointers[role] for role in program.spec.roles}

    def of_layer(attention: Any, visible_ts: np.ndarray) -> dict[str, Any]:
        weights_bnts, scores_bnts = attention
        return {
            "scores": catalogue.layer_sums(
                weights_bnts, scores_bnts, visible_ts, batch, outputs, program.spec
            ),
            "fixed": {r: scores.fixed_offsets(p, visible_ts) for r, p in pointers.items()},
            "roles": partition.role_masses(weights_bnts, pointers, visible_ts),
            "offsets": partition.offset_masses(weights_bnts, visible_ts),
            "example": weights_bnts[0],
        }

    seen = zip(layers, visible(program.static), strict=True)
    return [None if layer is None else of_layer(layer, table) for layer, table in seen]


def compare(
    program: Program, params: Any, constants: dict[str, jax.Array], i: jax.typing.ArrayLike
) -> Layers:
    """What the heads are worth, and how alike they are, in batch i of the probe draw.

    Returns:
      For each layer

        rise   `scores.Sums` of the rise of the loss per answer with z of the head at zero
        js     `similarity.js_sums`
    """
    batch = probe_batch(program, constants, i)
    _, stops = program.model.apply(params, batch.inputs, probe=lambda stops: stops)
    n_answers = batch.loss_mask.sum((1, 2)).astype(jnp.int32)
    rises = ablation.leave_one_out(losses(program, params, batch), stops, "zero")
    out: Layers = []
    for layer, rise, table in zip(stops, rises, visible(program.static), strict=True):
        weights_bnts = _weights(layer)
        if weights_bnts is None:
            out.append(None)
            continue
        rises_of = scores.Sums(rise, jnp.zeros(len(rise)), n_answers, n_answers)
        out.append({"rise": rises_of, "js": similarity.js_sums(weights_bnts, table)})
    return out


def losses(program: Program, params: Any, batch: Batch) -> ablation.Losses:
    """The model on a batch: the loss of each sequence, summed over its answers."""

    def under(**changes: Any) -> jax.Array:
        outputs, _ = program.model.apply(params, batch.inputs, **changes)
        return loss.of_sequences(outputs, batch, program.spec)

    return under


def repeated(program: Program, params: Any) -> Layers:
    """Where the heads look in a block of random tokens that is repeated: induction, on inputs that
    nothing else explains.

    Returns:
      For each layer name -> `scores.Sums`, with the names of `repeated_forms`.
    """
    out: Layers = [{} for _ in program.static.model.layers]
    spec, tables = program.spec, visible(program.static)
    for name, (n_repeats, target) in repeated_forms(spec).items():
        start, *others = _start_first(spec)
        period = repeats.block_period(spec.length, n_repeats, len(others))
        key = rng.stream(program.static.task.seed, name)
        size = probe_size(program)
        tokens_bt = repeats.tokens(key, size, spec.length, period, others, start)
        _, layers = program.model.apply(params, tokens_bt, probe=_weights)
        for i, (weights_bnts, visible_ts) in enumerate(zip(layers, tables, strict=True)):
            found = out[i]
            if weights_bnts is None or found is None:
                out[i] = None
            else:
                keys_bts = target(spec.length, period)
                found[name] = scores.mass(weights_bnts, keys_bts, visible_ts)
    return out


def repeated_forms(spec: TaskSpec) -> dict[str, tuple[int, Callable[[int, int], jax.Array]]]:
    """Name -> repeats and target of the forms that the task has inputs for: tokens, read in their
    order, and room for a block of two.
    """
    if spec.inputs != "tokens" or spec.mask != "causal" or spec.query_token:
        return {}
    forms = {
        "repeated/induction": (2, repeats.latest),
        "repeated/prefix_matching": (4, repeats.every),
    }
    n_ids = spec.input_sizes[0] - 1
    return {k: form for k, form in forms.items() if min((spec.length - 1) // form[0], n_ids) >= 2}


def _start_first(spec: TaskSpec) -> list[int]:
    """All tokens, the start token of a repeated sequence first: a delimiter, or token 0."""
    start = spec.delimiters[0] if spec.delimiters else 0
    return [start, *(token for token in range(spec.input_sizes[0]) if token != start)]


def score_names(static: StaticConfig) -> list[tuple[str, ...]]:
    """For each layer the names of the scores that `look` returns."""
    spec = static.task.spec
    return [catalogue.names(table, spec) for table in visible(static)]


def n_batches(program: Program) -> int:
    """Batches of the probe draw."""
    return -(-program.static.train.n_probe // probe_size(program))


def probe_batch(
    program: Program, constants: dict[str, jax.Array], i: jax.typing.ArrayLike = 0
) -> Batch:
    """Batch i of the probe draw, with the constants of the test split; the first sequence of the
    first is shown in images."""
    key = rng.stream(program.static.task.seed, "probe", i)
    return program.sample(key, constants, probe_size(program))


def probe_size(program: Program) -> int:
    """Sequences of a probe batch."""
    length = program.spec.length
    largest = max(layer.n_heads for layer in program.static.model.layers) * length**2
    return max(1, min(program.static.train.n_probe, _PROBE_BATCH, _PROBE_FLOATS // largest))


def _weights(stops: dict[str, jax.Array]) -> jax.Array | None:
    """A layer's attention weights [b, n, t, s]; None where its mixer has none."""
    weights = stops.get("weights_bkgts")
    return None if weights is None else on_one_axis("weights_bkgts", weights)


def _attention(stops: dict[str, jax.Array]) -> tuple[jax.Array, jax.Array | None] | None:
    """A layer's attention weights and scores [b, n, t, s]; no scores where its mixer returns none,
    None where it has no weights.
    """
    weights_bnts, scores = _weights(stops), stops.get("scores_bkgts")
    if weights_bnts is None:
        return None
    return weights_bnts, None if scores is None else on_one_axis("scores_bkgts", scores)


def visible(static: StaticConfig) -> list[np.ndarray]:
    """Which keys the queries of each layer see, bool [t, s]."""
    spec = static.task.spec
    return [
        visible_keys(
            spec.length,
            spec.mask,
            n_context=spec.n_context,
            window=layer.window,
            n_sinks=layer.n_sinks,
        )
        for layer in static.model.layers
    ]

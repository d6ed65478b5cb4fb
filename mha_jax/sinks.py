"""What `scripts/sinks.py` tells: whether heads of a trained run have a sink, and what it costs to
evict position 0 from a cache of so many slots.

Xiao et al. 2023 (arXiv:2309.17453) keep the first positions beside a window: 4 + 1020 slots in the
place of 0 + 1024. Both sides have as many slots, so that what is won is not won by seeing more.
Unlike theirs, positions count from the beginning of the sequence, as in training.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mha_jax import evaluate, examine, loss, mixers, rng, train
from mha_jax.analysis import bootstrap, scores, targets
from mha_jax.analysis.bootstrap import SINK_EPS
from mha_jax.analysis.scores import Sums
from mha_jax.attention.stops import on_one_axis
from mha_jax.heads_text import plain
from mha_jax.run import LoadedRun
from mha_jax.terminal import table

N_SINKS = (0, 1, 4)


class Interval(NamedTuple):
    """A mean with its 95 % interval over sequences."""

    mean: float
    low: float
    high: float


class Told(NamedTuple):
    """The sinks of a run, and its loss with few slots."""

    directory: str
    step: int
    unit: str  # of the loss
    n_slots: int
    n_sequences: int
    alpha: dict[str, Interval]  # address of a head -> corrected weight on position 0
    sink_rate: float  # share of the heads whose alpha is above SINK_EPS
    loss: float  # per answer, as trained, at the positions that have lost a key
    rises: dict[int, Interval]  # first positions kept -> rise of that loss with n_slots slots
    kept: Interval  # what keeping position 0 takes off the rise, slots as before


def of_run(run: LoadedRun, n_slots: int | None = None, at: str | int = "last") -> Told:
    """Sinks on the probe draw, losses on the test draw.

    Args:
      run: a trained run.
      n_slots: keys that a query sees; None: a quarter of the task's length.
      at: which checkpoint.

    Raises:
      ValueError: no checkpoint, the corpus has changed, the run diverged, a model that has no
        windows, or n_slots that are not from 6 to one below the length.
    """
    static, spec = run.run.static, run.spec
    n_slots = spec.length // 4 if n_slots is None else n_slots
    _check(run, n_slots)
    params, constants = run.params(at), run.probe_constants()
    programs = [run.program]
    programs += [train.Program.of(_windowed(static, n_slots - n, n)) for n in N_SINKS]
    draw = rng.stream(static.task.seed, "test")
    size = evaluate.batch_size(static)

    @jax.jit
    def losses(i: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Of each sequence under each program, [b, programs], and its answers, [b]."""
        batch = run.program.sample(jax.random.fold_in(draw, i), constants, size)
        late_t = jnp.arange(spec.length) >= n_slots
        batch = batch._replace(loss_mask=batch.loss_mask * late_t[None, :, None])
        under = [
            loss.of_sequences(program.model.apply(params, batch.inputs)[0], batch, spec)
            for program in programs
        ]
        return jnp.stack(under, axis=1), batch.loss_mask.sum((1, 2))

    batches = [losses(jnp.int32(i)) for i in range(-(-static.train.n_test // size))]
    loss_bp, n_b = (np.concatenate(x).astype(np.float64) for x in zip(*batches, strict=True))
    if not n_b.sum():
        raise ValueError(
            f"{run.directory}: nothing is asked at position {n_slots} or later; use fewer slots"
        )
    rises = {n: _mean(loss_bp[:, i] - loss_bp[:, 0], n_b) for i, n in enumerate(N_SINKS, 1)}
    alpha_layers = _alpha(run, params, constants)
    return Told(
        directory=str(run.directory),
        step=run.step(at),
        unit="nats" if spec.kind == "class" else "squared error",
        n_slots=n_slots,
        n_sequences=len(n_b),
        alpha={
            f"l{layer}.n{head}": Interval(*map(float, told))
            for layer, sums in enumerate(alpha_layers)
            for head, told in enumerate(zip(*bootstrap.finish(sums)[2:5], strict=True))
        },
        sink_rate=float(bootstrap.sink_rate(alpha_layers).corrected),
        loss=float(loss_bp[:, 0].sum() / n_b.sum()),
        rises=rises,
        kept=_mean(loss_bp[:, 1] - loss_bp[:, 2], n_b),
    )


def _check(run: LoadedRun, n_slots: int) -> None:
    model, length = run.run.static.model, run.spec.length
    if run.summary.get("status") == "diverged":
        raise ValueError(f"{run.directory}: the run diverged, its weights are no numbers")
    why = ""
    if run.spec.mask != "causal":
        why = f"the {run.spec.mask} mask of the task {run.run.static.task.name!r} has no window"
    elif model.kv_quant != "none":
        why = f"a cache with model.kv_quant={model.kv_quant!r} has no window"
    for layer in model.layers:
        if layer.mixer not in mixers.own():  # one of the user's knows no window
            why = f"the mixer {layer.mixer!r} has no window"
    if why:
        raise ValueError(f"{run.directory}: {why}")
    fewest = max(N_SINKS) + 2
    if not fewest <= n_slots < length:
        raise ValueError(
            f"--window={n_slots} must be {fewest} or more and less than the task's "
            f"length={length}, so that keys are evicted"
        )


def _windowed(static: Any, window: int, n_sinks: int) -> Any:
    """The same with a window and sinks in every layer, which make no parameters."""
    layers = tuple(
        dataclasses.replace(layer, window=window, n_sinks=n_sinks) for layer in static.model.layers
    )
    return dataclasses.replace(static, model=dataclasses.replace(static.model, layers=layers))


def _alpha(run: LoadedRun, params: Any, constants: Any) -> list[Sums]:
    """Of each layer `scores.mass` on position 0, over the probe draw."""
    program, tables = run.program, examine.visible(run.run.static)
    first_1ts = targets.position(run.spec.length, 0)

    @jax.jit
    def sums(i: jax.Array) -> list[Sums]:
        batch = examine.probe_batch(program, constants, i)
        _, weights = program.model.apply(
            params, batch.inputs, probe=lambda stops: stops["weights_bkgts"]
        )
        return [
            scores.mass(on_one_axis("weights_bkgts", w_bkgts), first_1ts, visible_ts)
            for w_bkgts, visible_ts in zip(weights, tables, strict=True)
        ]

    batches = [sums(jnp.int32(i)) for i in range(examine.n_batches(program))]
    return [Sums(*map(np.concatenate, zip(*of, strict=True))) for of in zip(*batches, strict=True)]


def _mean(total_b: np.ndarray, n_b: np.ndarray) -> Interval:
    """Per answer, of sums over the answers of each sequence."""
    n_b = n_b.astype(np.int64)
    score = bootstrap.finish(Sums(total_b[:, None], np.zeros(len(n_b)), n_b, n_b))
    return Interval(*(float(x[0]) for x in score[2:5]))


def to_text(told: Told) -> str:
    """Tables for a terminal, and what they say."""
    heads = [(at, *_shown(alpha), _is_sink(alpha)) for at, alpha in told.alpha.items()]
    rows = [
        (f"{n} + {told.n_slots - n}", f"{told.loss + rise.mean:.4f}", *_shown(rise))
        for n, rise in told.rises.items()
    ]
    return "\n".join(
        [
            f"{told.directory}, step {told.step}",
            "",
            "weight on position 0 beyond that of uniform attention",
            *table(("head", "alpha", "95 % interval", ""), heads),
            f"heads with a sink, alpha above {SINK_EPS}: {told.sink_rate:.0%}",
            "",
            f"loss per answer ({told.unit}) from position {told.n_slots} on, "
            f"{told.n_sequences:,} sequences",
            *table(
                ("first + newest", "loss", "rise", "95 % interval"),
                [("as trained", f"{told.loss:.4f}", "", ""), *rows],
            ),
            "",
            verdict(told),
        ]
    )


def verdict(told: Told) -> str:
    """What keeping position 0 is worth, or that there is no sink that it could be worth it to."""
    most = max(told.alpha, key=lambda at: told.alpha[at].mean)
    if not told.sink_rate:
        return (
            f"no sink was measured: the largest alpha is {told.alpha[most].mean:.2f} ({most}), so "
            f"that these losses say nothing of what sinks are for"
        )
    evicted, kept = told.rises[0], told.kept
    line = f"without position 0 the loss rises by {evicted.mean:.4f} "
    line += f"({evicted.low:.4f} to {evicted.high:.4f}); "
    if kept.low > 0:
        return line + (
            f"kept in the place of the oldest of the window it takes {kept.mean:.4f} "
            f"({kept.low:.4f} to {kept.high:.4f}) off that"
        )
    return line + (
        f"that keeping it would help is not seen: {kept.mean:.4f} ({kept.low:.4f} to "
        f"{kept.high:.4f})"
    )


def to_json(told: Told) -> dict[str, Any]:
    """The same; what is undefined is null."""
    named = {at: alpha._asdict() for at, alpha in told.alpha.items()}
    rises = {str(n): rise._asdict() for n, rise in told.rises.items()}
    both = {"alpha": named, "rises": rises, "kept": told.kept._asdict(), "verdict": verdict(told)}
    return plain({**told._asdict(), **both})


def _shown(one: Interval) -> tuple[str, str]:
    return f"{one.mean:.4f}", f"{one.low:.4f} to {one.high:.4f}"


def _is_sink(alpha: Interval) -> str:
    return "sink" if alpha.mean > SINK_EPS else ""

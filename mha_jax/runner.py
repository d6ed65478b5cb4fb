"""The driver: trains the runs of one group, each from wherever its last checkpoint stands.

The order of operations is the same at every step: evaluate the state, save it, then update it. So
step 0 and the last step are evaluated by one rule, and a checkpoint holds a state whose evaluation
is already on record.
"""

from __future__ import annotations

import contextlib
import json
import math
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np

from mha_jax import config, decode_speed, kernel_choice, optim, runstate
from mha_jax.checkpoint import Unrestorable
from mha_jax.group import Group
from mha_jax.lane import Emit, Lane
from mha_jax.placement import lane_mode, lanes_that_fit, memory_of, n_lanes
from mha_jax.signals import Leave, Wish

_DISPATCH_S = 1.0  # about what a dispatch may take: in between a worker can be asked to leave
_TELL_S = 2.0  # between words on a run


def run_group(
    directories: list[Path], emit: Emit, environment: dict[str, Any], wish: Wish | None = None
) -> None:
    """Trains every run of `directories` to its last step. A run that fails is recorded and leaves
    the others alone.

    Args:
      directories: run directories that hold a `config.json`, all with one static config.
      emit: receives events, dicts that JSON can hold: "start", "progress", "done", "saved",
        "failed", "unrestorable", "note".
      environment: what `run.json` records of this process.
      wish: whether to save what is at work and to leave; None: to the end.

    Raises:
      Leave: as `wish` asked.
    """
    wish = wish or Wish()
    try:
        runs = [
            config.run_from_json(json.loads((d / "config.json").read_text())) for d in directories
        ]
        static, mode = runs[0].static, lane_mode()
        devices = jax.local_devices()[: len(runs)]
        most = lanes_that_fit(static, memory_of(devices[0]))
        choice = kernel_choice.choose(static, devices[0])
        n = n_lanes(len(runs), mode, len(devices), most)
        group = Group(static, n, mode, devices, choice.used)
    except Exception as error:
        _record_failures(directories, error, emit)
        return
    if choice.fallback:
        text = f"model.kernel={choice.wanted!r}: {choice.used}, since {choice.why}"
        emit({"event": "note", "text": f"{directories[0].name}: {text}"})
    told = {**environment, **group.placement.record(), "kernels": choice._asdict()}
    for start in range(0, len(runs), group.lanes):
        some = slice(start, start + group.lanes)
        lanes = _open(group, directories[some], runs[some], told, emit)
        try:
            # A dispatch has one step count: lanes that resume from different steps go one after
            # another; so do those that are saved or probed at other steps.
            for at in sorted({lane.rhythm for lane in lanes}):
                drive(group, [one for one in lanes if one.rhythm == at], at[0], emit, wish)
        except Exception as error:
            for lane in lanes:  # a retry must not find its files in use
                with contextlib.suppress(Exception):
                    lane.close()
            _record_failures([lane.directory for lane in lanes], error, emit)


def _open(
    group: Group,
    directories: list[Path],
    runs: list[config.Run],
    environment: dict[str, Any],
    emit: Emit,
) -> list[Lane]:
    """The runs that can be opened, each where it stands; the others are recorded as failed."""
    for run in runs:
        emit({"event": "start", "run": run.hash})
    try:
        fresh = group.init(group.hypers([run.hypers for run in runs]))
    except Exception as error:
        _record_failures(directories, error, emit)
        return []
    told, lanes = {**environment, "padded_lanes": group.lanes - len(runs)}, []
    for r, directory in enumerate(directories):
        try:
            lanes.append(Lane.open(directory, group.lane(fresh, r), group.spec, told, emit))
        except Exception as error:
            _record_failures([directory], error, emit)
    return lanes


def _record_failures(directories: list[Path], error: Exception, emit: Emit) -> None:
    text = f"{type(error).__name__}: {error}".splitlines()[0]
    for directory in directories:
        event = {"event": "failed", "run": directory.name[-10:], "error": text}
        if isinstance(error, Unrestorable):  # its files stay as they are
            emit({**event, "event": "unrestorable", "error": str(error)})
            continue
        try:
            if runstate.read(directory).done:
                continue
            runstate.record_failure(directory, text)
        except OSError as reason:  # a full disk, a directory that is gone
            event["error"] = f"{text} (not on record: {reason.strerror})"
        emit(event)


def drive(group: Group, lanes: list[Lane], step: int, emit: Emit, wish: Wish) -> None:
    """Carries `lanes`, all at `step`, to the last step together and writes their results.

    Raises:
      Leave: as `wish` asked; all of them are saved.
    """
    spec, train, log = group.spec, group.static.train, lanes[0].about["log"]
    probe_every = lanes[0].about["probe"]["every"]
    hypers = group.hypers([lane.run.hypers for lane in lanes])
    states = [lane.state for lane in lanes]
    states += states[-1:] * (group.lanes - len(lanes))  # padding lanes: their results are dropped
    state = jax.tree.map(lambda *leaves: np.concatenate(leaves), *states)
    trunk_ends = {lane.trunk_end for lane in lanes if lane.trunk_end}
    # Between two of these steps nothing happens that the clock may not put elsewhere.
    stops = [log["every"], train.eval_every, log["checkpoint_every"]]
    stops += [probe_every] if probe_every else []
    evaluated: list[dict[str, float]] | None = None
    on_record = step if step > 0 else None  # the step that was restored is evaluated and saved
    pace_s, told_at = math.inf, time.monotonic()  # seconds of a step; of the last word on them

    def share(lane: Lane, name: str, start: float, compiled: float) -> None:
        """Books the time since `start` to a lane, the part that compiled apart."""
        compile_s = group.compile_s - compiled
        lane.clock["compile_s"] += compile_s / len(lanes)
        lane.clock[name] += (time.perf_counter() - start - compile_s) / len(lanes)

    while True:
        # Evaluate the state.
        diverged_at = group.diverged_at(state)
        at_stop = step in trunk_ends or any(step % every == 0 for every in stops)
        lost = at_stop and bool(np.all(diverged_at[: len(lanes)] >= 0))
        over = lost or step == train.n_steps
        fresh = step != on_record and (over or step % train.eval_every == 0)
        if fresh:
            start, compiled = time.perf_counter(), group.compile_s
            evaluated = _valid(group.evaluate(state, "validation"), diverged_at)
            for lane, values in zip(lanes, evaluated, strict=False):
                lane.writer.scalars(step, {f"eval/{key}": value for key, value in values.items()})
                share(lane, "eval_s", start, compiled)

        if probe_every and step != on_record and not lost and step % probe_every == 0:
            start, compiled = time.perf_counter(), group.compile_s
            for lane, values in zip(lanes, group.follow(state), strict=False):
                lane.writer.scalars(step, values)
                share(lane, "probe_s", start, compiled)

        # Save it.
        leave = wish.asked and not over
        due = over or leave or step % log["checkpoint_every"] == 0 or step in trunk_ends
        if due and step > 0 and step != on_record and not lost:
            for r, lane in enumerate(lanes):
                own = group.lane(state, r)
                lane.save(step, own, evaluated[r][spec.metric] if fresh and evaluated else None)
        if leave:
            for lane in lanes:
                lane.close()
                emit({"event": "saved", "run": lane.run.hash, "step": step})
            raise Leave
        if over:
            break

        # Update it.
        row_at = min([train.n_steps, *(step + every - step % every for every in stops)])
        until = min([row_at, *(end for end in trunk_ends if end > step)])
        until = min(until, step + max(1, int(_DISPATCH_S / pace_s)))
        start, compiled = time.perf_counter(), group.compile_s
        state = jax.block_until_ready(group.train_chunk(state, hypers, until - step))
        wish.unsaved = True
        pace_s = (time.perf_counter() - start - (group.compile_s - compiled)) / (until - step)
        height = float(optim.schedule(until - 1, group.static.optim, train.n_steps))
        means, has_row = _means(state), [until in (row_at, lane.trunk_end) for lane in lanes]
        tell = any(has_row) or time.monotonic() > told_at + _TELL_S
        for r, lane in enumerate(lanes):
            share(lane, "train_s", start, compiled)
            if has_row[r]:
                scalars = {
                    **{f"train/{name}": float(values[r]) for name, values in means.items()},
                    "train/lr": lane.run.hypers.lr * height,
                    "time/steps_per_s": 1 / pace_s,
                }
                lane.writer.scalars(until, scalars)
            if tell:
                told_at = time.monotonic()
                emit(
                    {
                        "event": "progress",
                        "run": lane.run.hash,
                        "step": until,
                        "n_steps": train.n_steps,
                        "loss": float(means["loss"][r]),
                        "name": spec.metric,
                        "metric": evaluated[r][spec.metric] if evaluated else None,
                    }
                )
        if any(has_row):
            state = group.emptied(state, has_row + has_row[-1:] * (group.lanes - len(lanes)))
        step = until

    for lane in lanes:
        lane.checkpoints.close()
    wish.unsaved = False
    tested, heads = _valid(group.evaluate(state, "test"), diverged_at), group.examine(state)
    documents = group.document_losses(state)
    params = jax.tree.map(lambda x: x[0], group.lane(state, 0).params)
    decoding = decode_speed.of(group.program, params)
    watch = jax.device_get(state.watch)
    for r, lane in enumerate(lanes):
        bad_steps = {"count": int(watch.n_bad[r]), "first": int(watch.first_bad[r])}
        told = bad_steps if bad_steps["count"] and train.on_bad_step == "ignore" else None
        lane.finish(step, int(diverged_at[r]), tested[r], heads[r], documents[r], decoding, told)
        event = {"event": "done", "run": lane.run.hash, "name": spec.metric}
        emit({**event, "metric": tested[r][spec.metric], "diverged": bool(diverged_at[r] >= 0)})


def _means(state: Any) -> dict[str, np.ndarray]:
    """Of the steps since the last row, [r]; NaN where none counts."""
    tally = jax.device_get(state.tally)
    n = np.where(tally.n > 0, tally.n, np.nan)
    return {"loss": tally.loss / n, "grad_norm": tally.grad_norm / n}


def _valid(metrics: list[dict[str, float]], diverged_at: np.ndarray) -> list[dict[str, float]]:
    """NaN for lanes that have diverged: the largest of NaN logits is the first, which may be right
    by chance, and that is no accuracy.
    """
    return [
        dict.fromkeys(values, math.nan) if at >= 0 else values
        for values, at in zip(metrics, diverged_at, strict=True)
    ]

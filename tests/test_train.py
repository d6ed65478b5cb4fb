"""The step, the schedule, the loss: against plain numpy, and one golden step."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from synthetic import static

from mha_jax import loss, optim, rng, train
from mha_jax.config import OptimSpec
from mha_jax.tasks import Batch

pytestmark = pytest.mark.smoke  # also on the second stack of libraries

OPTIM = OptimSpec(warmup_steps=10, decay_fraction=0.2, b1=0.9, b2=0.999, eps=1e-8, clip=0.0)


def test_schedule_rises_stays_and_falls():
    height = [float(optim.schedule(step, OPTIM, 100)) for step in range(101)]
    np.testing.assert_allclose(height[:10], np.arange(1, 11) / 10, rtol=1e-6)
    assert height[10:81] == [1.0] * 71
    np.testing.assert_allclose(height[80:], np.arange(20, -1, -1) / 20, rtol=1e-6)


def test_schedule_without_decay_stays_up():
    constant = dataclasses.replace(OPTIM, decay_fraction=0.0, warmup_steps=0)
    assert [float(optim.schedule(step, constant, 100)) for step in (0, 50, 99)] == [1.0] * 3
    rising = dataclasses.replace(OPTIM, decay_fraction=0.0)
    assert float(optim.schedule(4, rising, 100)) == 0.5


def test_update_is_optax_adamw_with_lr_times_height():
    params = {"w": jnp.arange(6.0).reshape(2, 3), "b": jnp.ones(3)}
    grads = jax.tree.map(lambda p: jnp.cos(p), params)
    peer = optax.adamw(
        0.01, weight_decay=0.1, mask=lambda p: jax.tree.map(lambda x: x.ndim >= 2, p)
    )
    peer_state, state = peer.init(params), optim.init(params, OPTIM)
    theirs, ours = params, params
    for step in range(10, 14):  # the constant trunk: height one
        updates, peer_state = peer.update(grads, peer_state, theirs)
        theirs = optax.apply_updates(theirs, updates)
        ours, state = optim.update(
            grads, state, ours, jnp.int32(step), lr=0.01, weight_decay=0.1, optim=OPTIM, n_steps=100
        )
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), ours, theirs)


def test_streams_differ_by_name_and_step_and_repeat():
    def bits(*args):
        return int(jax.random.bits(rng.stream(*args)))

    assert bits(0, "train", 3) == bits(0, "train", 3)
    assert (
        len({bits(0, "train", 3), bits(0, "train", 4), bits(0, "test", 3), bits(1, "train", 3)})
        == 4
    )


def _class_batch():
    random = np.random.default_rng(0)
    outputs = random.normal(size=(3, 4, 4, 5)).astype(np.float32)
    targets = random.integers(0, 5, (3, 4, 4)).astype(np.int32)
    mask = (random.random((3, 4, 4)) < 0.6).astype(np.float32)
    return outputs, Batch(None, jnp.asarray(targets), jnp.asarray(mask), {})


def test_class_metrics_count_only_what_is_asked():
    outputs, batch = _class_batch()
    spec = dataclasses.replace(train.Program.of(static("relations")).spec, output_size=5)
    got = loss.metrics(loss.sums(jnp.asarray(outputs), batch, spec), spec)
    targets, mask = np.asarray(batch.targets), np.asarray(batch.loss_mask)
    total, right, asked = 0.0, np.zeros(4), np.zeros(4)
    for i in np.ndindex(mask.shape):
        if mask[i]:
            row = outputs[i].astype(np.float64)
            total += np.log(np.exp(row).sum()) - row[targets[i]]
            right[i[2]] += row.argmax() == targets[i]
            asked[i[2]] += 1
    assert got["loss"] == pytest.approx(total / asked.sum(), rel=1e-5)
    assert got["accuracy"] == pytest.approx(right.sum() / asked.sum())
    for o, name in enumerate(spec.outputs):
        assert got[f"accuracy/{name}"] == pytest.approx(right[o] / asked[o])


def test_r2_and_nmse_are_those_of_the_whole_draw_not_a_mean_over_batches():
    random = np.random.default_rng(1)
    spec = train.Program.of(static("taps")).spec
    target = random.normal(1.0, 2.0, (8, 5, 1, 16)).astype(np.float32)
    output = (target + random.normal(size=target.shape)).astype(np.float32)
    mask = np.ones((8, 5, 1), np.float32)
    parts = [
        loss.sums(
            jnp.asarray(output[i]),
            Batch(None, jnp.asarray(target[i]), jnp.asarray(mask[i]), {}),
            spec,
        )
        for i in (slice(0, 2), slice(2, 8))
    ]
    got = loss.metrics({key: parts[0][key] + parts[1][key] for key in parts[0]}, spec)
    error = ((output - target).astype(np.float64) ** 2).mean()
    spread = target.reshape(-1, 16).astype(np.float64).var(0).mean()
    assert got["r2"] == pytest.approx(1 - error / spread, rel=1e-4)
    nmse = loss.metrics(parts[0], dataclasses.replace(spec, metric="nmse"))
    assert nmse["nmse"] == pytest.approx(1 - loss.metrics(parts[0], spec)["r2"])


def test_an_empty_count_is_nan_not_zero():
    outputs, batch = _class_batch()
    spec = dataclasses.replace(train.Program.of(static("relations")).spec, output_size=5)
    nothing = batch._replace(loss_mask=jnp.zeros_like(batch.loss_mask))
    assert np.isnan(loss.metrics(loss.sums(jnp.asarray(outputs), nothing, spec), spec)["accuracy"])


HYPERS = train.HyperArrays(jnp.uint32(1), jnp.uint32(2), jnp.float32(3e-3), jnp.float32(0.0))


def test_golden_step():
    """The numbers of one step on `relations`.

    They may be updated when the model, its initial weights, the task's generator or the optimizer
    change on purpose; such a change makes every stored result another experiment's, so raise
    `config.SCHEMA_VERSION` with it.
    """
    program = train.Program.of(static("relations"))
    state, scalars = train.train_step(program, train.init(program, HYPERS), HYPERS, {})
    change = jax.tree.map(lambda a, b: a - b, state.params, train.init(program, HYPERS).params)
    got = {**{k: float(v) for k, v in scalars.items()}, "update": float(optax.tree.norm(change))}
    # 1e-4: sums of a few thousand float32 terms in another order, on another stack
    assert got == pytest.approx(GOLDEN, rel=1e-4)


GOLDEN = {"loss": 2.7750163, "grad_norm": 0.043707602, "update": 0.0023145941}


def test_every_step_has_a_batch_of_its_own():
    program = train.Program.of(static("relations"))
    state = train.init(program, HYPERS)
    losses = [
        float(train.train_step(program, state._replace(step=jnp.int32(s)), HYPERS, {})[1]["loss"])
        for s in range(4)
    ]
    assert len(set(losses)) == 4


def test_diverged_at_is_the_first_bad_step_and_stays():
    program = train.Program.of(static("relations"))
    wild = HYPERS._replace(lr=jnp.float32(1e30))
    state = train.train_chunk(program, train.init(program, wild), wild, {}, 8)
    first = int(state.watch.first_bad)
    assert 0 < first < 8
    state = train.train_chunk(program, state, wild, {}, 3)
    assert int(state.watch.first_bad) == first and int(state.watch.n_bad) == 11 - first


def _with(**changes) -> train.Program:
    spec = static("relations")
    return train.Program.of(
        dataclasses.replace(spec, train=dataclasses.replace(spec.train, **changes))
    )


@pytest.mark.parametrize("policy", ["stop", "ignore"])
def test_a_bad_step_is_counted_and_its_update_taken_or_left_out(monkeypatch, policy):
    """A loss that is not a number at the third step."""
    program, mean_loss = _with(on_bad_step=policy), train.loss.mean_loss
    step = [0]
    monkeypatch.setattr(
        train.loss, "mean_loss", lambda sums: mean_loss(sums) * (np.nan if step[0] == 2 else 1.0)
    )
    state = train.init(program, HYPERS)
    for step[0] in range(5):
        before, (state, scalars) = state, train.train_step(program, state, HYPERS, {})
        if step[0] == 2:
            assert np.isnan(scalars["loss"])
            same = jax.tree.map(
                np.array_equal, (before.params, before.opt), (state.params, state.opt)
            )
            assert all(jax.tree.leaves(same)) == (policy == "ignore")
    assert int(state.step) == 5 and int(state.watch.first_bad) == 2
    finite = all(np.isfinite(x).all() for x in jax.tree.leaves(state.params))
    assert finite == (policy == "ignore")
    assert int(state.watch.n_bad) == (1 if policy == "ignore" else 3)
    assert int(state.tally.n) == (4 if policy == "ignore" else 5)
    assert np.isfinite(state.tally.loss) == (policy == "ignore")


def test_a_loss_explodes_past_so_many_times_the_first_one_or_one(monkeypatch):
    mean_loss, times = train.loss.mean_loss, [1.0]
    monkeypatch.setattr(train.loss, "mean_loss", lambda sums: mean_loss(sums) * times[0])

    def first_bad(explode: float, factors: list[float]) -> int:
        program = _with(explode=explode)
        state = train.init(program, HYPERS)
        for times[0] in factors:
            state, _ = train.train_step(program, state, HYPERS, {})
        return int(state.watch.first_bad)

    assert first_bad(50.0, [1, 1, 100, 1]) == 2  # 100 times the first loss, of 2.8
    assert first_bad(50.0, [1, 1, 40, 1]) == -1
    assert first_bad(0.0, [1, 1e6, 1]) == -1
    assert first_bad(50.0, [1e-3, 1, 10]) == -1  # the first loss counts as 1: 50 is the bound
    assert first_bad(50.0, [1e-3, 1, 20]) == 2

"""A group: one compilation, independent lanes, exact continuation."""

from __future__ import annotations

import dataclasses

import jax
import numpy as np
import pytest
from synthetic import static

from mha_jax import train
from mha_jax.config import Hypers
from mha_jax.group import Group

pytestmark = pytest.mark.smoke  # also on the second stack of libraries

SMALL = static("relations", n_steps=40)
RUNS = [
    Hypers(seed, 7, lr, wd) for seed, lr, wd in ((0, 3e-3, 0.0), (1, 1e-3, 0.1), (2, 3e-3, 0.0))
]


def _train(group: Group, hypers: list[Hypers], *chunks: int) -> train.State:
    arrays = group.hypers(hypers)
    state = group.init(arrays)
    for n in chunks:
        state = group.train_chunk(state, arrays, n)
    return jax.device_get(state)


def _equal(a: train.State, b: train.State) -> None:
    jax.tree.map(np.testing.assert_array_equal, a, b)


def test_any_split_into_chunks_is_the_same_run_bit_for_bit():
    group = Group(SMALL)
    whole = _train(group, RUNS[:1], 40)
    assert int(whole.step[0]) == 40
    _equal(whole, _train(group, RUNS[:1], 1, 16, 23))
    _equal(whole, _train(Group(SMALL), RUNS[:1], 40))


def test_a_vmapped_lane_is_the_run_alone():
    together = _train(Group(SMALL, lanes=3, mode="vmap"), RUNS, 20)
    for r, hypers in enumerate(RUNS):
        alone = _train(Group(SMALL), [hypers], 20)
        jax.tree.map(
            # batched products sum in another order: 1e-7 a step
            lambda many, one, r=r: np.testing.assert_allclose(many[r], one[0], atol=1e-5),
            together.params,
            alone.params,
        )


def test_one_trace_serves_all_runs_and_chunk_lengths(monkeypatch):
    traces = []
    original = train.train_step
    monkeypatch.setattr(train, "train_step", lambda *args: traces.append(1) or original(*args))
    group = Group(SMALL)
    for hypers in RUNS:
        _train(group, [hypers], 2, 5)
    assert len(traces) == 1
    _train(Group(static("relations", 2, n_steps=40)), RUNS[:1], 2)
    assert len(traces) == 2


def test_a_diverged_lane_harms_nobody():
    group = Group(SMALL, lanes=3, mode="vmap")
    wild = Hypers(0, 7, 1e30, 0.0)
    state = _train(group, [RUNS[0], wild, RUNS[2]], 20)
    calm = _train(group, [RUNS[0], RUNS[1], RUNS[2]], 20)
    lost_at = state.watch.first_bad
    assert lost_at[1] >= 0 and list(lost_at[[0, 2]]) == [-1, -1]
    for r in (0, 2):
        jax.tree.map(lambda a, b, r=r: np.testing.assert_array_equal(a[r], b[r]), state, calm)


def test_missing_lanes_are_padded():
    group = Group(SMALL, lanes=3, mode="vmap")
    assert group.hypers(RUNS[:2]).lr.shape == (3,)  # another shape would compile again
    two, three = _train(group, RUNS[:2], 5), _train(group, RUNS, 5)
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a[:2], b[:2]), two, three)
    with pytest.raises(ValueError, match="4 runs do not fit 3 lanes"):
        group.hypers([*RUNS, RUNS[0]])


def test_evaluation_is_the_same_for_every_run_and_split_apart():
    alike = dataclasses.replace(SMALL.train, n_eval=256, n_test=256)
    group = Group(dataclasses.replace(SMALL, train=alike))
    state = group.init(group.hypers(RUNS[:1]))
    first, again = group.evaluate(state, "validation"), group.evaluate(state, "validation")
    assert first == again and first != group.evaluate(state, "test")


def test_analysis_covers_every_head_and_its_rows_sum_to_one():
    group = Group(static("relations", 4, 2, n_steps=40))
    (layer,) = group.examine(group.init(group.hypers(RUNS[:1])))[0]
    weights_nts = layer["example"]
    assert weights_nts.shape == (4, 13, 13)
    np.testing.assert_allclose(weights_nts.sum(-1), 1, atol=1e-6)
    assert layer["roles"]["mass"].shape == (256, 4, 5)
    assert layer["rise"].value.shape == (256, 4)


def test_a_corpus_that_has_changed_is_refused():
    spec = static("text")  # with a made-up hash
    with pytest.raises(ValueError, match="the corpus of task 'text' has changed"):
        Group(spec)


def test_documents_are_evaluated_one_by_one():
    spec = static("text", 2, length=32)
    spec = dataclasses.replace(spec, task=dataclasses.replace(spec.task, data_hash=""))
    group = Group(spec)
    state = group.init(group.hypers(RUNS[:1]))
    (found,) = group.document_losses(state)
    documents = spec.task.documents()
    assert list(found) == list(documents.names)
    params = jax.tree.map(lambda x: x[0], state.params)
    name, i = documents.names[5], 5
    rows = documents.index == i
    outputs, _ = group.program.model.apply(params, documents.inputs[rows])
    logits = np.asarray(outputs[:, :, 0], np.float64)
    log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    picked = np.take_along_axis(log_p, documents.targets[rows], axis=-1)[..., 0]
    mask = documents.loss_mask[rows][..., 0]
    assert found[name][1] == mask.sum()
    np.testing.assert_allclose(found[name][0], -(picked * mask).sum(), rtol=1e-5)
    assert Group(SMALL).document_losses(state) == [{}]

"""A loaded run: parameters of each checkpoint, outputs, attention with its tokens and kv heads."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mha_jax
from mha_jax import examine
from mha_jax.checkpoint import CheckpointError
from mha_jax.run import LoadedRun
from tests.saved import STEPS, program_and_state, saved
from tests.synthetic import make_run, static


@pytest.fixture(scope="module")
def relations(tmp_path_factory: pytest.TempPathFactory) -> LoadedRun:
    return saved(tmp_path_factory.mktemp("relations"), static("relations", 4, 2))


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> LoadedRun:
    return saved(tmp_path_factory.mktemp("text"), static("text", 2, length=8), steps=(10,))


@pytest.fixture(scope="module")
def english(tmp_path_factory: pytest.TempPathFactory) -> LoadedRun:
    return saved(tmp_path_factory.mktemp("english"), static("english", 4, 1), steps=(10,))


def test_what_a_run_knows(tmp_path: Path) -> None:
    run = saved(tmp_path, static("copy", 2), steps=())
    assert run.run.static == static("copy", 2) and run.spec.metric == "accuracy"
    assert run.config["static"]["task"]["name"] == "copy" and run.summary["status"] == "done"
    assert str(run.directory) in repr(run) and run.steps() == []
    with pytest.raises(ValueError, match="no checkpoint yet"):
        run.params()


def test_parameters_of_each_checkpoint(relations: LoadedRun) -> None:
    run = relations
    assert run.steps() == list(STEPS)
    for at, seed in (("last", 30), ("best", 20), (10, 10), (np.int64(30), 30)):
        _, state = program_and_state(run.run.static, seed)
        got = run.params(at)
        assert jax.tree.structure(got) == jax.tree.structure(state.params)
        assert jax.tree.all(jax.tree.map(np.array_equal, got, state.params)), at
    with pytest.raises(CheckpointError, match="15"):
        run.params(15)
    with pytest.raises(ValueError, match="at='first' must be 'last', 'best' or a step"):
        run.params("first")


def test_outputs(relations: LoadedRun, assert_close: Any) -> None:
    run = relations
    batch = run.probe_batch()
    program, state = program_and_state(run.run.static, 20)
    want, _ = jax.jit(program.model.apply)(state.params, batch.inputs)
    got = run.apply(batch, at="best")
    assert isinstance(got, np.ndarray) and got.shape == (32, 13, 4, 16)
    assert_close(got, want)
    assert_close(run.apply(np.asarray(batch.inputs)[:3], at="best"), want[:3])


def test_what_is_computed_on_the_way(relations: LoadedRun, assert_close: Any) -> None:
    run = relations
    batch = run.probe_batch()
    plain = run.apply(batch)
    outputs, found = run.apply(batch, want=["weights", "l0.n3.z", "l0.k1.v", "resid"])
    assert_close(outputs, plain)
    assert list(found) == ["weights", "l0.n3.z", "l0.k1.v", "resid"]
    (weights_bnts,) = found["weights"]
    maps = run.attention()
    assert_close(weights_bnts[0], maps.weights[0])
    # Query head 3 of 4 reads kv head 1 of 2.
    assert_close(found["l0.n3.z"], weights_bnts[:, 3] @ found["l0.k1.v"])
    only_outputs, nothing = run.apply(batch, want=[])
    assert_close(only_outputs, plain)
    assert nothing == {}


def test_patching_between_two_inputs(relations: LoadedRun, assert_close: Any) -> None:
    """With every head's z of another sequence, the one layer's output is that of the other."""
    run = relations
    inputs = run.probe_batch().inputs
    here, there = inputs[:4], inputs[4:8]
    other, found = run.apply(there, want=["z"])
    patched = {f"l0.n{head}.z": found["z"][0][:, :, head] for head in range(4)}
    assert_close(run.apply(here, replace=patched), other)
    one = run.apply(here, replace={"l0.n0.z": patched["l0.n0.z"]})
    assert np.abs(one - other).max() > 1e-3 and np.abs(one - run.apply(here)).max() > 1e-3
    with pytest.raises(ValueError, match="z belongs to a query head; write l0.n<head>.z"):
        run.apply(here, replace={"l0.k0.z": 0.0})
    with pytest.raises(ValueError, match="layer 0 has 2 kv heads"):
        run.apply(here, want=["l0.k2.k"])
    with pytest.raises(ValueError, match="want='weights' must be a list"):
        run.apply(here, want="weights")


def test_attention_is_that_of_the_analysis(relations: LoadedRun, assert_close: Any) -> None:
    """The first sequence of the probe draw, with the heads in the order of heads.csv."""
    maps, static = relations.attention(), relations.run.static
    program, state = program_and_state(static, 30)
    constants = static.task.constants("test")
    (layer,) = jax.jit(lambda p, c: examine.look(program, p, c, 0))(state.params, constants)
    assert isinstance(maps.weights, np.ndarray) and maps.weights.shape == (1, 4, 13, 13)
    assert_close(maps.weights[0], layer["example"])
    assert_close(maps.weights.sum(-1), np.ones((1, 4, 13)))
    assert maps.kv_head == [[0, 0, 1, 1]] and maps.step == 30


def test_attention_of_a_text(text: LoadedRun, assert_close: Any) -> None:
    maps = text.attention("héad\n", at=10)
    assert maps.tokens == ["h", "\\xc3", "\\xa9", "a", "d", "\\n"]
    assert maps.weights.shape == (1, 2, 6, 6) and maps.step == 10
    assert np.all(np.triu(maps.weights, 1) == 0)  # causal: a position reads the past and itself
    again = text.attention(list("héad\n".encode()), at=10)
    assert_close(maps.weights, again.weights)


def test_attention_of_words(english: LoadedRun, assert_close: Any) -> None:
    text = "the cat sat on the warm mat ."
    maps = english.attention(text)
    assert maps.tokens == text.split()
    assert isinstance(maps.weights, np.ndarray) and maps.weights.shape == (1, 4, 8, 8)
    assert_close(maps.weights.sum(-1), np.ones((1, 4, 8)))
    # The same words with other values are other inputs; their values are written.
    inputs = english.run.static.task.encode(text)
    again = english.attention(inputs)
    assert again.tokens[:2] == ["the:0", "cat:1"]
    assert_close(again.weights, maps.weights)
    inputs[:, 1] = 15
    assert np.abs(english.attention(inputs).weights - maps.weights).max() > 1e-3


@pytest.mark.parametrize(
    ("of", "message"),
    [
        ("the cat sat on the wram mat .", "'wram'; nearest are warm, "),
        ("", "empty"),
        ("the " * 13, "13 positions, but the model has learned 12: give at most 12"),
    ],
)
def test_words_that_cannot_be_read(english: LoadedRun, of: str, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        english.attention(of)
    assert "\n" not in str(caught.value)


def test_attention_of_other_inputs(relations: LoadedRun, assert_close: Any) -> None:
    run = relations
    batch = run.probe_batch()
    third = run.attention(batch, index=2)
    assert_close(third.weights, run.attention(np.asarray(batch.inputs)[2]).weights)
    assert_close(third.weights, run.attention(batch, index=-30).weights)
    assert np.abs(third.weights - run.attention(batch).weights).max() > 0.01
    word, value = np.asarray(batch.inputs)[2, 0]
    assert third.tokens[0] == f"{run.spec.vocab[word]}:{value}"


def test_attention_of_vectors_and_a_query_token(tmp_path: Path) -> None:
    run = saved(tmp_path, static("d_retrieval", 2, 1, 8), steps=(10,))
    maps = run.attention()
    assert maps.weights.shape == (1, 2, 17, 17)
    assert maps.tokens == [*(f"x{i}" for i in range(16)), "query"]
    assert np.all(maps.weights[..., -1] == 0)  # nobody reads the query token
    with pytest.raises(ValueError, match="18 positions, but the model has learned 17: .* most 16"):
        run.attention(np.zeros((17, 4)))
    with pytest.raises(ValueError, match="empty"):
        run.attention(np.zeros((0, 4)))


def test_layers_with_other_head_counts(tmp_path: Path) -> None:
    layers = tuple(static("copy", n, k).model.layers[0] for n, k in ((4, 2), (2, 1)))
    maps = saved(tmp_path, static("copy", 4, model={"layers": layers}), steps=(10,)).attention()
    assert [w.shape for w in maps.weights] == [(4, 24, 24), (2, 24, 24)]
    assert maps.kv_head == [[0, 0, 1, 1], [0, 0]]


def test_length(text: LoadedRun, tmp_path: Path) -> None:
    assert text.attention("12345678").weights.shape[-1] == 8
    with pytest.raises(ValueError, match="9 positions, but the model has learned 8"):
        text.attention("1234567é")
    longer = static("text", 2, length=8, model={"positions": "rope"})
    rope = saved(tmp_path, longer, steps=(10,))
    assert rope.attention("123456789").weights.shape[-1] == 9


@pytest.mark.parametrize(
    ("of", "message"),
    [
        ("a text", "the task 'relations' reads no text; give inputs"),
        (np.zeros((13, 3), int), r"\(1, 13, 3\) do not fit"),
        (np.zeros(13, int), r"\(13,\) do not fit"),
        (np.zeros((13, 2)), "integer ids, not float64"),
        (np.full((13, 2), 16), "below"),
        (np.full((13, 2), -1), "below"),
        (np.zeros((0, 2), int), "empty"),
        (np.zeros((14, 2), int), "14 positions"),
    ],
)
def test_inputs_that_do_not_fit(relations: LoadedRun, of: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        relations.attention(of)
    assert "\n" not in str(caught.value)


def test_empty_text_and_missing_sequence(text: LoadedRun) -> None:
    with pytest.raises(ValueError, match="empty"):
        text.attention("")
    with pytest.raises(ValueError, match="index=2: there are 2 sequences"):
        text.attention(np.zeros((2, 5), int), index=2)


def test_a_changed_corpus_is_not_passed_off_as_the_old_one(text: LoadedRun) -> None:
    """The synthetic run records a hash that no text has."""
    with pytest.raises(ValueError, match="corpus of task 'text' has changed"):
        text.attention()


def test_a_mixer_without_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mha_jax.attention.grouped import Attention

    run = saved(tmp_path, static("copy", 2), steps=(10,))
    mix = Attention.mix

    def without(self: Any, *args: Any, **kwargs: Any) -> Any:
        y, stops = mix(self, *args, **kwargs)
        return y, {k: v for k, v in stops.items() if k != "weights_bkgts"}

    monkeypatch.setattr(Attention, "mix", without)
    with pytest.raises(ValueError, match="layer 0: mixer 'grouped' has no attention weights"):
        run.attention(jnp.zeros(5, jnp.int32))


def test_a_directory_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not a run directory"):
        mha_jax.load_run(tmp_path)
    directory = make_run(tmp_path, static("copy", 2), 0.5)
    text = (directory / "config.json").read_text()
    (directory / "config.json").write_text(text.replace('"batch_size": 64', '"batch_size": 65'))
    with pytest.raises(ValueError, match="hash") as caught:
        mha_jax.load_run(directory)
    assert "\n" not in str(caught.value)

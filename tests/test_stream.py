"""A run that goes on with a prompt: text in, text out."""

from __future__ import annotations

from typing import Any

import pytest

from mha_jax import stream
from mha_jax.decode import Decoder
from mha_jax.run import LoadedRun
from mha_jax.sampling import Sampling
from tests.saved import saved
from tests.synthetic import static


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> LoadedRun:
    spec = static("text", 2, length=8, model={"positions": "rope", "d_model": 16})
    return saved(tmp_path_factory.mktemp("text"), spec, steps=(10,))


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> LoadedRun:
    return saved(tmp_path_factory.mktemp("copy"), static("copy", 2), steps=(10,))


def test_the_text_is_what_was_shown(text: LoadedRun) -> None:
    shown: list[str] = []
    told = stream.go_on(text, "ab é", n_new=20, seed=3, show=shown.append)
    assert "".join(shown) == told["text"] and told["text"].startswith("ab é")
    assert told["n_prompt"] == 5 and told["n_new"] == 20 and told["capacity"] == 64
    assert told["cache_bytes"] == 64 * 2 * 64 * 4  # two heads of width 32
    n_params = 4 * 16 * 64 + 16 * 256  # wq, wk, wv, wo and the read-out
    assert told["bytes_read_per_step"] == 4 * n_params + told["cache_bytes"]
    assert told["tokens_per_s"] is None and told["memory_bytes_per_s"] > 0
    again = stream.go_on(text, "ab é", n_new=20, seed=3, sampling=Sampling())
    assert again["text"] == told["text"]
    hot = {"n_new": 40, "sampling": Sampling(5.0)}
    texts = {stream.go_on(text, "ab", seed=seed, **hot)["text"] for seed in (1, 2)}
    assert len(texts) == 2
    assert stream.go_on(text, "ab", seed=1, **hot)["share_of_memory_speed"] > 0


def test_the_cache_grows_on_the_way(text: LoadedRun) -> None:
    """The same text as with room for all of it from the start."""
    told = stream.go_on(text, "ab", n_new=80, seed=3, sampling=Sampling(5.0))
    assert told["capacity"] == 128 and told["n_new"] == 80
    one = Decoder(text.program, text.params("last"))
    state = one.prefill([stream.ids(text, "ab")], 128)
    made, _ = one.generate(state, 80, Sampling(5.0), seed=3)
    assert told["text"] == "ab" + bytes(made[0].tolist()).decode("utf-8", "replace")


def test_a_stop_token_ends_it(copy: LoadedRun) -> None:
    whole = stream.go_on(copy, "3 4", n_new=10)["text"].split()
    stop = whole[4]
    told = stream.go_on(copy, "3 4", n_new=10, stop=stop)
    assert told["text"].split() == whole[: whole.index(stop, 2) + 1]


def test_bytes_are_shown_when_they_make_a_character(text: LoadedRun) -> None:
    shown: list[str] = []
    write = stream.Writer(text, shown.append)
    for byte in "é".encode():
        write([byte])
    write([0xC3])
    write([], final=True)
    assert shown == ["", "é", "", "\ufffd"] and write.text == "é\ufffd"


def test_words_of_a_task(copy: LoadedRun) -> None:
    assert stream.ids(copy, "0 15 |").tolist() == [0, 15, 16]
    told = stream.go_on(copy, "3 4 5", n_new=4)
    words = told["text"].split()
    assert words[:3] == ["3", "4", "5"] and len(words) == 7
    with pytest.raises(ValueError, match="'x' is no word of the task 'copy'"):
        stream.ids(copy, "0 x")


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ({"prompt": ""}, "the prompt is empty"),
        ({"prompt": "\udcff\udcfe"}, r"'\\udcff\\udcfe' has bytes that are no UTF-8"),
        ({"prompt": "0 1", "stop": "1 2"}, "must be one token, and is 2"),
        ({"prompt": "0 1", "n_new": 100}, "102 tokens, but the model has learned"),
    ],
)
def test_what_does_not_fit_is_told(copy: LoadedRun, how: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        stream.go_on(copy, **how)


def test_a_task_that_does_not_go_on_is_refused(tmp_path: Any) -> None:
    run = saved(tmp_path, static("relations", 2), steps=(10,))
    with pytest.raises(ValueError, match="does not predict its next token"):
        stream.go_on(run, "a")

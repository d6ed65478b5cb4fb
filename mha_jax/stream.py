"""A trained run goes on with a prompt: text in, text out, and what that took."""

from __future__ import annotations

import codecs
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from mha_jax.bench import bandwidth
from mha_jax.decode import Decoder
from mha_jax.run import LoadedRun
from mha_jax.sampling import Sampling
from mha_jax.values import nearest
from mha_jax.values import show as shown

_CHUNK = 16  # tokens of a dispatch, after which they are shown


def ids(run: LoadedRun, text: str) -> np.ndarray:
    """The tokens of a text, int32 [t]: as the task encodes it, else its words in the vocabulary.

    Raises:
      ValueError: what the task does not know.
    """
    task, vocab = run.run.static.task, run.spec.vocab
    if not text.isprintable() and any(0xD800 <= ord(c) < 0xE000 for c in text):
        raise ValueError(f"{shown(text)} has bytes that are no UTF-8; write it in UTF-8")
    if hasattr(task.module, "encode"):
        return np.asarray(task.encode(text))
    if not vocab:
        raise ValueError(f"the task {task.name!r} has no words to write a prompt in")
    numbers = {word: i for i, word in enumerate(vocab)}
    for word in text.split():
        if word not in numbers:
            fix = nearest(word, list(vocab)) or f"; its words are {' '.join(vocab[:20])} ..."
            raise ValueError(f"{shown(word)} is no word of the task {task.name!r}{fix}")
    return np.array([numbers[word] for word in text.split()], np.int32)


class Writer:
    """Tokens to text, as they come: bytes are held back until they make a character."""

    def __init__(self, run: LoadedRun, show: Callable[[str], None]):
        self._bytes = run.run.static.task.name == "text"
        self._vocab, self._show = run.spec.vocab, show
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.text = ""

    def __call__(self, tokens: Sequence[int], final: bool = False) -> None:
        """Shows what the tokens add to the text."""
        if self._bytes:
            fresh = self._decoder.decode(bytes(tokens), final)
        else:
            words = [self._vocab[token] if self._vocab else str(token) for token in tokens]
            fresh = "".join(f"{word} " for word in words)
        self.text += fresh
        self._show(fresh)


def go_on(
    run: LoadedRun,
    prompt: str,
    *,
    at: str | int = "last",
    n_new: int = 200,
    sampling: Sampling = Sampling(),  # noqa: B008 (frozen)
    seed: int = 0,
    stop: str | None = None,
    show: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """Shows the prompt and up to `n_new` tokens after it.

    Returns:
      The text, the numbers of tokens, and of the largest `capacity` at which a dispatch was timed
      `cache_bytes`, `bytes_read_per_step`, `tokens_per_s` (of the fastest that compiled nothing;
      None: there was none), `memory_bytes_per_s`, measured here too, and `share_of_memory_speed`,
      what the step reads over what memory could have given meanwhile; above 1 where the processor's
      own cache holds what is read.

    Raises:
      ValueError: a run that does not decode, a prompt or stop that the task does not know, or that
        does not fit; no checkpoint.
    """
    decoder = Decoder(run.program, run.params(at))
    tokens, stop_id = ids(run, prompt), None
    if not len(tokens):
        raise ValueError("the prompt is empty; give one token at least")
    if stop is not None:
        found = ids(run, stop)
        if len(found) != 1:
            raise ValueError(f"stop={shown(stop)} must be one token, and is {len(found)}")
        stop_id = int(found[0])
    decoder.capacity(len(tokens) + n_new)  # refuses what the model has no positions for
    state = decoder.prefill([tokens], decoder.capacity(len(tokens)))
    write = Writer(run, show)
    write(tokens.tolist())
    seconds: dict[int, list[float]] = {}  # of a step, by the capacity at which it was timed
    n_made = 0
    while n_made < n_new and not bool(state.over_b[0]):
        n = min(_CHUNK, n_new - n_made)
        room = decoder.capacity(len(tokens) + n_made + n)
        if room > state.capacity:  # every slot is read at every step, so no more than are needed
            state = decoder.grown(state, room)
        start = time.perf_counter()
        made, state = decoder.generate(state, n, sampling, seed=seed, stop=stop_id)
        jax.block_until_ready(state)
        took = time.perf_counter() - start
        fresh = [token for token in made[0].tolist() if token >= 0]
        if n == _CHUNK:  # another number of tokens is another program
            seconds.setdefault(state.capacity, []).append(took / len(fresh))
        n_made += len(fresh)
        write(fresh)
    write([], final=True)
    # The first of each capacity compiles.
    timed = {capacity: min(rest) for capacity, (_, *rest) in seconds.items() if rest}
    at = max(timed, default=state.capacity)
    per_step, limit = timed.get(at), bandwidth.read_bytes_per_s()
    read = decoder.bytes_read_per_step(1, at)
    return {
        "text": write.text,
        "n_prompt": len(tokens),
        "n_new": n_made,
        "capacity": at,
        "cache_bytes": decoder.cache_bytes(1, at),
        "bytes_read_per_step": read,
        "tokens_per_s": per_step and 1 / per_step,
        "memory_bytes_per_s": limit,
        "share_of_memory_speed": per_step and read / per_step / limit,
    }

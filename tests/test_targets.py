"""Targets of the head scores on sequences small enough to read, and against a slow loop."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mha_jax.analysis import repeats, targets


def keys_of(target: jax.Array, b: int = 0) -> list[list[int]]:
    """For each query of sequence b the keys that count."""
    return [np.flatnonzero(row).tolist() for row in np.asarray(target)[b]]


def test_offset_and_position_go_from_query_to_key() -> None:
    assert keys_of(targets.offset(3, -1)) == [[], [0], [1]]
    assert keys_of(targets.offset(3, 1)) == [[1], [2], []]
    assert keys_of(targets.offset(3, -2)) == [[], [], [0]]
    assert keys_of(targets.position(3, 0)) == [[0], [0], [0]]
    assert keys_of(targets.position(3, 2)) == [[2], [2], [2]]


def test_tokens_that_count() -> None:
    tokens = jnp.array([[5, 7, 5, 5, 6]])
    classes = jnp.array([[0, 1, 0, 0, 0]])
    assert keys_of(targets.same_token(tokens)) == [[2, 3], [], [0, 3], [0, 2], []]
    # The 5s are one word: of their class they have 6 alone.
    assert keys_of(targets.same_class(classes, tokens)) == [[4], [], [4], [4], [0, 2, 3]]
    # Behind position 0 stands 1; behind position 2 stands 3, which for query 3 is the query itself.
    assert keys_of(targets.induction(tokens)) == [[], [], [1], [1], []]
    assert keys_of(targets.token_in(tokens, (6, 7))) == [[1, 4]] * 5
    assert keys_of(targets.token_in(tokens, ())) == [[]] * 5


def test_induction_of_a_run_of_one_token() -> None:
    """Every key behind an earlier copy counts but the query, and the first key never does."""
    assert keys_of(targets.induction(jnp.array([[4, 4, 4, 4]]))) == [[], [], [1], [1, 2]]


def test_pointers() -> None:
    one, other = jnp.array([[-1, 0, 0], [2, 2, -1]]), jnp.array([[-1, 0, 1], [-1, 0, -1]])
    assert keys_of(targets.pointer(one), 1) == [[2], [2], []]
    union = targets.pointed({"one": one, "other": other})
    assert keys_of(union, 0) == [[], [0], [0, 1]] and keys_of(union, 1) == [[2], [0, 2], []]
    with pytest.raises(ValueError, match="no role"):
        targets.pointed({})


@pytest.mark.parametrize("n_tokens", [1, 2, 6])
def test_against_a_slow_loop(n_tokens: int) -> None:
    b, length = 3, 8
    rng = np.random.default_rng(n_tokens)
    tokens, classes = rng.integers(n_tokens, size=(b, length)), rng.integers(2, size=(b, length))
    got = jax.jit(
        lambda x, c: (targets.same_token(x), targets.same_class(c, x), targets.induction(x))
    )(tokens, classes)
    for i in range(b):
        for t in range(length):
            for s in range(length):
                x, c = tokens[i].tolist(), classes[i].tolist()
                want = (
                    s != t and x[s] == x[t],
                    c[s] == c[t] and x[s] != x[t],
                    s < t and s > 0 and x[s - 1] == x[t],
                )
                assert tuple(bool(target[i, t, s]) for target in got) == want, (i, t, s)


def test_repeats_as_drawn_in_the_module() -> None:
    assert keys_of(repeats.latest(8, 3)) == [[], [], [], [], [2], [3], [4], [5]]
    assert keys_of(repeats.every(8, 3)) == [[], [], [], [], [2], [3], [4], [2, 5]]


def test_repeated_tokens(getkey) -> None:
    ids = (3, 4, 6, 7, 8, 9)
    key = getkey()
    draw = jax.jit(repeats.tokens, static_argnums=(1, 2, 3, 4, 5))
    drawn = np.asarray(draw(key, 50, 12, 4, ids, 2))
    assert drawn.shape == (50, 12) and drawn.dtype == np.int32
    assert (drawn[:, 0] == 2).all() and set(drawn[:, 1:].flat) == set(ids)
    assert (drawn[:, 5:] == drawn[:, 1:-4]).all()  # again and again, to the last position
    assert all(len(set(block)) == 4 for block in drawn[:, 1:5])
    assert len(np.unique(drawn, axis=0)) > 40  # of 360 blocks
    assert (np.asarray(draw(key, 7, 12, 4, ids, 2)) == drawn[:7]).all()
    assert (np.asarray(draw(getkey(), 50, 12, 4, ids, 2)) != drawn).any()


@pytest.mark.parametrize(("length", "n_repeats", "n_ids"), [(25, 2, 40), (25, 4, 40), (25, 4, 3)])
def test_on_repeated_tokens_all_forms_name_the_same_keys(
    length: int, n_repeats: int, n_ids: int, getkey
) -> None:
    """The tokens of a block differ, so nothing else is a copy: the mask form on these inputs is the
    sum over every earlier repeat, and with two repeats the previous one alone.
    """
    period = repeats.block_period(length, n_repeats, n_ids)
    tokens = repeats.tokens(getkey(), 3, length, period, range(1, n_ids + 1), 0)
    every = repeats.every(length, period)
    assert (targets.induction(tokens) == every).all()
    rows = np.asarray(every[0].any(-1))
    assert rows.tolist() == [t > period for t in range(length)]
    latest = np.asarray(repeats.latest(length, period)[0])
    assert (latest.sum(1) == rows).all() and not (latest & ~np.asarray(every[0])).any()
    if n_repeats == 2:
        assert (latest == every[0])[: 2 * period + 1].all()


def test_period() -> None:
    assert repeats.block_period(length=101, repeats=4, n_ids=50) == 25
    assert repeats.block_period(length=32, repeats=2, n_ids=50) == 15
    assert repeats.block_period(length=32, repeats=2, n_ids=8) == 8
    for sizes in ((4, 2, 50), (32, 2, 1), (8, 4, 50)):
        with pytest.raises(ValueError, match="no block of 2 tokens"):
            repeats.block_period(*sizes)


def test_repeats_refuse_what_would_be_ambiguous(getkey) -> None:
    for ids in ((0, 1, 2, 3), (1, 2), (1, 2, 2)):
        with pytest.raises(ValueError, match="3 different tokens"):
            repeats.tokens(getkey(), 1, 8, 3, ids, 0)

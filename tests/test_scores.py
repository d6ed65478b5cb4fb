"""Head scores against a slow independent loop, and on attention whose scores are known."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mha_jax.analysis import repeats, scores, targets
from mha_jax.analysis.bootstrap import Score, finish
from mha_jax.attention.core import Mask

B, N, T = 3, 2, 7
PERIOD = 3
DELIMITERS = (0, 3)
MASKS = {
    "causal": Mask(),
    "full": Mask("full"),
    "window": Mask(window=3),
    "window and sink": Mask(window=2, n_sinks=1),
    "context_query": Mask("context_query", n_context=4),
}
ZERO_IS_IDEAL = ("entropy", "normalised_entropy", "distance")
Data = dict[str, np.ndarray]
mass = jax.jit(scores.mass, static_argnames="every_row")


def draw(length: int, n_tokens: int = 4, seed: int = 0) -> Data:
    """What the scores look at beside the weights. Pointers may lie out of sight."""
    rng = np.random.default_rng(seed)
    tokens = rng.integers(n_tokens, size=(B, length))
    output = np.where(rng.random((B, length)) < 0.3, tokens, rng.integers(4, size=(B, length)))
    return {
        "tokens": tokens,
        "class": tokens // 2,
        "one": rng.integers(-1, length, (B, length)),
        "other": rng.integers(-1, length, (B, length)),
        "output": output,
    }


def random_weights(visible_ts: np.ndarray, seed: int = 1) -> np.ndarray:
    logits = np.random.default_rng(seed).normal(size=(B, N, *visible_ts.shape))
    weights = np.where(visible_ts, np.exp(2 * logits), 0)
    return weights / np.maximum(weights.sum(-1, keepdims=True), 1e-30)


def uniform_weights(visible_ts: np.ndarray) -> np.ndarray:
    rows = visible_ts / np.maximum(visible_ts.sum(-1, keepdims=True), 1)
    return np.broadcast_to(rows, (B, N, *visible_ts.shape))


@functools.partial(jax.jit, static_argnames="mask")
def every_score(weights: jax.Array, data: Any, mask: Mask) -> dict[str, scores.Sums]:
    """All scores of the module, in one program."""
    length = weights.shape[-1]
    seen, tokens, one = mask.table(length), data["tokens"], data["one"]
    delimiter = targets.token_in(tokens, DELIMITERS)
    at_delimiter = delimiter[:, 0]
    named = {
        "first": targets.position(length, 0),
        "delimiter": delimiter,
        "same_token": targets.same_token(tokens),
        "same_class": targets.same_class(data["class"], tokens),
        "induction": targets.induction(tokens),
        "latest": repeats.latest(length, PERIOD),
        "every": repeats.every(length, PERIOD),
        "pointer": targets.pointer(one),
        "pointed": targets.pointed({"one": one, "other": data["other"]}),
    }
    stacked = jnp.stack([jnp.broadcast_to(x, delimiter.shape) for x in named.values()])

    def by_name(weights: jax.Array, suffix: str, every_row: bool = False) -> Any:
        """One program for all targets: apart, they take ten times as long to compile."""
        sums = jax.vmap(lambda x: scores.mass(weights, x, seen, every_row=every_row))(stacked)
        return {k + suffix: scores.Sums(*(x[i] for x in sums)) for i, k in enumerate(named)}

    rates = scores.argmax_share(weights)
    copied = scores.copied(data["output"], tokens, one)
    return {
        **by_name(weights, ""),
        **by_name(rates, "_rate"),
        **by_name(weights, "_of_all", every_row=True),
        "offsets": scores.offset_mass(weights, seen),
        "offsets_rate": scores.offset_mass(rates, seen),
        "offsets_of_all": scores.offset_mass(weights, seen, every_row=True),
        "from_delimiter": scores.mass(weights, delimiter, seen, rows_bt=at_delimiter),
        "to_delimiter": scores.mass(weights, delimiter, seen, rows_bt=~at_delimiter),
        "retrieval": scores.retrieval(weights, one, copied, seen),
        "entropy": scores.entropy(weights, seen),
        "normalised_entropy": scores.normalised_entropy(weights, seen),
        "confidence": scores.confidence(weights, seen),
        "distance": scores.distance(weights, seen),
        "distance_from_delimiter": scores.distance(weights, seen, rows_bt=at_delimiter),
    }


def ideal_of(name: str) -> float:
    return 0.0 if name.startswith(ZERO_IS_IDEAL) else 1.0


def finished(weights: np.ndarray, data: Data, mask: Mask) -> dict[str, Score]:
    sums = every_score(jnp.asarray(weights, jnp.float32), data, mask)
    return {name: finish(s, ideal_of(name), n_draws=20) for name, s in sums.items()}


# The oracle. A rule tells for a row, of which it is given the visible keys alone, None (does not
# count) or the pair (value of the head, value of uniform attention).


Row = dict[int, float]  # visible key -> weight
Rule = Callable[[dict[str, list[int]], int, Row], tuple[float, float] | None]


def share_of(keys: set[int], row: Row) -> tuple[float, float] | None:
    hits = [s for s in row if s in keys]
    return (sum(row[s] for s in hits), len(hits) / len(row)) if hits else None


def slow_keys(name: str, data: dict[str, list[int]], t: int) -> set[int]:
    x, c, one, other = data["tokens"], data["class"], data["one"], data["other"]
    everywhere, before = range(len(x)), range(t)
    if name == "first":
        return {0}
    if name == "delimiter":
        return {s for s in everywhere if x[s] in DELIMITERS}
    if name == "same_token":
        return {s for s in everywhere if x[s] == x[t] and s != t}
    if name == "same_class":
        return {s for s in everywhere if c[s] == c[t] and x[s] != x[t]}
    if name == "induction":
        return {s + 1 for s in before if x[s] == x[t] and s + 1 < t}
    if name == "latest":
        return {t - PERIOD + 1} if t > PERIOD else set()
    if name == "every":
        return {t - m * PERIOD + 1 for m in range(1, t) if t - m * PERIOD >= 1}
    if name == "pointer":
        return {one[t]} - {-1}
    if name == "pointed":
        return {one[t], other[t]} - {-1}
    return {t + int(name)}  # an offset


def heaviest(row: Row) -> Row:
    top = [s for s in row if row[s] == max(row.values())]
    return {s: 1 / len(top) if s in top else 0.0 for s in row}


def entropy(row: Row) -> float:
    return -sum(a * np.log(a) for a in row.values() if a > 0)


def rule_of(name: str) -> Rule:
    def rule(data: dict[str, list[int]], t: int, row: Row) -> tuple[float, float] | None:
        n = len(row)
        if name.endswith("_rate"):
            return share_of(slow_keys(name.removesuffix("_rate"), data, t), heaviest(row))
        if name.endswith("_of_all"):
            found = share_of(slow_keys(name.removesuffix("_of_all"), data, t), row)
            return (0.0, 0.0) if found is None else found
        if name in ("from_delimiter", "to_delimiter"):
            return share_of(slow_keys("delimiter", data, t), row)
        if name == "retrieval":
            found = share_of({data["one"][t]} - {-1}, heaviest(row))
            right = found is not None and data["output"][t] == data["tokens"][data["one"][t]]
            return found if found is None or right else (0.0, 0.0)
        if name in ("entropy", "normalised_entropy", "confidence") or "distance" in name:
            if n < 2:
                return None
            if name == "entropy":
                return entropy(row), np.log(n)
            if name == "normalised_entropy":
                return entropy(row) / np.log(n), 1.0
            if name == "confidence":
                return max(row.values()), 1 / n
            return sum(a * abs(t - s) for s, a in row.items()), sum(abs(t - s) for s in row) / n
        return share_of(slow_keys(name, data, t), row)

    return rule


def slow(name: str, weights: np.ndarray, data: Data, mask: Mask) -> dict[str, Any]:
    value, baseline, n_rows, n_queries = np.zeros(N), 0.0, 0, 0
    for b in range(B):
        one = {k: v[b].tolist() for k, v in data.items()}
        for t in range(weights.shape[-1]):
            at_delimiter = one["tokens"][t] in DELIMITERS
            asked = not (
                "from_delimiter" in name
                and not at_delimiter
                or name == "to_delimiter"
                and at_delimiter
            )
            seen = [s for s in range(weights.shape[-1]) if mask.sees(t, s)]
            if not asked or not seen:
                continue
            n_queries += 1
            found = [
                rule_of(name)(one, t, {s: weights[b, n, t, s] for s in seen}) for n in range(N)
            ]
            if found[0] is not None:
                value += [pair[0] for pair in found]
                baseline += found[0][1]
                n_rows += 1
    mean, chance = (value / n_rows, baseline / n_rows) if n_rows else (np.full(N, np.nan), np.nan)
    room = ideal_of(name) - chance
    return {
        "value": mean,
        "baseline": chance,
        "corrected": (mean - chance) / room if room else np.full(N, np.nan),
        "n_rows": n_rows,
        "share": n_rows / n_queries if n_queries else np.nan,
    }


def names_in(got: dict[str, Score]) -> list[tuple[str, Score]]:
    """One entry a score: the offsets taken apart, under the name that the oracle knows."""
    flat = []
    for name, score in got.items():
        if not name.startswith("offsets"):
            flat.append((name, score))
            continue
        for i, k in enumerate(range(-3, 3)):
            part = Score(*(x[..., i] for x in score))
            flat.append((f"{k}{name.removeprefix('offsets')}", part))
    return flat


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_against_a_slow_loop(mask: Mask, assert_close) -> None:
    weights, data = random_weights(mask.table(T)), draw(T)
    for name, score in names_in(finished(weights, data, mask)):
        for field, want in slow(name, weights, data, mask).items():
            got = getattr(score, field)
            assert (np.isnan(got) == np.isnan(want)).all(), (name, field)
            assert_close({(name, field): np.nan_to_num(got)}, {(name, field): np.nan_to_num(want)})


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("n_tokens", [1, 2, 4])
def test_uniform_attention_scores_nothing(mask: Mask, n_tokens: int, assert_close) -> None:
    """However many keys are targets, a score is its baseline and the corrected one is 0."""
    check_uniform(mask, T, n_tokens, assert_close)


@pytest.mark.parametrize("length", [1, 2, 13])
def test_uniform_attention_scores_nothing_at_any_length(length: int, assert_close) -> None:
    check_uniform(Mask(), length, 4, assert_close)


def check_uniform(mask: Mask, length: int, n_tokens: int, assert_close) -> None:
    got = finished(uniform_weights(mask.table(length)), draw(length, n_tokens), mask)
    for name, score in got.items():
        assert_close({name: np.nan_to_num(score.corrected)}, {name: np.zeros(score.value.shape)})
        chance = np.broadcast_to(score.baseline, score.value.shape)
        assert (np.isnan(score.value) == np.isnan(chance)).all(), name
        assert_close({name: np.nan_to_num(score.value)}, {name: np.nan_to_num(chance)})
    if length == 13:  # long enough for every score to be defined
        assert all(np.isfinite(got[name].corrected).all() for name in got if "offsets" not in name)


@pytest.mark.parametrize("length", [3, 12])
def test_a_share_of_ideal_attention_is_the_corrected_mass(length: int, assert_close) -> None:
    """.7 on the targets, evenly, and .3 spread over what is visible is .7: shorter sequences and
    more targets raise the mass itself, and must not raise this.
    """
    seen = Mask().table(length)
    for n_tokens in (1, 2, 3):
        tokens = draw(length, n_tokens)["tokens"]
        hit = (tokens[:, :, None] == tokens[:, None, :]) & np.tril(seen, k=-1)
        ideal = hit / np.maximum(hit.sum(-1, keepdims=True), 1)
        weights = 0.7 * ideal[:, None] + 0.3 * uniform_weights(seen)
        score = finish(mass(jnp.asarray(weights, jnp.float32), hit, seen))
        assert_close(score.corrected, np.full(N, 0.7))
        assert (score.value > 0.7).all()


def score_of(name: str, weights_ts: np.ndarray, mask: Mask = MASKS["full"]) -> Any:
    """One score of a head with these weights in every sequence."""
    length = len(weights_ts)
    weights = np.broadcast_to(weights_ts, (B, N, length, length))
    return finished(weights, draw(length), mask)[name]


def test_orientation_is_query_to_key(assert_close) -> None:
    """A head that reads the previous token has offset -1, and not +1; and the other way round."""
    previous, following = np.eye(T, k=-1), np.eye(T, k=1)
    previous[0, -1] = following[-1, 0] = 1  # the ends have no such key and look far away
    assert_close(score_of("offsets", previous).value[0], np.eye(6)[targets.OFFSETS.index(-1)])
    assert_close(score_of("offsets", following).value[0], np.eye(6)[targets.OFFSETS.index(1)])
    assert_close(score_of("offsets_rate", previous).value[0], np.eye(6)[targets.OFFSETS.index(-1)])
    first = np.zeros((T, T))
    first[:, 0] = 1  # a column: every query reads the first key
    assert_close(score_of("first", first).value, np.ones(N))
    assert_close(score_of("first", first.T).value, np.full(N, 1 / T))
    # Under the causal mask the first query has no key before it, and no query a later one.
    previous[0] = np.eye(T)[0]
    score = score_of("offsets", previous, Mask())
    assert_close(score.value[0, :4], [0, 0, 1, 1 / T])
    assert np.isnan(score.value[0, 4:]).all() and score.n_rows[4:].tolist() == [0, 0]
    assert score.n_rows[2] == B * (T - 1) and score.share[2] == (T - 1) / T


def test_pointer_goes_from_query_to_key(assert_close) -> None:
    pointer = jnp.array([[-1, -1, 0, 1]])
    weights = np.zeros((1, 2, 4, 4), np.float32)
    weights[0, 0, [2, 3], [0, 1]] = 1
    weights[0, 1] = weights[0, 0].T
    got = mass(weights, targets.pointer(pointer), Mask("full").table(4))
    assert_close(got.value, [[2.0, 0.0]])
    assert got.n_rows.tolist() == [2] and got.n_queries.tolist() == [4]


def test_uniform_causal_attention_in_closed_form(assert_close) -> None:
    weights = uniform_weights(Mask().table(T))[0, 0]
    harmonic = sum(1 / t for t in range(1, T + 1))
    seen_keys = np.arange(2, T + 1)
    want = {
        "first": harmonic / T,
        "entropy": np.log(seen_keys).mean(),
        "normalised_entropy": 1.0,
        "confidence": (harmonic - 1) / (T - 1),
        "distance": ((seen_keys - 1) / 2).mean(),
    }
    got = {name: score_of(name, weights, Mask()).value for name in want}
    assert_close(got, {name: np.full(N, value) for name, value in want.items()})


@pytest.mark.parametrize("shift", [0, 1, 3])
def test_identity_and_permutations_in_closed_form(shift: int, assert_close) -> None:
    """One key a row: entropy 0, all confidence; the distance is that of the permutation."""
    key = (np.arange(T) + shift) % T
    weights = np.eye(T)[key]
    for name in ("entropy", "normalised_entropy"):
        score = score_of(name, weights)
        assert_close((score.value, score.corrected), (np.zeros(N), np.ones(N)))
    score = score_of("confidence", weights)
    assert_close((score.value, score.corrected), (np.ones(N), np.ones(N)))
    far = np.abs(key - np.arange(T)).mean()
    assert_close(score_of("distance", weights).value, np.full(N, far))
    offsets = score_of("offsets", weights).value[0]
    assert_close(offsets, [float(k == shift) for k in targets.OFFSETS])
    if not shift:
        assert_close(score_of("distance", weights).corrected, np.ones(N))


def test_farthest_of_causal_distances(assert_close) -> None:
    first = np.zeros((T, T))
    first[:, 0] = 1
    assert_close(score_of("distance", first, Mask()).corrected, np.full(N, -1.0))


def test_ties_of_the_argmax_are_shared(assert_close) -> None:
    """Also where weights that are equal on paper differ in the last bits."""
    third = np.float32(1 / 3)
    rows = np.array([[0.5, 0.5, 0], [0.2, 0.7, 0.1], [third, np.nextafter(third, 1), third]])
    got = scores.argmax_share(jnp.asarray(rows, jnp.float32)[None, None])
    assert_close(got, np.array([[0.5, 0.5, 0], [0, 1, 0], [1 / 3, 1 / 3, 1 / 3]])[None, None])


def test_retrieval_asks_for_both(assert_close) -> None:
    """Rows: pointed and copied, pointed only, copied only, neither, no pointer."""
    tokens = jnp.array([[5, 6, 7, 8, 9]])
    pointer = jnp.array([[1, 1, 2, 2, -1]])
    output = jnp.array([[6, 5, 7, 6, 9]])
    weights = np.eye(5, dtype=np.float32)[[1, 1, 3, 3, 4]][None, None]
    copied = scores.copied(output, tokens, pointer)
    assert copied.tolist() == [[True, False, True, False, False]]
    sums = jax.jit(scores.retrieval)(weights, pointer, copied, Mask("full").table(5))
    score = finish(sums)
    assert_close((score.value, score.baseline), ([1 / 4], 2 / 5 / 4))
    assert (score.n_rows, score.share) == (4, 4 / 5)


def test_fixed_offsets_have_the_rows_of_the_pointer(assert_close) -> None:
    pointer = jnp.array([[-1, 0, 1, 1, 5, -1], [0, 0, 0, 0, 0, 0]])
    got = jax.jit(scores.fixed_offsets)(pointer, Mask().table(6))
    # Position 5 is out of sight of query 4 under the causal mask: not a row.
    assert_close(got.value, [[0, 1, 2, 0, 0, 0], [1, 1, 1, 1, 0, 0]])
    assert got.n_rows.tolist() == [3, 6]
    assert (
        got.n_rows.tolist()
        == scores.mass(
            jnp.zeros((2, 1, 6, 6)), targets.pointer(pointer), Mask().table(6)
        ).n_rows.tolist()
    )


def test_a_nan_in_rows_that_do_not_count_does_not_spread() -> None:
    """A target out of sight is none; a row that sees one key has no entropy."""
    weights = random_weights(MASKS["window"].table(T))
    weights[:, :, 0] = np.nan
    got = finished(weights, draw(T), MASKS["window"])
    for name in ("entropy", "normalised_entropy", "confidence", "distance", "same_token"):
        assert np.isfinite(got[name].corrected).all(), name
    previous = got["offsets"].value[:, targets.OFFSETS.index(-1)]
    assert np.isfinite(previous).all()
    assert np.isnan(got["first"].value).all()  # its row 0 counts


def test_a_query_that_sees_no_key_is_not_asked() -> None:
    seen = np.tril(np.ones((T, T), bool), k=-1)
    sums = mass(jnp.zeros((1, 1, T, T)), targets.position(T, 0), seen, every_row=True)
    assert sums.n_queries.tolist() == sums.n_rows.tolist() == [T - 1]


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_score_variance_is_numpy_s(mask: Mask, assert_close) -> None:
    """Over visible keys alone, of rows with two or more; a constant added to a row is nothing."""
    seen, rng = mask.table(T), np.random.default_rng(0)
    drawn = rng.normal(3, 2, (B, N, T, T)) + rng.normal(size=(B, N, T, 1))
    hidden = np.where(seen, drawn, np.nan)  # must not spread
    sums = jax.jit(scores.score_variance)(jnp.asarray(hidden, jnp.float32), seen)
    counted = [t for t in range(T) if seen[t].sum() >= 2]
    want = np.mean([drawn[:, :, t, seen[t]].var(-1, ddof=1) for t in counted], axis=(0, 1))
    score = finish(sums)
    assert_close((score.value, score.corrected, score.baseline), (want, want, 0.0))
    assert score.n_rows == B * len(counted) and (score.low < want).all()


@pytest.mark.parametrize("length", [2, 5, 40])
def test_score_variance_does_not_know_the_length(length: int) -> None:
    """Independent scores of variance 4 under a causal mask: 4, though most rows are short."""
    drawn = 2 * np.random.default_rng(0).normal(size=(4000 // length, 1, length, length))
    score = finish(scores.score_variance(jnp.asarray(drawn, jnp.float32), Mask().table(length)))
    assert abs(score.value[0] - 4) < 0.4  # 2,000 rows of two keys have a standard error of .13


def test_sequences_do_not_meet(assert_close) -> None:
    """The sums of a sequence are its own, so batches join along b."""
    weights, data = random_weights(Mask().table(T)), draw(T)
    order = [2, 0, 1]
    turned = {k: v[order] for k, v in data.items()}
    whole = every_score(jnp.asarray(weights, jnp.float32), data, Mask())
    got = every_score(jnp.asarray(weights[order], jnp.float32), turned, Mask())
    assert_close(got, jax.tree.map(lambda x: x[jnp.asarray(order)], whole))


def test_every_score_and_target_is_on_the_page() -> None:
    page = (Path(__file__).parents[1] / "docs" / "scores.md").read_text(encoding="utf-8")
    for module in (scores, targets, repeats):
        for name, function in inspect.getmembers(module, inspect.isfunction):
            if function.__module__ == module.__name__ and not name.startswith("_"):
                assert f"`{name}" in page or f".{name}" in page, f"docs/scores.md lacks {name}"

"""The partition of attention over roles, the specialization index and the names of heads: against
slow loops, and on heads whose work is known.
"""

import itertools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mha_jax.analysis import bootstrap, naming, partition, scores, targets
from mha_jax.analysis.information import information, role_entropy, used_shares
from mha_jax.analysis.specialization import (
    Drawn,
    Index,
    of_cell,
    of_offsets,
    of_roles,
    over_layers,
)
from mha_jax.attention.core import visible_keys

B, N, T = 6, 3, 7
role_masses, offset_masses = jax.jit(partition.role_masses), jax.jit(partition.offset_masses)
ROLES = ("word", "prev", "class", "next")  # in no sorted order, on purpose
ALL = np.ones((T, T), bool)


def specialization(runs, head_weights=None, **how) -> Index:
    """The index of a cell over roles."""
    weights = head_weights or [None] * len(runs)
    return of_cell([of_roles(run, w, **how) for run, w in zip(runs, weights, strict=True)])


def offset_specialization(runs) -> Index:
    """The same over offsets."""
    return of_cell([of_offsets(run) for run in runs])


# Constructed heads ---------------------------------------------------------------------------


def apart(length: int, n_roles: int, n_sequences: int = B) -> dict[str, np.ndarray]:
    """Pointers of which every row tells the roles apart, at random gaps."""
    rng = np.random.default_rng(0)
    keys = rng.permuted(np.tile(np.arange(length), (n_sequences, length, 1)), axis=-1)
    return {ROLES[r]: keys[..., r].astype(np.int32) for r in range(n_roles)}


def heads(
    pointers: dict[str, np.ndarray], mixtures: Sequence[dict[str, float]], visible_ts: np.ndarray
) -> np.ndarray:
    """[b, n, t, s]: for each head its weight on each role's key, the rest spread uniformly."""
    b, length = next(iter(pointers.values())).shape
    uniform = visible_ts / visible_ts.sum(-1, keepdims=True)
    weights = np.zeros((b, len(mixtures), length, length))
    for n, mixture in enumerate(mixtures):
        weights[:, n] = (1 - sum(mixture.values())) * uniform
        for role, weight in mixture.items():
            weights[np.arange(b)[:, None], n, np.arange(length), pointers[role]] += weight
    return weights


def on_roles(n_heads: int, n_roles: int, weight: float = 1.0) -> list[dict[str, float]]:
    return [{ROLES[n % n_roles]: weight} for n in range(n_heads)]


def masses_of(
    mixtures: Sequence[dict[str, float]],
    n_roles: int,
    length: int = T,
    n_sequences: int = B,
) -> dict[str, jax.Array]:
    pointers = apart(length, n_roles, n_sequences)
    visible_ts = np.ones((length, length), bool)
    weights = heads(pointers, mixtures, visible_ts)
    return role_masses(jnp.asarray(weights, jnp.float32), pointers, visible_ts)


def noisy(p_nc: np.ndarray, n_sequences: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Masses of heads whose sequences scatter about p(c|n)."""
    shape = 3 * np.broadcast_to(p_nc, (n_sequences, *p_nc.shape))
    gamma = rng.standard_gamma(shape)
    return {
        "mass": gamma / gamma.sum(-1, keepdims=True),
        "baseline": np.full((n_sequences, p_nc.shape[-1]), 1 / p_nc.shape[-1]),
        "n_rows": np.ones(n_sequences, np.int32),
    }


# Slow solvers --------------------------------------------------------------------------------


def slow_masses(weights: np.ndarray, pointers: dict, visible_ts: np.ndarray) -> dict[str, list]:
    roles = sorted(pointers)
    out: dict[str, list] = {"mass": [], "baseline": [], "n_rows": []}
    for b in range(len(weights)):
        mass = [[0.0] * (len(roles) + 1) for _ in range(weights.shape[1])]
        baseline, n_rows = [0.0] * (len(roles) + 1), 0
        for t in range(weights.shape[2]):
            keys = [int(pointers[role][b, t]) for role in roles]
            if min(keys) < 0 or len(set(keys)) < len(keys):
                continue
            if not all(visible_ts[t, s] for s in keys):
                continue
            n_rows += 1
            for s in range(weights.shape[3]):
                cell = keys.index(s) if s in keys else len(roles)
                baseline[cell] += visible_ts[t, s] / sum(visible_ts[t])
                for n in range(weights.shape[1]):
                    mass[n][cell] += weights[b, n, t, s]
        out["mass"].append(mass)
        out["baseline"].append(baseline)
        out["n_rows"].append(n_rows)
    return out


def slow_nmi(mass: Any, n_cells: int) -> float:
    """From masses [b][n][c], by the definition with joint and marginal probabilities."""
    n_heads, n_columns = len(mass[0]), len(mass[0][0])
    total = sum(value for sequence in mass for head in sequence for value in head)
    joint = [
        [sum(sequence[n][c] for sequence in mass) / total for c in range(n_columns)]
        for n in range(n_heads)
    ]
    nats = 0.0
    for n in range(n_heads):
        for c in range(n_columns):
            if joint[n][c] > 0:
                of_cell = sum(head[c] for head in joint)
                nats += joint[n][c] * math.log(joint[n][c] / (of_cell * sum(joint[n])))
    return min(nats / math.log(min(n_heads, n_cells)), 1.0)


# In the program ------------------------------------------------------------------------------


def scattered(visible_ts: np.ndarray) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Random attention, and pointers that are now and then undefined, equal or out of sight."""
    rng = np.random.default_rng(1)
    weights = np.where(visible_ts, rng.gamma(0.5, size=(B, N, T, T)), 0)
    weights /= weights.sum(-1, keepdims=True)
    pointers = {
        role: np.maximum(rng.integers(-2, T, (B, T)), -1).astype(np.int32) for role in ROLES[:2]
    }
    return weights, pointers


@pytest.mark.parametrize(("mask", "window"), [("full", 0), ("causal", 0), ("causal", 4)])
def test_masses_and_nmi_against_slow_loops(mask: str, window: int, assert_close) -> None:
    visible_ts = visible_keys(T, mask, window=window)
    weights, pointers = scattered(visible_ts)
    got = role_masses(jnp.asarray(weights, jnp.float32), pointers, visible_ts)
    want = slow_masses(weights, pointers, visible_ts)
    assert 0 < sum(want["n_rows"]) < B * T
    # Sums of at most seven weights: float32 keeps them to its own rounding.
    assert_close(got, {key: np.array(value) for key, value in want.items()}, 1e-6)
    kept = [mass for mass, n in zip(want["mass"], want["n_rows"], strict=True) if n]
    assert_close(specialization([got]).nmi, slow_nmi(kept, len(pointers)), 1e-6)


@pytest.mark.parametrize("mask", ["full", "causal"])
def test_offsets_against_a_slow_loop(mask: str, assert_close) -> None:
    visible_ts = visible_keys(T, mask)
    weights, _ = scattered(visible_ts)
    got = offset_masses(jnp.asarray(weights, jnp.float32), visible_ts)
    mass, baseline, n_rows = np.zeros((B, N, 2 * T - 1)), np.zeros((B, 2 * T - 1)), 0
    for t in range(T):
        if visible_ts[t].sum() > 1:
            n_rows += 1
            for s in range(T):
                mass[:, :, s - t + T - 1] += weights[:, :, t, s]
                baseline[:, s - t + T - 1] += visible_ts[t, s] / visible_ts[t].sum()
    want = {"mass": mass, "baseline": baseline, "n_rows": np.full(B, n_rows)}
    assert_close(got, want, 1e-6)
    n_offsets = {"full": 2 * T - 1, "causal": T}[mask]
    assert_close(offset_specialization([got]).nmi, slow_nmi(mass.tolist(), n_offsets), 1e-6)


def test_orientation_is_query_to_key() -> None:
    previous = np.eye(T, k=-1)
    previous[0, 0] = 1
    weights = jnp.asarray(previous[None, None], jnp.float32)
    pointers = {
        "prev": np.broadcast_to(np.arange(T) - 1, (1, T)),
        "next": np.where(np.arange(T) < T - 1, np.arange(T) + 1, -1)[None],
    }
    by_role = role_masses(weights, pointers, ALL)
    assert by_role["mass"][0, 0].tolist() == [0, T - 2, 0]  # next, prev, other
    assert np.argmax(offset_masses(weights, ALL)["mass"][0, 0]) == T - 2  # offset -1


def test_a_nan_in_rows_that_do_not_count_does_not_spread() -> None:
    visible_ts = visible_keys(T, "causal")
    visible_ts[1] = False  # a row that sees nothing: no softmax is defined there
    weights, pointers = scattered(visible_keys(T, "causal"))
    weights[:, :, :2] = np.nan
    for pointer_bt in pointers.values():
        pointer_bt[:, :2] = -1
    weights = jnp.asarray(weights, jnp.float32)
    for got in (role_masses(weights, pointers, visible_ts), offset_masses(weights, visible_ts)):
        assert sum(got["n_rows"]) > 0
        assert all(np.isfinite(value).all() for value in got.values())


@pytest.mark.parametrize("why", ["no role", "one role", "never defined", "equal", "out of sight"])
def test_blank_where_nothing_tells_the_roles_apart(why: str) -> None:
    visible_ts = visible_keys(T, "causal", window=3)
    weights, pointers = scattered(visible_ts)
    itself = np.broadcast_to(np.arange(T, dtype=np.int32), (B, T))
    pointers = {
        "no role": {},
        "one role": {"self": itself},
        "never defined": {"self": itself, "never": np.full_like(itself, -1)},
        "equal": {"self": itself, "also": itself},
        "out of sight": {"self": itself, "next": np.minimum(itself + 1, T - 1)},
    }[why]
    got = role_masses(jnp.asarray(weights, jnp.float32), pointers, visible_ts)
    assert got["mass"].shape == (B, N, len(pointers) + 1)
    assert sum(got["n_rows"]) == (B * T if why == "one role" else 0)
    assert_blank(specialization([got]))
    if why != "one role":
        assert np.isnan(role_entropy(got)).all()
        assert np.isnan(naming.role_weights(got)).all()


def assert_blank(index: Index) -> None:
    assert np.isnan(index[:5]).all() and index.n_runs == index.n_sequences == 0


# The index -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("n_heads", "n_roles"), [(4, 4), (2, 4), (4, 2), (8, 4)])
def test_a_perfect_partition_and_redundant_heads_are_1(n_heads: int, n_roles: int) -> None:
    index = specialization([masses_of(on_roles(n_heads, n_roles), n_roles)])
    assert index[:4] == pytest.approx((1, 1, 1, 1), abs=1e-12)
    assert 0 < index.null < 1
    assert index.n_sequences == B


def test_rounding_of_the_weights_has_no_logarithm() -> None:
    """Rows of float32 weights may sum to a little more than one, and "other" to less than 0."""
    pointers = apart(T, 2)
    weights = heads(pointers, [*on_roles(2, 2), {}], ALL) * (1 + 1e-6)
    got = role_masses(jnp.asarray(weights, jnp.float32), pointers, ALL)
    assert np.min(got["mass"]) == 0
    assert np.isfinite(specialization([got])).all()


def test_an_uneven_share_is_below_1_and_a_head_on_nothing_does_not_pass_it() -> None:
    assert specialization([masses_of(on_roles(3, 2), 2)]).nmi == pytest.approx(0.918, abs=1e-3)
    pointers = apart(T, 4)
    weights = heads(pointers, [*on_roles(4, 4), {}], ALL)
    taken = np.stack([pointers[role] for role in ROLES], -1)
    np.put_along_axis(weights[:, 4], taken, 0, axis=-1)
    weights[:, 4] /= weights[:, 4].sum(-1, keepdims=True)
    got = role_masses(jnp.asarray(weights, jnp.float32), pointers, ALL)
    mean_nc = np.asarray(got["mass"]).sum(0)
    # log 5 > log 4: beyond the divisor, hence the clip.
    assert information(mean_nc / mean_nc.sum(-1, keepdims=True)) > math.log(4) + 0.1
    assert specialization([got]).value == pytest.approx(1, abs=1e-12)


def test_one_head_is_blank() -> None:
    one = [{"word": 1.0}]
    assert_blank(specialization([masses_of(one, 2)]))
    weights = heads(apart(T, 2), one, ALL)
    assert_blank(offset_specialization([offset_masses(jnp.asarray(weights, jnp.float32), ALL)]))


def test_heads_that_are_equal_have_index_0() -> None:
    index = specialization([masses_of([{"word": 0.6, "prev": 0.2}] * 4, 3)])
    assert index[:5] == pytest.approx((0, 0, 0, 0, 0), abs=1e-12)


def test_noise_between_equal_heads_is_not_specialization() -> None:
    """Corrected by its null the index is 0 on average, and the interval covers 0."""
    rng = np.random.default_rng(0)
    p_nc = np.tile([0.4, 0.3, 0.1, 0.2], (4, 1))
    n = 60
    found = [specialization([noisy(p_nc, 32, rng)], n_draws=200) for _ in range(n)]
    value = np.array([index.value for index in found])
    # Three standard errors; without the correction the mean is 0.0058, about fifty of them.
    assert abs(value.mean()) < 3 * value.std() / math.sqrt(n)
    assert np.mean([index.nmi for index in found]) > 20 * abs(value.mean())
    # Wide near 0 by construction: all 60 are expected to cover, 57 would be 95 %.
    assert sum(index.low <= 0 <= index.high for index in found) >= 57


def test_the_interval_covers_the_index_of_heads_that_differ() -> None:
    rng = np.random.default_rng(0)
    p_nc = 0.6 * np.full((4, 4), 0.25) + 0.4 * np.eye(4)
    want = float(information(p_nc)) / math.log(3)
    n = 60
    found = [specialization([noisy(p_nc, 64, rng)], n_draws=200) for _ in range(n)]
    # 95 % of 60 is 57; below 52 by chance in 2 of 100 such tests, and the seed is fixed.
    assert sum(index.low <= want <= index.high for index in found) >= 52
    value = np.array([index.value for index in found])
    assert np.mean([index.high - index.low for index in found]) < 1.3 * 2 * 1.96 * value.std()


def test_the_null_is_that_of_all_permutations(assert_close) -> None:
    """Two heads, five sequences: 32 ways to exchange them, one sequence at a time."""
    rng = np.random.default_rng(0)
    masses = noisy(np.array([[0.6, 0.2, 0.2], [0.1, 0.5, 0.4]]), 5, rng)
    each = [
        slow_nmi([m[::-1] if swap else m for m, swap in zip(masses["mass"], swaps, strict=True)], 2)
        for swaps in itertools.product([False, True], repeat=5)
    ]
    index = specialization([masses])
    # 200 draws: four standard errors of their mean.
    assert_close(index.null, np.mean(each), 4 * np.std(each) / math.sqrt(200))
    assert_close(index.value, (index.nmi - index.null) / (1 - index.null), 1e-12)


def test_few_sequences() -> None:
    for weight in (0.5, 1.0):
        one = masses_of(on_roles(2, 2, weight), 2, n_sequences=1)
        assert_blank(specialization([one]))  # one sequence is its own permutation
    index = specialization([masses_of(on_roles(2, 2), 2, n_sequences=2)])
    assert (index.value, index.n_sequences) == (pytest.approx(1, abs=1e-12), 2)
    rng = np.random.default_rng(0)
    p_nc = np.array([[0.6, 0.2, 0.2], [0.2, 0.6, 0.2]])
    few, many = (
        np.mean(
            [i.high - i.low for _ in range(20) for i in [specialization([noisy(p_nc, b, rng)])]]
        )
        for b in (4, 64)
    )
    assert few > 2 * many
    near = np.array([[0.6, 0.05, 0.35], [0.05, 0.9, 0.05]])
    assert max(specialization([noisy(near, 2, rng)]).high for _ in range(20)) <= 1


def test_short_sequences_and_more_roles_do_not_raise_the_index() -> None:
    lengths, n_roles = (4, 8, 32), (2, 3, 4)
    uniform: list[dict[str, float]] = [{}] * 4
    of_uniform = [masses_of(uniform, 4, length) for length in lengths]
    of_uniform += [masses_of(uniform, r, 8) for r in n_roles]
    assert [specialization([m]).value for m in of_uniform] == pytest.approx([0] * 6, abs=1e-6)
    half, pairs = on_roles(4, 4, weight=0.5), on_roles(4, 2, weight=0.5)
    by_length = [specialization([masses_of(half, 4, length)]).nmi for length in lengths]
    assert by_length == sorted(by_length)
    by_roles = [specialization([masses_of(pairs, r, 8)]).nmi for r in n_roles]
    assert by_roles == sorted(by_roles, reverse=True)


def test_what_stands_beside_the_index_tells_a_failing_model() -> None:
    """Heads that differ only in how much they give to "other" have an index, and no role."""
    failing = masses_of([{"word": w / 2, "prev": w / 2} for w in (0.0, 0.2, 0.6, 0.8)], 2, 16)
    index = specialization([failing])
    assert index.value > 0.1 and index.low > 0
    named = [naming.role_name(w, ROLES[:2]) for w in naming.role_weights(failing)]
    assert naming.covered(named) == 0
    assert role_entropy(failing)[1] > 0.5
    assert role_entropy(masses_of(on_roles(4, 2), 2))[0] == pytest.approx(0, abs=1e-6)
    third = masses_of([{}] * 4, 2, 3)  # uniform over two roles and one further key
    assert role_entropy(third)[0] == pytest.approx(math.log(3), abs=1e-6)


def test_offsets_know_position_and_not_content(assert_close) -> None:
    visible_ts = visible_keys(16, "full")
    ring = (np.arange(16)[:, None] + np.array([1, 3, 6])) % 16
    positional = {role: np.tile(ring[:, r], (B, 1)) for r, role in enumerate(ROLES[:3])}
    for pointers, is_positional in ((positional, True), (apart(16, 3), False)):
        weights = jnp.asarray(heads(pointers, on_roles(3, 3), visible_ts), jnp.float32)
        assert specialization([role_masses(weights, pointers, visible_ts)]).value > 0.999
        by_offset = offset_specialization([offset_masses(weights, visible_ts)])
        # Content at random gaps is chance; the ring wraps, but no two heads share an offset.
        assert by_offset.value > 0.999 if is_positional else abs(by_offset.value) < 0.1


def test_offsets_out_of_sight_do_not_count() -> None:
    """Two keys: a causal query sees offsets 0 and -1, and one head of three is alone on its own."""
    weights = np.zeros((B, 3, 2, 2), np.float32)
    weights[:, :, 0, 0] = weights[:, 0, 1, 0] = weights[:, 1:, 1, 1] = 1
    index = offset_specialization([offset_masses(jnp.asarray(weights), visible_keys(2, "causal"))])
    assert index.nmi == pytest.approx(0.918, abs=1e-3)  # of log 2, not of log 3


def test_used_heads_alone_count() -> None:
    assert used_shares(np.array([3.0, -1.0, 1.0, 0.0])).tolist() == [0.75, 0, 0.25, 0]
    for rises in ([-1.0, 0.0], [math.nan, 1.0]):
        assert np.isnan(used_shares(np.array(rises))).all()
    # Two heads with a role, two that do the same as each other and are of no use.
    masses = masses_of([{"word": 1.0}, {"prev": 1.0}, {"word": 0.5}, {"word": 0.5}], 2)
    plain = specialization([masses])
    shares = [used_shares(np.array(r)) for r in ([1, 1, 0, 0], [3, 1, 0, 0], [0, 0, 1, 1])]
    used = [specialization([masses], [share]).value for share in shares]
    assert plain.value < 0.9
    # The divisor is the entropy of the weights: uneven use of a perfect partition is still 1.
    assert used == pytest.approx([1, 1, 0], abs=1e-12)
    assert specialization([masses], [np.full(4, 0.25)]) == plain
    for rises in ([1, 0, 0, 0], [-1, 0, 0, 0]):
        assert_blank(specialization([masses], [used_shares(np.array(rises))]))
    assert role_entropy(masses, shares[1])[0] == pytest.approx(0, abs=1e-6)
    assert role_entropy(masses)[0] > 0.1


def test_a_cell_is_the_mean_of_its_runs_and_wider_than_one() -> None:
    rng = np.random.default_rng(0)
    runs = [
        noisy(w * np.eye(4) + (1 - w) / 4 * np.ones((4, 4)), 64, rng)
        for w in (0.4, 0.5, 0.6, 0.7, 0.8)
    ]
    alone = [specialization([run]) for run in runs]
    cell = specialization(runs)
    assert cell == specialization(runs)
    assert cell != specialization(runs, seed=1)
    assert cell.value == pytest.approx(np.mean([index.value for index in alone]), abs=1e-12)
    # A mean of five spread values: t interval of the values, to a fifth.
    values = np.array([index.value for index in alone])
    assert cell.high - cell.low == pytest.approx(2 * 2.776 * values.std(ddof=1) / 5**0.5, rel=0.2)
    assert cell.high - cell.low > max(index.high - index.low for index in alone)
    blank = {**runs[0], "n_rows": np.zeros(64, int)}
    assert specialization([*runs, blank]) == cell
    assert (cell.n_runs, cell.n_sequences) == (5, 64)


# Weights and names ---------------------------------------------------------------------------

MIXTURES = (
    {"word": 1.0},
    {"word": 0.7, "prev": 0.3},
    {"word": 0.75, "prev": 0.25},
    {"prev": 0.5, "word": 0.25, "class": 0.25},
    {"class": 0.56, "prev": 0.24},  # the rest uniform
    {"word": 0.25, "prev": 0.25, "class": 0.25, "next": 0.25},
    {},
)
NAMES = {  # threshold -> the name of each mixture
    0.3: ("word", "mixed", "word", "prev", "class", "mixed", "mixed"),
    0.5: ("word", "mixed", "word", "prev", "class", "mixed", "mixed"),
    0.7: ("word", "mixed", "word", "mixed", "mixed", "mixed", "mixed"),
}


@pytest.mark.parametrize("mask", ["full", "causal"])
def test_mixtures_are_unmixed(mask: str, assert_close) -> None:
    """In rows of every length: the part of the roles' keys in uniform attention differs by row."""
    length = 9
    visible_ts = visible_keys(length, mask)
    rng = np.random.default_rng(0)
    keys = [
        [rng.permutation(np.flatnonzero(visible_ts[t]))[:4] for t in range(3, length)]
        for _ in range(B)
    ]
    pointers = {
        role: np.pad(np.array(keys)[..., r], ((0, 0), (3, 0)), constant_values=-1)
        for r, role in enumerate(ROLES)
    }
    masses = role_masses(
        jnp.asarray(heads(pointers, MIXTURES, visible_ts), jnp.float32), pointers, visible_ts
    )
    weights_nr = naming.role_weights(masses)
    want = [[mixture.get(role, 0) for role in sorted(ROLES)] for mixture in MIXTURES]
    assert_close(weights_nr, want, 1e-6)
    for named in naming.sensitivity(weights_nr, ROLES):
        assert named.names == NAMES[named.tau]
        assert named.n_covered == (3 if named.tau < 0.7 else 1)
    assert tuple(naming.role_name(w, ROLES) for w in weights_nr) == NAMES[0.5]


@pytest.mark.parametrize("second", [0.3, 0.35, 0.45])
def test_a_second_role_of_three_tenths_is_mixed(second: float) -> None:
    for spread in (0.0, 0.2):
        first = 1 - second - spread
        masses = masses_of([{"word": first, "prev": second}], 3)
        assert naming.role_name(naming.role_weights(masses)[0], ROLES[:3]) == "mixed"


def test_one_role_gives_the_corrected_score_of_roles(assert_close) -> None:
    visible_ts = visible_keys(T, "causal")
    weights, _ = scattered(visible_ts)
    weights = jnp.asarray(weights, jnp.float32)
    pointers = {"prev": np.broadcast_to(np.arange(T) - 1, (B, T))}
    sums = scores.mass(weights, targets.pointer(pointers["prev"]), visible_ts)
    corrected = bootstrap.finish(sums).corrected[:, None]
    assert_close(naming.role_weights(role_masses(weights, pointers, visible_ts)), corrected)


def test_a_head_on_further_keys_has_weights_too_low_never_too_high() -> None:
    pointers = apart(T, 2)
    weights = heads(apart(T, 3), [{"word": 0.6, "class": 0.4}], ALL)  # "class" is not asked here
    got = naming.role_weights(role_masses(jnp.asarray(weights, jnp.float32), pointers, ALL))
    prev, word = got[0]
    assert prev < 0 and 0.4 < word < 0.6


def test_weights_that_cannot_be_known_are_blank() -> None:
    """Every visible key is some role's: uniform attention is then a mixture of roles."""
    masses = masses_of(on_roles(3, 3), 3, length=3)
    weights_nr = naming.role_weights(masses)
    assert np.isnan(weights_nr).all()
    assert naming.role_name(weights_nr[0], ROLES[:3]) == naming.UNDEFINED
    assert naming.role_name(np.zeros(0), ()) == naming.UNDEFINED
    assert naming.covered([naming.UNDEFINED, naming.MIXED, "word", "word"]) == 1
    with pytest.raises(ValueError, match="2 names for 3 weights"):
        naming.role_name(np.zeros(3), ROLES[:2])


def test_the_entropy_of_uniform_heads_is_one_at_every_length() -> None:
    for length, n_roles in ((6, 2), (13, 2), (40, 2), (13, 4)):
        pointers = apart(length, n_roles)
        weights = jnp.full((B, 2, length, length), 1 / length)
        masses = role_masses(weights, pointers, np.ones((length, length), bool))
        assert role_entropy(masses)[1] == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("n_sequences", [32, 256])
def test_the_interval_holds_its_own_value(n_sequences: int) -> None:
    """A resample has copies, whose null is larger; that must not shift the interval away."""
    rng = np.random.default_rng(0)
    half = np.array([[0.5 * (r == n) + 0.1 for r in range(5)] for n in range(4)])
    for masses in (
        masses_of([{role: 0.5} for role in ROLES], 4, 13, n_sequences),
        noisy(half, n_sequences, rng),
    ):
        index = specialization([masses], n_draws=200)
        assert index.low <= index.value + 1e-9 and index.value - 1e-9 <= index.high


def test_a_model_is_the_mean_of_its_layers(assert_close) -> None:
    perfect, mixed = (
        of_roles(masses_of(heads, 2), n_draws=20)
        for heads in (on_roles(2, 2), [{"word": 0.9, "prev": 0.1}, {"word": 0.2, "prev": 0.8}])
    )
    blank = of_roles(masses_of([{"word": 1.0}], 2), n_draws=20)
    both = over_layers([perfect, blank, mixed])
    assert_close(both.index_d, (perfect.index_d + mixed.index_d) / 2, 1e-12)
    assert_close(both.nmi, (perfect.nmi + mixed.nmi) / 2, 1e-12)
    assert np.isnan(over_layers([blank, blank]).index_d).all()
    assert isinstance(over_layers([]), Drawn) and np.isnan(over_layers([]).nmi)

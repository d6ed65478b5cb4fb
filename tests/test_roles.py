"""Role scores against a slow loop, and on attention whose scores are known."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mha_jax.analysis.roles import head_rows, role_sums, scores
from mha_jax.attention.core import visible_keys

B, N, T = 3, 4, 6


def pointers(visible_ts: np.ndarray) -> dict[str, np.ndarray]:
    """Two roles, with undefined rows; keys in no sorted order on purpose."""
    rng = np.random.default_rng(0)
    word = rng.integers(-1, T, (B, T))
    return {
        "word": np.where(visible_ts[np.arange(T)[None, :], word], word, -1).astype(np.int32),
        "prev": np.broadcast_to(np.arange(T) - 1, (B, T)).astype(np.int32),
    }


def random_weights(visible_ts: np.ndarray) -> np.ndarray:
    logits = np.random.default_rng(1).normal(size=(B, N, T, T))
    weights = np.where(visible_ts, np.exp(logits), 0)
    return weights / weights.sum(-1, keepdims=True)


@pytest.mark.parametrize("mask", ["causal", "full"])
def test_against_a_slow_loop(mask: str, assert_close) -> None:
    visible_ts = visible_keys(T, mask)
    weights, where = random_weights(visible_ts), pointers(visible_ts)
    sums = jax.jit(role_sums)(jnp.asarray(weights, jnp.float32), where, visible_ts)
    for r, role in enumerate(sorted(where)):
        for head in range(N):
            mass, baseline, n = 0.0, 0.0, 0
            for b in range(B):
                for t in range(T):
                    s = where[role][b, t]
                    if s >= 0:
                        mass += weights[b, head, t, s]
                        baseline += 1 / visible_ts[t].sum()
                        n += 1
            got = scores(sums)
            assert got["n_rows"][r] == n > 0
            assert_close(got["mass"][head, r], mass / n)
            assert_close(got["baseline"][r], baseline / n)
            corrected = (mass / n - baseline / n) / (1 - baseline / n)
            assert_close(got["corrected"][head, r], corrected)


@pytest.mark.parametrize(("window", "n_sinks"), [(0, 0), (3, 0), (2, 1)])
def test_constructed_attention(window: int, n_sinks: int, assert_close) -> None:
    """The identity, the previous position and uniform attention have scores 0 or 1 by
    definition.
    """
    visible_ts = visible_keys(T, "causal", window=window, n_sinks=n_sinks)
    uniform = visible_ts / visible_ts.sum(-1, keepdims=True)
    previous = np.eye(T, k=-1)
    previous[0, 0] = 1  # the first row has no previous position and may see itself only
    weights = np.stack([np.eye(T), previous, uniform])[None]
    where = {
        "self": np.arange(T)[None],
        "prev": np.arange(T)[None] - 1,
        "first": np.where(np.arange(T) > 0, 0, -1)[None],
    }
    got = scores(role_sums(jnp.asarray(weights, jnp.float32), where, visible_ts))
    first, prev, itself = range(3)  # sorted names
    assert_close(got["mass"][0], [0, 0, 1])
    assert_close(got["mass"][1, [prev, itself]], [1, 1 / T])
    assert_close(got["corrected"][0, itself], 1.0)
    assert_close(got["corrected"][1, prev], 1.0)
    # Chance is chance whether or not the pointer lies inside the window.
    assert_close(got["corrected"][2], [0, 0, 0])
    assert got["n_rows"].tolist() == [T - 1, T - 1, T]


def test_sums_add_over_batches(assert_close) -> None:
    visible_ts = visible_keys(T, "full")
    weights, where = jnp.asarray(random_weights(visible_ts), jnp.float32), pointers(visible_ts)
    parts = [
        role_sums(weights[i], {k: v[i] for k, v in where.items()}, visible_ts)
        for i in (slice(0, 1), slice(1, B))
    ]
    assert_close(
        scores(jax.tree.map(jnp.add, *parts)), scores(role_sums(weights, where, visible_ts))
    )


def test_no_valid_row_and_no_role() -> None:
    visible_ts = visible_keys(T, "full")
    weights = jnp.asarray(random_weights(visible_ts), jnp.float32)
    never = scores(role_sums(weights, {"never": np.full((B, T), -1)}, visible_ts))
    assert never["n_rows"].tolist() == [0]
    assert np.isnan(never["mass"]).all() and np.isnan(never["corrected"]).all()
    nothing = role_sums(weights, {}, visible_ts)
    assert {k: v.shape for k, v in nothing.items()} == {
        "mass": (N, 0),
        "baseline": (0,),
        "n_rows": (0,),
    }


def test_a_nan_outside_the_valid_rows_does_not_spread() -> None:
    visible_ts = visible_keys(T, "full")
    weights = random_weights(visible_ts)
    weights[:, :, 0] = np.nan
    got = scores(role_sums(jnp.asarray(weights, jnp.float32), pointers(visible_ts), visible_ts))
    assert np.isfinite(got["mass"][:, 0]).all()  # prev: row 0 has no previous position


def test_rows_keep_the_order_of_the_task_and_the_kv_groups() -> None:
    """Roles are summed in sorted order; the table must not take one role's numbers for
    another's.
    """
    visible_ts = visible_keys(T, "full")
    sums = role_sums(
        jnp.asarray(random_weights(visible_ts), jnp.float32), pointers(visible_ts), visible_ts
    )
    score = scores(sums)
    rows = head_rows([sums, sums], ("word", "prev"), [2, 4])
    assert [row["role"] for row in rows[:4]] == ["word", "prev", "word", "prev"]
    assert rows[2]["mass"] == score["mass"][1, 1]  # head 1, "word" is the second in sorted order
    assert [row["kv_head"] for row in rows[:8:2]] == [0, 0, 1, 1]
    assert [row["kv_head"] for row in rows[8::2]] == [0, 1, 2, 3]
    assert [row["layer"] for row in rows[::8]] == [0, 1]

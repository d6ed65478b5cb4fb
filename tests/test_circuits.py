"""Circuits from weights, against whole [v, v] and [d, d] products, and on known heads."""

import itertools

import numpy as np
import pytest

from mha_jax.analysis import circuits
from mha_jax.attention.grouped import SHARES

D, H, V = 12, 3, 20


def layer(n: int, k: int, seed: int, without: tuple[str, ...] = ()) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    sizes = {"wq": (D, n * H), "wk": (D, k * H), "wv": (D, k * H), "wo": (n * H, D)}
    drawn = {name: rng.normal(size=size).astype(np.float32) for name, size in sizes.items()}
    return {name: w for name, w in drawn.items() if name not in without}


def columns(w: np.ndarray, head: int) -> np.ndarray:
    return w[:, head * H : (head + 1) * H].astype(np.float64)


def slow_heads(params: dict[str, np.ndarray], n: int, k: int) -> list[tuple[np.ndarray, ...]]:
    """(W_QK, W_OV) of each query head, [d, d], as they act on columns."""
    g, made = n // k, []
    for i in range(n):
        q, key = columns(params["wq"], i), columns(params["wk"], i // g)
        v, o = columns(params["wv"], i // g), columns(params["wo"].T, i).T
        made.append((q @ key.T, o.T @ v.T))
    return made


def embeddings(seed: int = 9) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(V, D)), rng.normal(size=(D, V))


@pytest.mark.parametrize(("n", "k"), [(4, 4), (4, 2), (4, 1)])
def test_copying_against_all_eigenvalues(n: int, k: int, assert_close) -> None:
    params, (embed, unembed) = layer(n, k, 0), embeddings()
    expected = []
    for _, ov in slow_heads(params, n, k):
        values = np.linalg.eigvals(unembed.T @ ov @ embed.T)  # [v, v], on columns
        expected.append((values.sum() / np.abs(values).sum()).real)
    got = circuits.copying(circuits.per_head(params, n, k), embed, unembed)
    assert_close(got, expected)


def test_copying_of_known_heads() -> None:
    """Heads that write what they read, its negative, and half of each."""
    rng, eye = np.random.default_rng(0), np.eye(D)
    half = np.diag([1.0] * (D // 2) + [-1.0] * (D // 2))
    wv_ndh = np.stack([rng.normal(size=(D, D)) for _ in range(4)])
    written = np.stack([2 * eye, -0.5 * eye, half, 0 * eye])
    wo_nhd = np.linalg.inv(wv_ndh) @ written
    embed = rng.normal(size=(V, D))
    heads = circuits.Heads(wv_ndh, wv_ndh, wv_ndh, wo_nhd)
    score = circuits.copying(heads, embed, embed.T)
    assert score[:2] == pytest.approx([1, -1])
    assert np.isnan(score[3])
    orthonormal, _ = np.linalg.qr(embed)
    assert circuits.copying(heads, orthonormal, orthonormal.T)[2] == pytest.approx(0, abs=1e-9)
    with pytest.raises(ValueError, match="20 tokens are read and 19 written"):
        circuits.copying(heads, embed, embed.T[:, 1:])


def test_random_heads_do_not_copy_on_average() -> None:
    embed, unembed = embeddings()
    null = circuits.random_copying(embed, unembed, H)
    assert (np.diff(null) >= 0).all() and len(null) == 256
    # The spread of a draw is below 1, so that of the mean below 1/16.
    assert abs(null.mean()) < 3 / 16
    assert 0.1 < null.std() < 1
    assert np.array_equal(null, circuits.random_copying(embed, unembed, H))
    tied = circuits.random_copying(embed, embed.T, H)
    assert abs(tied.mean()) < 3 / 16


@pytest.mark.parametrize(("n1", "k1", "n2", "k2"), [(3, 3, 2, 2), (2, 1, 6, 2), (4, 2, 4, 1)])
def test_composition_against_whole_products(n1, k1, n2, k2, assert_close) -> None:
    params1, params2 = layer(n1, k1, 1), layer(n2, k2, 2)
    first, second = slow_heads(params1, n1, k1), slow_heads(params2, n2, k2)
    norm = np.linalg.norm
    expected = {name: np.zeros((n2, n1)) for name in "qkv"}
    for i, j in itertools.product(range(n2), range(n1)):
        (qk, ov2), (_, ov1) = second[i], first[j]
        for name, reads in (("q", qk.T), ("k", qk), ("v", ov2)):
            expected[name][i, j] = norm(reads @ ov1) / (norm(reads) * norm(ov1))
    heads = circuits.per_head(params1, n1, k1), circuits.per_head(params2, n2, k2)
    assert_close(circuits.composition(*heads), expected)


def test_repeated_weights_are_the_same_heads(assert_close) -> None:
    params = layer(4, 1, 3)
    repeated = {**params, **{name: np.tile(params[name], (1, 4)) for name in ("wk", "wv")}}
    shared, apart = circuits.per_head(params, 4, 1), circuits.per_head(repeated, 4, 4)
    assert_close(shared, apart)
    assert_close(circuits.copying(shared, *embeddings()), circuits.copying(apart, *embeddings()))
    first = circuits.per_head(layer(3, 3, 4), 3, 3)
    assert_close(circuits.composition(first, shared), circuits.composition(first, apart))


@pytest.mark.parametrize(
    ("share", "without"), [("qk", ("wk",)), ("kv", ("wv",)), ("qkv", ("wk", "wv"))]
)
def test_a_matrix_that_is_left_out_is_the_one_that_makes_its_part(share, without) -> None:
    k = 2 if "k" in SHARES[share] else 4
    params = layer(4, k, 5, without)
    heads = circuits.per_head(params, 4, k)
    for w_ndh, letter in zip(heads[:3], SHARES[share], strict=True):
        w = params[f"w{letter}"]
        repeats = 4 * H // w.shape[1]
        for i in range(4):
            assert np.array_equal(w_ndh[i], columns(w, i // repeats))


def test_permuted_heads_permute_the_scores(assert_close) -> None:
    order1, order2 = np.array([2, 0, 1]), np.array([3, 1, 0, 2])
    first, second = circuits.per_head(layer(3, 3, 6), 3, 3), circuits.per_head(layer(4, 2, 7), 4, 2)
    moved1, moved2 = (
        circuits.Heads(*(w[order] for w in heads))
        for heads, order in ((first, order1), (second, order2))
    )
    whole = circuits.composition(first, second)
    expected = {name: r[np.ix_(order2, order1)] for name, r in whole.items()}
    assert_close(circuits.composition(moved1, moved2), expected)
    embed, unembed = embeddings()
    score = circuits.copying(first, embed, unembed)
    assert_close(circuits.copying(moved1, embed, unembed), score[order1])


def test_a_head_that_reads_what_another_writes_and_nothing_else() -> None:
    """Rank one: through its keys 1, through queries and values 0; h equal directions: h^-0.5."""
    e = np.eye(D)
    first = circuits.Heads(*(e[None, :, :1],) * 3, e[None, 1:2])  # reads e0, writes e1
    second = circuits.Heads(e[None, :, 2:3], e[None, :, 1:2], e[None, :, 3:4], e[None, 4:5])
    got = circuits.composition(first, second)
    assert {name: r.item() for name, r in got.items()} == {"q": 0, "k": 1, "v": 0}
    writes = circuits.Heads(*(e[None, :, :H],) * 3, e[None, :H])
    assert circuits.composition(writes, writes)["v"].item() == pytest.approx(H**-0.5)
    nothing = circuits.Heads(*(0 * w for w in first))
    assert np.isnan(circuits.composition(nothing, second)["k"]).all()


def test_random_matrices_have_the_stated_baseline() -> None:
    rng, d, n = np.random.default_rng(0), 16, 40
    for h in (2, 8):
        spectrum = np.geomspace(1, 0.05, h)  # not the singular values of Gaussian matrices
        first, second = (
            circuits.Heads(
                *(rng.normal(size=(n, d, h)) for _ in range(3)),
                rng.normal(size=(n, h, d)) * spectrum[:, None],
            )
            for _ in range(2)
        )
        for r in circuits.composition(first, second).values():
            # 1600 pairs of 40 x 40 heads: the root mean square was within 3 % on 20 seeds.
            assert np.sqrt(np.square(r).mean()) == pytest.approx(
                circuits.composition_baseline(d), rel=0.05
            )


def test_what_cannot_be_had_is_refused_in_one_line() -> None:
    with pytest.raises(ValueError, match="use_wo=False: without wo"):
        circuits.per_head(layer(4, 4, 0, ("wo",)), 4, 4)
    with pytest.raises(ValueError, match="n_kv_heads=3 must divide n_heads=4"):
        circuits.per_head(layer(4, 3, 0), 4, 3)
    with pytest.raises(ValueError, match="wk has 15 columns, which 2 heads do not divide"):
        circuits.per_head(layer(4, 5, 0), 4, 2)
    heads = circuits.per_head(layer(2, 2, 0), 2, 2)
    narrow = circuits.Heads(*(w[:, :8] for w in heads[:3]), heads.wo_nhd[..., :8])
    with pytest.raises(ValueError, match="writes d_model=8, the second reads 12"):
        circuits.composition(narrow, heads)

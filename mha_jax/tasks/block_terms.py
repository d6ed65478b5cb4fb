"""The best approximation of a stack of matrices by a sum of attention heads, by alternating least
squares.

Heads whose weights depend on positions alone apply, to what stands j positions back,

    sum_n  mix_n[j] * out_n @ value_k(n)         mix_n >= 0, out_n [o, h], value_k [h, i]

a sum of block terms (De Lathauwer 2008, SIAM J. Matrix Anal. Appl. 30:1033) whose value maps are
shared by the g query heads of a kv head. Letters: r restarts, j matrices, o rows, i columns, n
heads, k kv heads, g, h.
"""

from __future__ import annotations

import numpy as np

_RESTARTS = 20
_SWEEPS = (30, 90, 300)  # of every start, then of the best quarter, then of the best of those
_RIDGE = 1e-9  # of the mean diagonal: heads may be more than are needed


def best_share(
    target_joi: np.ndarray, n_heads: int, n_kv_heads: int, d_head: int, d_in: int, d_out: int
) -> float:
    """The largest share of the squared entries that was found.

    Args:
      target_joi: the matrices.
      n_heads, n_kv_heads, d_head: n, k and h.
      d_in, d_out: the largest rank of all value maps, and of all out maps, side by side.
    """
    target_joi = target_joi / np.linalg.norm(target_joi)
    search = Search(target_joi, n_heads, n_kv_heads, d_head, d_in, d_out)
    for sweeps in _SWEEPS:
        shares = search.run(sweeps)
        search.keep(np.argsort(-shares)[: max(1, len(shares) // 4)])
    return float(shares.max())


class Search:
    """Alternating least squares from several starts at once: their mixes, outs and values."""

    def __init__(
        self, target_joi: np.ndarray, n: int, k: int, h: int, d_in: int, d_out: int
    ) -> None:
        self.target_joi, self.d_in, self.d_out = target_joi, d_in, d_out
        self.n, self.k, self.g, self.h = n, k, n // k, h
        draw = np.random.default_rng(0)
        n_j, _, n_i = target_joi.shape
        # Half of the starts are heads of all offsets, half of one each.
        self.mix_rnj = draw.uniform(size=(_RESTARTS, n, n_j))
        one = draw.integers(n_j, size=(_RESTARTS // 2, n))
        self.mix_rnj[: len(one)] = 0.1 * self.mix_rnj[: len(one)] + np.eye(n_j)[one]
        self.value_rkhi = draw.standard_normal((_RESTARTS, k, h, n_i))
        self.out_rnoh = np.zeros((_RESTARTS, n, target_joi.shape[1], h))

    def keep(self, which: np.ndarray) -> None:
        """Drops all other starts."""
        self.mix_rnj, self.value_rkhi, self.out_rnoh = (
            x[which] for x in (self.mix_rnj, self.value_rkhi, self.out_rnoh)
        )

    def run(self, sweeps: int) -> np.ndarray:
        """Improves every start; the shares reached, [r]."""
        for _ in range(sweeps):
            self._fit_out()
            self._fit_value()
            shares = self._fit_mix()
        return shares

    def _fit_out(self) -> None:
        r, n, k, g, h = len(self.mix_rnj), self.n, self.k, self.g, self.h
        value = self.value_rkhi.reshape(r, k * h, -1)
        pairs_rkhlm = (value @ value.swapaxes(1, 2)).reshape(r, k, h, k, h)
        mixed_rnn = self.mix_rnj @ self.mix_rnj.swapaxes(1, 2)
        gram = np.repeat(np.repeat(pairs_rkhlm, g, axis=1), g, axis=3)
        gram *= mixed_rnn[:, :, None, :, None]
        wanted_rnoi = np.tensordot(self.mix_rnj, self.target_joi, axes=1)
        value_rnih = np.repeat(self.value_rkhi, g, axis=1).swapaxes(2, 3)
        right_rnho = (wanted_rnoi @ value_rnih).swapaxes(2, 3)
        found = _solve(gram.reshape(r, n * h, n * h), right_rnho.reshape(r, n * h, -1), self.d_out)
        self.out_rnoh = found.reshape(r, n, h, -1).swapaxes(2, 3)

    def _fit_value(self) -> None:
        r, n, k, g, h = len(self.mix_rnj), self.n, self.k, self.g, self.h
        out = self.out_rnoh.swapaxes(2, 3).reshape(r, n * h, -1)
        pairs_rnhmj = (out @ out.swapaxes(1, 2)).reshape(r, n, h, n, h)
        mixed_rnn = self.mix_rnj @ self.mix_rnj.swapaxes(1, 2)
        pairs_rnhmj *= mixed_rnn[:, :, None, :, None]
        gram = pairs_rnhmj.reshape(r, k, g, h, k, g, h).sum(axis=(2, 5))
        wanted_rnoi = np.tensordot(self.mix_rnj, self.target_joi, axes=1)
        right_rnhi = self.out_rnoh.swapaxes(2, 3) @ wanted_rnoi
        right = right_rnhi.reshape(r, k, g, h, -1).sum(axis=2)
        found = _solve(gram.reshape(r, k * h, k * h), right.reshape(r, k * h, -1), self.d_in)
        self.value_rkhi = found.reshape(r, k, h, -1)

    def _fit_mix(self) -> np.ndarray:
        """Head by head, the best mix >= 0 while the others stay; then all of unit length."""
        map_rnoi = self.out_rnoh @ np.repeat(self.value_rkhi, self.g, axis=1)
        flat = map_rnoi.reshape(*map_rnoi.shape[:2], -1)
        gram_rnn = flat @ flat.swapaxes(1, 2)
        wanted_rnj = flat @ self.target_joi.reshape(len(self.target_joi), -1).T
        mix = self.mix_rnj
        for _ in range(3):
            for n in range(self.n):
                own = gram_rnn[:, n, n, None] + 1e-12
                rest = (gram_rnn[:, n, None] @ mix)[:, 0] - gram_rnn[:, n, n, None] * mix[:, n]
                # Not quite 0: a head that reads nothing would stay so.
                mix[:, n] = np.maximum((wanted_rnj[:, n] - rest) / own, 1e-6)
        error = 1 - 2 * np.sum(wanted_rnj * mix, axis=(1, 2))
        error += np.sum(mix * (gram_rnn @ mix), axis=(1, 2))
        length_rn = np.linalg.norm(mix, axis=2)
        self.mix_rnj = mix / length_rn[:, :, None]
        self.out_rnoh = self.out_rnoh * length_rn[:, :, None, None]
        return 1 - error


def _solve(gram: np.ndarray, right: np.ndarray, rank: int) -> np.ndarray:
    """The X of at most this rank with the least error |D X - Y|, of D'D = gram and D'Y = right.

    Without the limit X is the least-squares solution; with it, D X is that of its best
    approximation of the rank (reduced-rank regression, Izenman 1975).
    """
    size = gram.shape[1]
    ridge = _RIDGE * np.trace(gram, axis1=1, axis2=2) / size + 1e-300
    gram = gram + ridge[:, None, None] * np.eye(size)
    if rank >= min(right.shape[1:]):
        return np.linalg.solve(gram, right)
    root = np.linalg.cholesky(gram)
    u, s, v = np.linalg.svd(np.linalg.solve(root, right), full_matrices=False)
    u, s, v = u[:, :, :rank], s[:, :rank], v[:, :rank]
    return np.linalg.solve(root.swapaxes(1, 2), u * s[:, None] @ v)

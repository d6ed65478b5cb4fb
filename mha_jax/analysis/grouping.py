"""Which heads share: groups of equal size in which the heads are alike (host, float64).

CHAI (Agarwal et al. 2024, 2403.08058) clusters the query heads of a layer by their attention, in
clusters of any size. Here the groups are those of a grouped-query layer, so they are of one size,
and the search for them is ours.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import numpy as np

Groups = Sequence[Sequence[int]]  # the kv heads of each new one

# Up to here every grouping is looked at: 105 of eight heads in pairs. 16 heads have 2,027,025.
EXACT = 8
# A gain below this is rounding: of groupings that tie the first one stays.
_GAIN = 1e-9


def balanced(similarity_kk: np.ndarray, n_groups: int) -> list[list[int]]:
    """The groups of equal size with the largest sum of similarities inside them.

    Up to `EXACT` heads the best of all. With more: each group in turn takes the first free head and
    then the free head most alike to those that it has; then, as long as that helps, the two heads
    of different groups change places that help most. The same input gives the same groups; where
    groupings tie up to 1e-9 it is the first, for equal heads that of neighbours.

    Args:
      similarity_kk: symmetric [k, k], larger is more alike; the diagonal does not count, NaN is 0.
      n_groups: k', divides k.

    Returns:
      Heads in order in each group, groups in the order of their first heads.

    Raises:
      ValueError: n_groups does not divide the number of heads.
    """
    k = len(similarity_kk)
    if n_groups < 1 or k % n_groups:
        raise ValueError(f"n_groups={n_groups} must divide the {k} heads")
    alike_kk = np.nan_to_num(np.asarray(similarity_kk, np.float64)) * (1 - np.eye(k))
    if k > EXACT:
        return _swapped(alike_kk, _greedy(alike_kk, k // n_groups))
    best, most = [list(range(k))], -np.inf
    for groups in _partitions(list(range(k)), k // n_groups):
        inside = sum(alike_kk[np.ix_(group, group)].sum() for group in groups)
        if inside > most + _GAIN:
            best, most = groups, inside
    return best


def _partitions(heads: list[int], size: int) -> Iterator[list[list[int]]]:
    """All ways to cut the heads into groups of a size, neighbours first."""
    if not heads:
        yield []
        return
    for others in itertools.combinations(heads[1:], size - 1):
        group = [heads[0], *others]
        for groups in _partitions([head for head in heads if head not in group], size):
            yield [group, *groups]


def _greedy(alike_kk: np.ndarray, size: int) -> list[list[int]]:
    free = list(range(len(alike_kk)))
    groups: list[list[int]] = []
    while free:
        group = [free.pop(0)]
        while len(group) < size:
            nearest = int(np.argmax(alike_kk[np.ix_(free, group)].sum(1)))
            group.append(free.pop(nearest))
        groups.append(group)
    return groups


def _swapped(alike_kk: np.ndarray, groups: list[list[int]]) -> list[list[int]]:
    """Groups that no exchange of two heads improves; each exchange raises the sum, so it ends."""
    k = len(alike_kk)
    group_k = np.zeros(k, int)
    for i, group in enumerate(groups):
        group_k[group] = i
    while True:
        to_kg = alike_kk @ np.eye(len(groups))[group_k]  # head to the heads of each group
        move_kk = to_kg[:, group_k] - to_kg[np.arange(k), group_k][:, None]
        gain_kk = move_kk + move_kk.T - 2 * alike_kk
        gain_kk[group_k[:, None] == group_k[None]] = 0
        i, j = divmod(int(np.argmax(gain_kk)), k)
        if gain_kk[i, j] <= _GAIN:
            break
        group_k[[i, j]] = group_k[[j, i]]
    return sorted(np.flatnonzero(group_k == i).tolist() for i in range(len(groups)))

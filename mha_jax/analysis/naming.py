"""Which role a head plays: how much of its attention each role explains, and a name.

Letters: n query heads; R roles, in the sorted order of their names; c = R + 1 cells, the last is
"other". Names are given in any order and sorted here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

MIXED = "mixed"
UNDEFINED = ""
TAU, SECOND = 0.5, 0.3  # weights that make, and that forbid, a name
TAUS = (0.3, 0.5, 0.7)
_ROUNDING = 1e-5  # of a mean of float32 weights: a weight of .3 must not pass for less


class Named(NamedTuple):
    """The heads of one layer under one threshold."""

    tau: float
    names: tuple[str, ...]  # one a head
    n_covered: int  # roles that at least one head is named for


def role_weights(masses: Mapping[str, Any]) -> np.ndarray:
    """How much of a head is each role, if the head is a mixture of roles and uniform attention.

        rest = (1 - sum_r mass_r) / (1 - sum_r baseline_r)        w_r = mass_r - rest * baseline_r

    with means over the rows that tell the roles apart. For a head that puts w_r on each role's key
    and spreads the weight `rest` over all visible keys, these are its weights, exactly, at any
    length: the roles' keys receive their part of the spread, which is taken off. With one role it
    is the corrected score (mass - baseline) / (1 - baseline) of `roles`. Range: 1 for a pure role,
    0 for uniform attention, below 0 for a head that avoids the role's key; a head that favours
    further keys has a `rest` above its true spread and thus weights that are too low, never too
    high. Ours.

    Args:
      masses: `partition.role_masses`, concatenated over batches.

    Returns:
      [n, R], float64. NaN without a row that counts, and where no row sees a key beside the roles',
      because uniform attention is then itself a mixture of roles.
    """
    mass_nc = np.asarray(masses["mass"], np.float64).sum(0)
    baseline_c = np.asarray(masses["baseline"], np.float64).sum(0)
    n_rows = np.asarray(masses["n_rows"], np.int64).sum()
    has_rest = baseline_c[-1] > _ROUNDING * n_rows
    rest_n = mass_nc[:, -1] / (baseline_c[-1] if has_rest else np.nan)
    return (mass_nc[:, :-1] - rest_n[:, None] * baseline_c[:-1]) / max(n_rows, 1)


def role_name(
    weights_r: np.ndarray, names: Sequence[str], tau: float = TAU, second: float = SECOND
) -> str:
    """The role of the heaviest weight, if that is at least `tau` and no other reaches `second`.

    Otherwise `MIXED`, which also stands for a head that does something else; `UNDEFINED` if a
    weight is NaN or there is no role. Thresholds are met within the rounding of float32. Ours.

    Args:
      weights_r: one row of `role_weights`.
      names: of the roles, in any order.

    Raises:
      ValueError: not one name a weight.
    """
    if len(names) != len(weights_r):
        raise ValueError(f"{len(names)} names for {len(weights_r)} weights")
    if not len(weights_r) or np.isnan(weights_r).any():
        return UNDEFINED
    heaviest = int(np.argmax(weights_r))
    others_r = np.delete(weights_r, heaviest)
    is_mixed = weights_r[heaviest] < tau - _ROUNDING or (others_r >= second - _ROUNDING).any()
    return MIXED if is_mixed else sorted(names)[heaviest]


def covered(named: Sequence[str]) -> int:
    """Number of roles that at least one head is named for."""
    return len(set(named) - {MIXED, UNDEFINED})


def sensitivity(
    weights_nr: np.ndarray, names: Sequence[str], taus: Sequence[float] = TAUS
) -> list[Named]:
    """What the names would be at other thresholds: to be shown wherever a name is.

    Args:
      weights_nr: `role_weights`.
      names: of the roles, in any order.
      taus: thresholds; `SECOND` is held.
    """
    return [
        Named(tau, named, covered(named))
        for tau in taus
        for named in [tuple(role_name(weights_r, names, tau) for weights_r in weights_nr)]
    ]

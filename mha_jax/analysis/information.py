"""Entropy and mutual information of heads and the cells of `partition`, on the host, in nats."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np


def information(p_nc: np.ndarray, head_weights: np.ndarray | None = None) -> np.ndarray:
    """Mutual information of head and cell in nats: H(sum_n w_n p_n) - sum_n w_n H(p_n).

    Args:
      p_nc: [..., n, c], distribution of each head over the cells.
      head_weights: [n], probability of each head; None: uniform.
    """
    weights_n = uniform(p_nc.shape[-2]) if head_weights is None else head_weights
    mixed = entr(np.einsum("...nc,n->...c", p_nc, weights_n)).sum(-1)
    return np.maximum(mixed - entr(p_nc).sum(-1) @ weights_n, 0)


def role_entropy(
    masses: Mapping[str, Any], head_weights: np.ndarray | None = None
) -> tuple[float, float]:
    """H(role|head), the mean entropy of a head over roles and "other".

    Args:
      masses: `partition.role_masses`, concatenated over batches.

    Returns:
      In nats, 0 where every head does one thing; and divided by that of uniform attention, which
      depends on the length: 1 for heads that look everywhere, above 1 for heads that spread over
      the roles more evenly than that. The same mixture so has a larger value in a longer
      sequence: compare within one task and length. NaN without a row that counts.
    """
    mass_nc = np.asarray(masses["mass"], np.float64).sum(0)
    if not np.any(masses["n_rows"]):
        return math.nan, math.nan
    weights_n = uniform(len(mass_nc)) if head_weights is None else head_weights
    nats = float(entr(distribution(mass_nc)).sum(-1) @ weights_n)
    everywhere_c = np.asarray(masses["baseline"], np.float64).sum(0)
    largest = float(entr(distribution(everywhere_c)).sum())
    return nats, nats / largest if largest > 0 else math.nan


def used_shares(loss_rises: np.ndarray) -> np.ndarray:
    """Head weights for `specialization_used`: a head's share of what leaving one out costs.

    The positive parts of the loss rises, divided by their sum: a head whose absence lowers the loss
    has no share. NaN for all heads when no rise is positive, or one is NaN.

    Args:
      loss_rises: [n], loss without the head minus loss with all of them.
    """
    positive_n = np.maximum(np.asarray(loss_rises, np.float64), 0)
    total = positive_n.sum()
    return positive_n / total if total > 0 else np.full_like(positive_n, math.nan)


def entr(p: np.ndarray) -> np.ndarray:
    """-p log p, 0 where p is 0."""
    return -p * np.log(np.where(p > 0, p, 1))


def uniform(n: int) -> np.ndarray:
    """n equal probabilities."""
    return np.full(n, 1 / n)


def distribution(mass_nc: np.ndarray) -> np.ndarray:
    """Rows that sum to one."""
    return mass_nc / mass_nc.sum(-1, keepdims=True)

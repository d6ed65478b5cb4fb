"""How often the reports would be wrong: tables of simulated cells whose truth is known.

Five seeds; noise of seeds is partly shared by all cells, as runs of a seed share their batches.
Every table goes through the functions that the reports use. 2,000 tables: the standard error of a
fraction of 5 % is 0.5 %, of 80 % it is 0.9 %.
"""

import itertools
import math

import numpy as np
import pytest

from mha_jax.report.compare import ALPHA, Comparison, Pair, Side, compare, minimum_detectable
from mha_jax.report.intervals import t_interval

N_TABLES = 2000
N_SEEDS = 5
SHARED, OWN = 0.03, 0.02  # standard deviations of the noise of a seed, and of a seed in a cell


def noise(n_cells: int, seed: int, n_tables: int = N_TABLES) -> np.ndarray:
    """Gaussian, [table, cell, seed]."""
    generator = np.random.default_rng(seed)
    shared = generator.normal(0, SHARED, (n_tables, 1, N_SEEDS))
    return shared + generator.normal(0, OWN, (n_tables, n_cells, N_SEEDS))


def bimodal(n_cells: int, seed: int) -> np.ndarray:
    """A seed solves the task (1.0) with probability .7, otherwise it stays at .6; half of the seeds
    meet the same fate in every cell. [table, cell, seed]
    """
    generator = np.random.default_rng(seed)
    fate = generator.random((N_TABLES, 1, N_SEEDS))
    own = generator.random((N_TABLES, n_cells, N_SEEDS))
    shares = generator.random((N_TABLES, 1, N_SEEDS)) < 0.5
    solves = np.where(shares, fate, own) < 0.7
    return np.where(solves, 1.0, 0.6) + generator.normal(0, 0.002, solves.shape)


def table(cells: np.ndarray) -> list[Comparison]:
    """All pairs of a table, [cell, seed]."""
    sides = [
        Side({(s, s): float(v) for s, v in enumerate(row)}, "converged", "twin") for row in cells
    ]
    return compare([Pair(a, b, "accuracy", "max") for a, b in itertools.combinations(sides, 2)])


def false_claims(tables: np.ndarray) -> float:
    """Fraction of tables of equal cells in which any is called better."""
    return np.mean([any("is better" in r.verdict for r in table(cells)) for cells in tables])


def test_an_interval_holds_the_truth_in_95_percent() -> None:
    """Of a cell's mean, and of the difference of two cells, whose true values are 0."""
    tables = noise(2, seed=0)
    means = [t_interval(cells[0].tolist()) for cells in tables]
    pairs = [table(cells)[0] for cells in tables]
    for low, high in (np.array(means).T, np.array([(r.ci_low, r.ci_high) for r in pairs]).T):
        assert 0.93 < np.mean((low <= 0) & (high >= 0)) < 0.97


@pytest.mark.parametrize("n_cells", [2, 3, 5])
def test_false_claims_are_rare(n_cells: int) -> None:
    """Holm's proof bounds their rate by ALPHA, 4 %, for any dependence; for two cells it is exact.
    Without the adjustment 3 cells make 12 % and 5 cells 33 %.
    """
    assert false_claims(noise(n_cells, seed=n_cells)) < 0.05


@pytest.mark.parametrize("n_cells", [2, 4])
def test_false_claims_of_bimodal_cells(n_cells: int) -> None:
    """The t test assumes a bell, and here one of two values is drawn. Such a cell is `seeds_split`,
    and is not ranked; this is what would happen if one slipped through. Seen: 1.8 and 1.6 %.
    """
    assert false_claims(bimodal(n_cells, seed=n_cells)) < 0.05


def test_the_minimum_detectable_difference_is_seen_four_times_in_five() -> None:
    cells = noise(2, seed=3)
    cells[:, 0] += minimum_detectable(math.sqrt(2) * OWN, N_SEEDS, ALPHA)
    seen = [table(one)[0].verdict for one in cells]
    assert abs(np.mean([v == "A is better" for v in seen]) - 0.8) < 0.03
    assert seen.count("B is better") == 0


def test_in_a_table_it_is_seen_at_least_as_often() -> None:
    """The first of four cells is better; each of its three pairs must show it."""
    cells = noise(4, seed=4)
    cells[:, 0] += minimum_detectable(math.sqrt(2) * OWN, N_SEEDS, ALPHA / 6)
    seen = [[r.verdict == "A is better" for r in table(one)[:3]] for one in cells]
    assert np.all(np.mean(seen, axis=0) > 0.78)

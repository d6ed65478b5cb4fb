"""The bootstrap over held-out documents."""

import math

import numpy as np
import pytest

from mha_jax.report.documents import spread

LN2 = math.log(2)


def losses(bits, tokens, seeds=(0, 1)):
    """For each seed the same documents: bits a token -> summed nats."""
    one = {f"d{i}": [b * n * LN2, n] for i, (b, n) in enumerate(zip(bits, tokens, strict=True))}
    return {(s, s): one for s in seeds}


def test_interval_is_that_of_the_mean_over_documents():
    """Many documents of one length: the percentile interval is the normal one."""
    rng = np.random.default_rng(1)
    n = 400
    difference = rng.normal(0.1, 0.3, n)
    tokens = [50.0] * n
    found = spread(losses(2 + difference, tokens), losses([2.0] * n, tokens))
    error = difference.std(ddof=1) / math.sqrt(n)
    assert found.n_documents == n
    # 2,000 draws: a quantile is known to 4 % of the interval's width.
    assert found.low == pytest.approx(difference.mean() - 1.96 * error, abs=0.2 * error)
    assert found.high == pytest.approx(difference.mean() + 1.96 * error, abs=0.2 * error)


def test_documents_weigh_by_their_tokens():
    tokens = [10.0] * 200 + [30.0] * 200
    found = spread(losses([1.0] * 200 + [3.0] * 200, tokens), losses([1.0] * 400, tokens))
    # 2 bits on three quarters of the tokens; unweighted it would be 1.
    assert 1.3 < found.low < 1.5 < found.high < 1.7


def test_only_shared_seeds_count():
    a, b = losses([1.0, 1.0], [5.0, 5.0], seeds=(0, 1)), losses([2.0, 2.0], [5.0, 5.0], seeds=(1,))
    a[0, 0] = {name: [99.0, 5.0] for name in a[0, 0]}
    assert spread(a, b) == (2, pytest.approx(-1), pytest.approx(-1))
    assert spread(a, {}) is None
    assert spread(losses([1.0], [5.0]), losses([2.0], [5.0])) is None
    assert spread({(0, 0): {}}, {(0, 0): {}}) is None


def test_a_difference_that_is_one_documents_own_is_not_general():
    bits = [2.0] * 9 + [3.0]
    found = spread(losses(bits, [10.0] * 10), losses([2.0] * 10, [10.0] * 10))
    assert found.low == 0 < found.high

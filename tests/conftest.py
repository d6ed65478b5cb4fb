"""What every test shares. Warnings are errors: pyproject.toml lists the exceptions with reasons."""

import itertools
import signal
from collections.abc import Callable
from typing import Any

import hypothesis
import jax
import numpy as np
import pytest

# A shell ignores it for what runs in its background, and launches inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A shape that broadcasts by an invented leading axis is nearly always a mistake.
jax.config.update("jax_numpy_rank_promotion", "raise")
# Else GPU and TPU round the factors of a float32 product to 10 or 7 bits, and parity means little.
jax.config.update("jax_default_matmul_precision", "highest")

# The first example of a jitted function pays for its compilation, so no deadline; the same examples
# in every run, so that a failure belongs to the change that it is seen with.
hypothesis.settings.register_profile("mha_jax", deadline=None, derandomize=True)
hypothesis.settings.load_profile("mha_jax")

# Largest difference, relative to max(1, |desired|), of two float32 computations of one formula.
# CPU: sums of a few hundred terms in another order differ by about 1e-6. GPU, TPU: their sums and
# exponentials are also other algorithms, one digit worse.
TOLERANCE = {"cpu": 1e-5, "gpu": 1e-4, "tpu": 1e-4}


@pytest.fixture(scope="session")
def assert_close() -> Callable[..., None]:
    """`assert_close(actual, desired, tolerance=None)`: two arrays, or two pytrees of arrays.

    They must agree in structure and shapes, and in values up to `tolerance * max(1, |desired|)`.
    The default is that of the backend; a test that needs another says why beside it.
    """

    def check(actual: Any, desired: Any, tolerance: float | None = None) -> None:
        if tolerance is None:
            tolerance = TOLERANCE[jax.default_backend()]

        def check_leaf(path: tuple, a: Any, d: Any) -> None:
            a, d = np.asarray(a, np.float64), np.asarray(d, np.float64)
            where = jax.tree_util.keystr(path)
            assert a.shape == d.shape, f"{where} has shape {a.shape}, not {d.shape}"
            worst = np.max(np.abs(a - d) / np.maximum(1, np.abs(d)), initial=0)
            assert worst <= tolerance, f"{where} differs by {worst:.2g}, above {tolerance:g}"

        jax.tree_util.tree_map_with_path(check_leaf, actual, desired)

    return check


@pytest.fixture
def getkey() -> Callable[[], jax.Array]:
    """`getkey()`: another random key at each call, the same ones in every run of a test."""
    seeds = itertools.count()
    return lambda: jax.random.key(next(seeds))

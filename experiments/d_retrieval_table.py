"""The table of D-retrieval: error against head count and sequence length, one and two layers.

    python scripts/sweep.py --config=experiments/d_retrieval_table.py:quick --workdir=results
    python scripts/sweep.py --config=experiments/d_retrieval_table.py:full --workdir=results

The target sums D maxima. Theory: D heads of width 2 are enough at any length, fewer need parameters
exponential in the length (Yu et al. 2026, arXiv:2510.06662, theorem 2; its tables 2 to 5 have this
shape). To be seen: the error falls by a decade or more from D - 1 to D heads and not after, it
grows with the length below D heads and not from D on; with two layers the fall is where layers *
heads reaches D (conjecture).

:full has not been run to its end yet; the dry run tells its size.
"""

from ml_collections import ConfigDict

from configs import d_retrieval

# (D, layers, length): head counts
TABLE = {
    (4, 1, 4): (1, 2, 3, 4, 5),
    (4, 1, 8): (1, 2, 3, 4, 5),
    (4, 1, 16): (1, 2, 3, 4, 5),
    (3, 1, 8): (1, 2, 3, 4),
    (4, 2, 8): (1, 2),
}


def get_config(arg: str | None = None) -> ConfigDict:
    """quick: one learning rate, one seed, length 8; full: tuned, 5 seeds, budgets doubled."""
    if arg not in ("quick", "full"):
        raise ValueError(f"d_retrieval_table takes :quick or :full, not {arg!r}")
    config = d_retrieval.get_config()
    config.experiment = f"d_retrieval_table.{arg}"
    config.model.d_model = 32
    config.model.d_head = 8
    config.train.n_steps = 4000
    config.optim.lr = 4e-3
    if arg == "full":
        config.tune.lrs = "2e-3,4e-3,8e-3,16e-3"
        config.tune.widen = 1
        config.converge.confirm = True
    return config


def sweep(add, arg: str) -> None:
    """Every row of the table; two layers need a residual to carry what the first one found."""
    for (n_maxima, n_layers, length), counts in TABLE.items():
        for n_heads in counts:
            if arg == "full" or length == 8:
                add(
                    {
                        "task.d_retrieval.n_maxima": n_maxima,
                        "task.d_retrieval.length": length,
                        "model.n_layers": n_layers,
                        "model.residual": n_layers > 1,
                        "model.n_heads": n_heads,
                    }
                )

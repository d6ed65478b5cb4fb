"""The table of D-retrieval: error against head count and sequence length, one and two layers.

    python scripts/sweep.py --config=experiments/d_retrieval_table.py:quick --workdir=results
    python scripts/sweep.py --config=experiments/d_retrieval_table.py:full --workdir=results

The target sums D maxima. Theory: D heads of width 2 are enough at any length, fewer need parameters
exponential in the length (Yu et al. 2026, arXiv:2510.06662, theorem 2; its tables 2 to 5 have this
shape). To be seen: the error falls by a decade or more from D - 1 to D heads and not after, it
grows with the length below D heads and not from D on; with two layers the fall is where layers *
heads reaches D (conjecture).

Seen with :full (341 runs on 2 cores, 14 minutes), normalised squared error, median of 5 seeds;
* where twice the steps still take off more than a tenth of a decade (.10 to .28 of one):

    heads            1        2        3        4        5
    D 4, length 4    2.8e-2*  7.0e-3*  2.0e-3*  3.3e-5   3.8e-5
    D 4, length 8    3.1e-2*  1.1e-2*  2.9e-3*  1.6e-4   1.5e-4
    D 4, length 16   4.1e-2*  1.5e-2*  3.9e-3*  8.8e-5   2.0e-4
    D 3, length 8    2.7e-2*  4.9e-3*  1.1e-4   6.8e-5
    D 4, length 8, two layers
                     3.9e-3*  3.3e-4

The fall from D - 1 to D heads is a factor of 18 to 58, and of 12 from one head to two in each of
two layers; a fifth head brings nothing that is told apart. From length 4 to 16 the error grows by
1.5 to 2.1 below D heads, and by 2.7 and 5.3 from D on, where every seed counts as solved: that the
length does not matter from D on is not seen in what is left there. Below D heads nothing is
converged, so none of those cells is ranked: at a gain of .1 to .3 of a decade a doubling they would
need many to get to where D heads are.

With other seeds (--config.train.seed=100) the medians are 4.3e-2, 1.5e-2, 3.6e-3, 1.3e-4, 9.4e-5 at
length 16, 3.1e-2, 1.1e-2, 2.7e-3, 2.3e-4, 2.1e-4 at 8, 2.3e-2, 7.0e-3, 1.8e-3, 4.1e-5, 6.4e-5 at 4;
2.7e-2, 4.8e-3, 9.4e-5, 1.1e-4 for D = 3; 3.1e-3 and 2.6e-4 with two layers. The falls to D heads
are factors of 12 to 51; a fifth head brings nothing that is told apart. Nothing below D heads is
ranked but two heads at length 8, which twice the steps move by .08 of a decade, and which two
layers of two heads beat by 1.7 decades; and one seed of four heads at length 4 ends at 9e-4.
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

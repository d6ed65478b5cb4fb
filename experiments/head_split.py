"""The same weights, split into 1, 2, 4 and 8 heads.

    python scripts/sweep.py --config=experiments/head_split.py:quick --workdir=results

The head split is a reshape: at a fixed width every head count has the same parameters and, with the
same seed, starts from bitwise the same ones. What differs is only how many softmaxes read them.

Seen with :full (80 runs, 395 s on 2 cores that did other work as well; accuracy at the rate that
validation chose, mean of 5 seeds and its 95 % interval):

    heads      1              2              4            8
    accuracy   .549 +- .002   .768 +- .001   1.000        1.000
    status     rate at the edge of the grid  converged    converged
"""

from ml_collections import ConfigDict

from configs import base


def get_config(arg: str | None = None) -> ConfigDict:
    """`relations` with the defaults of configs/base.py."""
    if arg not in ("quick", "full"):
        raise ValueError(f"head_split takes :quick or :full, not {arg!r}")
    config = base.get_config()
    config.experiment = f"head_split.{arg}"
    config.train.n_steps = 1500
    config.train.eval_every = 250
    return config


def sweep(add, arg: str) -> None:
    """quick: 2 seeds at one learning rate; full: 5 seeds at four."""
    lrs, seeds = ((4e-3,), range(2)) if arg == "quick" else ((2e-3, 4e-3, 8e-3, 16e-3), range(5))
    for n_heads in (1, 2, 4, 8):
        for lr in lrs:
            for seed in seeds:
                add(
                    {
                        "model.n_heads": n_heads,
                        "optim.lr": lr,
                        "train.seed": seed,
                        "train.data_seed": seed,
                    }
                )

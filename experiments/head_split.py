"""The same weights, split into 1, 2, 4 and 8 heads.

    python scripts/sweep.py --config=experiments/head_split.py:quick --workdir=results
    python scripts/sweep.py --config=experiments/head_split.py:full --workdir=results

The head split is a reshape: at a fixed width every head count has the same parameters and, with the
same seed, starts from bitwise the same ones. What differs is only how many softmaxes read them.

Seen with :full (20 seeds and rates that choose, 20 runs that are reported, 10 with twice the steps;
368 s on 2 cores that did other work as well, :quick 20 s), test accuracy and its 95 % interval:

    heads      1              2              4        8
    accuracy   .549 +- .002   .766 +- .008   1.000    1.000
    converged  twice the steps: +.002, +.007 solved   solved
    verdict    4 better than 2 by .23, 2 better than 1 by .22; 4 and 8 both solve it
"""

from ml_collections import ConfigDict

from configs import base


def get_config(arg: str | None = None) -> ConfigDict:
    """`relations`. quick: 2 seeds at one learning rate; full: tuned, 5 seeds, budgets doubled."""
    if arg not in ("quick", "full"):
        raise ValueError(f"head_split takes :quick or :full, not {arg!r}")
    config = base.get_config()
    config.experiment = f"head_split.{arg}"
    config.train.n_steps = 1500
    config.train.eval_every = 250
    config.optim.lr = 4e-3
    if arg == "full":
        config.tune.lrs = "2e-3,4e-3,8e-3,16e-3"
        config.tune.widen = 1
        config.converge.confirm = True
    return config


def sweep(add, arg: str) -> None:
    """Every head count."""
    seeds = [{"train.seed": s, "train.data_seed": s} for s in range(2)] if arg == "quick" else [{}]
    for n_heads in (1, 2, 4, 8):
        for seed in seeds:
            add({"model.n_heads": n_heads, **seed})

"""Too few heads, too many heads: where is the best number?

    python scripts/sweep.py --config=experiments/vaswani_u.py:quick --workdir=results
    python scripts/sweep.py --config=experiments/vaswani_u.py:full --workdir=results

Vaswani et al. 2017, table 3 A: at constant compute one head is worst, 8 to 16 are best, 32 lose
again. `mixture` shows the same, since it asks for two things that a fixed width must share: a
convolution of three taps, which needs a head each, and nearest neighbours in 16 dimensions, which
need a head of width 16.

Seen with :full (on 2 cores, 28 minutes beside other work), R^2, mean of 5 seeds, the half width of
its 95 % interval, and the chosen learning rate:

    heads      1      2      4      8      16     32
    both       .186   .377   .988   .714   .663   .628
    +-         .003   .010   .000   .003   .003   .017
    nearest    .007   .022   .976   .428   .325   .278
    taps       .365   .731   1.000  .999   1.000  .978
    rate       .004   .004   .008   .064   .016   .008

Every step of 4 > 8 > 16 > 32 > 2 > 1 heads is told apart. With other seeds (train.seed=100 and a
grid that may grow by one rate only) the same order, every step told apart: .188 .367 .987 .703 .662
.621. :quick: .183 .375 .984 .686 .661 .613.
"""

from ml_collections import ConfigDict

from configs import mixture


def get_config(arg: str | None = None) -> ConfigDict:
    """quick: one learning rate and seed; full: tuned, 5 seeds, budgets doubled."""
    if arg not in ("quick", "full"):
        raise ValueError(f"vaswani_u takes :quick or :full, not {arg!r}")
    config = mixture.get_config()
    config.experiment = f"vaswani_u.{arg}"
    config.train.n_steps = 2000
    if arg == "full":
        config.tune.lrs = "2e-3,4e-3,8e-3,16e-3"
        config.tune.widen = 2
        config.converge.confirm = True
    return config


def sweep(add) -> None:
    """d_model 64 cut into 1 to 32 heads."""
    for n_heads in (1, 2, 4, 8, 16, 32):
        add({"model.n_heads": n_heads})

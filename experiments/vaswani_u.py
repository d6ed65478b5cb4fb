"""Too few heads, too many heads: where is the best number?

    python scripts/sweep.py --config=experiments/vaswani_u.py:quick --workdir=results
    python scripts/sweep.py --config=experiments/vaswani_u.py:full --workdir=results

Vaswani et al. 2017, table 3 A: at constant compute one head is worst, 8 to 16 are best, 32 lose
again. A task shows the same where it asks for two things that a fixed width must share: several
patterns at once, which need heads, and precise comparison, which needs wide heads. `attr` with many
values an attribute asks for both: 4 pointers, each into 16 items told apart by one of 64 values.

NUMBERS
"""

from ml_collections import ConfigDict

from configs import attr


def get_config(arg: str | None = None) -> ConfigDict:
    """quick: one learning rate and seed; full: tuned, 5 seeds, budgets doubled."""
    if arg not in ("quick", "full"):
        raise ValueError(f"vaswani_u takes :quick or :full, not {arg!r}")
    config = attr.get_config()
    config.experiment = f"vaswani_u.{arg}"
    config.task.attr.attribute_vocab = 64
    config.task.attr.n_queries = 4
    config.train.n_steps = 2000
    config.optim.lr = 4e-3
    if arg == "full":
        config.tune.lrs = "2e-3,4e-3,8e-3,16e-3"
        config.tune.widen = 1
        config.converge.confirm = True
    return config


def sweep(add) -> None:
    """d_model 64 cut into 1 to 32 heads."""
    for n_heads in (1, 2, 4, 8, 16, 32):
        add({"model.n_heads": n_heads})

"""What is W_O for?

    python scripts/sweep.py --config=experiments/without_wo.py:quick --workdir=results
    python scripts/sweep.py --config=experiments/without_wo.py:full --workdir=results
    python scripts/slots.py results/without_wo.full/RUN   # which head writes which columns

`wide_taps` asks for 64 columns, each a sum over four taps, and the 64 columns of the layer are the
answer. The heads of d_model 64, side by side, are as wide: head i's *slot* is the i-th n-th of the
columns. With W_O every head writes to every column; without it head i writes its slot alone, and a
slot gets the values of one attention pattern, however many heads there are. With a linear read-out
behind the layer W_O can go: the read-out is W_O.

Seen with :quick (6 runs at one rate and seed, 70 s on 2 cores under load), R^2, its bound in
brackets:

    heads                          1             4
    W_O                            .269 (.269)   1.000 (1)
    none                           .269 (.269)   .278 (.281)
    none, a read-out behind it     .269 (.269)   1.000 (1)

    slot of the 4 heads            0       1       2       3
    none                           .287    .274    .271    .279
    one pattern at best            .289    .275    .281    .280

Without W_O four heads are hardly better than one: every slot stays below what one pattern can reach
in it (`one_pattern/slot<i>`, a baseline in runs.csv). scripts/slots.py says that only head i moves
slot i: the Jacobian is 4 on the diagonal (16 entries, one column each) and 0 beside it. With W_O,
or with a read-out, all its blocks are about 3, and .27 of the squares are on the diagonal. So
forgetting W_O is a bug that a model with a linear read-out, an MLP or another layer behind it does
not show in its quality. The small gain of four heads over one is that each slot chooses its own
pattern.

Seen with :full (108 runs, 907 s on 2 cores beside other work; 5 seeds, rates tuned), R^2, its bound
in brackets; all twelve cells converged, intervals below .001:

    heads                          1             2             4             8
    W_O                            .269 (.269)   .539 (.539)   1.000 (1)     1.000 (1)
    none                           .269 (.269)   .270 (.271)   .278 (.281)   .290 (.295)
    none, a read-out behind it     .269 (.269)   .539 (.539)   1.000 (1)     1.000 (1)

The same. Without W_O eight heads are worth a hundredth more than four. Each of their slots stays
below its one pattern (.268 to .301, at best .285 to .305, seed 0), and the Jacobian is diagonal.

With another seed (`:quick --config.train.seed=100`): 1.000 with W_O or a read-out and .276 without,
four heads; .269 for one head each way.
"""

from ml_collections import ConfigDict

from configs import wide_taps

VARIANTS = (
    {},  # W_O, whose columns are the answer
    {"model.use_wo": False},  # the concatenated heads are the answer
    {"model.use_wo": False, "task.wide_taps.readout": "linear"},  # a linear map behind them
)


def get_config(arg: str | None = None) -> ConfigDict:
    """quick: one learning rate and seed, 1 and 4 heads; full: tuned, 5 seeds, budgets doubled."""
    if arg not in ("quick", "full"):
        raise ValueError(f"without_wo takes :quick or :full, not {arg!r}")
    config = wide_taps.get_config()
    config.experiment = f"without_wo.{arg}"
    config.train.n_steps = 1000
    config.train.eval_every = 250
    if arg == "full":
        config.tune.lrs = "2e-3,4e-3,8e-3,16e-3"
        config.tune.widen = 1
        config.tune.n_selection = 1
        config.converge.confirm = True
    return config


def sweep(add, arg: str) -> None:
    """Every variant at every head count."""
    for variant in VARIANTS:
        for n_heads in (1, 4) if arg == "quick" else (1, 2, 4, 8):
            add({**variant, "model.n_heads": n_heads})

"""Where heads do not help: counting, copying, sorting, recall.

    python scripts/sweep.py --config=experiments/controls.py:quick --workdir=results
    python scripts/sweep.py --config=experiments/controls.py:full --workdir=results

Each of these tasks needs one attention pattern a layer, so one head is enough, and more heads at
the same width are only narrower. A sweep that finds an advantage of many heads here has found
something else: too few steps, an untuned learning rate.

Seen with :full (168 runs on 2 cores, 20 minutes), accuracy, mean of 5 seeds:

    heads        1        2        8
    copy         1.0000   1.0000   1.0000
    sort          .9998    .9998    .9998
    mqar          .9999   1.0000   1.0000
    histogram     .778     .963     .998    (1 and 2: twice the steps still add .04 and .01)

Heads do not help with copying, sorting and recall: all cells are solved, and none is better than
another. Counting is no such control at this budget: one head is far behind eight, is not converged
and not ranked. With 8,000 steps in place of 1,000 (one seed, rate 8e-3) one head was at .982 and
still rising, and two at .9997. Whether one head gets there is open.

With other seeds (--config.train.seed=100) the verdicts are the same: 1.0000 but for sort, .9999,
.9998, .9999, and histogram, .811, .956, .998, of which one and two heads are not converged.
"""

from ml_collections import ConfigDict

from configs import base

TWO_LAYERS = {"model.n_layers": 2, "model.norm": "rms", "model.residual": True}
TASKS = {
    "histogram": {
        "model.positions": "none",
        "model.d_ff": 128,
        "model.norm": "rms",
        "model.residual": True,
        "train.n_steps": 1000,
    },
    "copy": {**TWO_LAYERS, "train.n_steps": 1000},
    "sort": {**TWO_LAYERS, "model.d_ff": 128, "train.n_steps": 1500},
    "mqar": {**TWO_LAYERS, "model.norm": "layer", "train.n_steps": 2000},
}


def get_config(arg: str | None = None) -> ConfigDict:
    """quick: one learning rate, one seed, 1 and 8 heads; full: tuned, 5 seeds, budgets doubled."""
    if arg not in ("quick", "full"):
        raise ValueError(f"controls takes :quick or :full, not {arg!r}")
    config = base.get_config()
    config.experiment = f"controls.{arg}"
    if arg == "full":
        config.tune.lrs = "1e-3,2e-3,4e-3,8e-3"
        config.tune.widen = 1
        config.converge.confirm = True
    return config


def sweep(add, arg: str) -> None:
    """Heads as slices of one width."""
    for task, overrides in TASKS.items():
        for n_heads in (1, 8) if arg == "quick" else (1, 2, 8):
            add({"task.name": task, **overrides, "model.n_heads": n_heads})

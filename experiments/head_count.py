"""Where does another head stop helping: at as many heads as the task has relations, taps,
attributes or maxima?

    python scripts/sweep.py --config=experiments/head_count.py:quick --workdir=results
    python scripts/sweep.py --config=experiments/head_count.py:full --workdir=results

Each task at a fixed width of the model, where more heads are narrower at equal parameters, and at a
fixed width of a head, where more heads are more parameters. The two are different questions; the
tables keep them apart by d_head.

Seen with :full (843 s on 2 cores, :quick 37 s; the rate chosen of four on 2 seeds, mean of 5 other
seeds; cells that twice the steps move are marked *, and are not ranked):

    heads, of width                1, 64    2, 32   4, 16   8, 8    1, 16   2, 16   8, 16
    relations, accuracy            .549     .766    1.000   1.000   .546    .746    1.000
    attr, 4 attributes, accuracy   .453     .702*   1.000   1.000   .393    .609    1.000
    taps, 4 taps, R^2              .247     .506    1.000   1.000   .247    .505    1.000
      its ceiling                  .250     .523    1.000   1.000   .250    .523    1.000

    heads of width 8               1        2       3       4       5       (8 of width 4)
    d_retrieval, 4 maxima, NMSE    3.1e-2*  1.1e-2* 2.8e-3* 1.6e-4  1.7e-4  1.5e-4

In all four the step to as many heads as the task asks for is the largest and the last. On attr
wider heads are better below it (.453 against .393). On d_retrieval nothing is ranked: from four
heads on it is solved, and below the errors still fall, by .11 to .16 of a decade for twice the
steps.

With other seeds (--config.train.seed=100) the last large step is again the one to as many heads as
the task asks for, and certain wherever both sides are ranked: relations .769 (2 of width 32; 2 of
width 16 *) to 1.000, attr .647 to 1.000, taps .504 to 1.000. Wider heads are better on attr with
one head again, .452 against .391, and not told apart with two, nor on relations with one. On
d_retrieval some cells below four heads come out within the tolerance of twice the steps, and four
heads are better than two by 1.7 decades.
"""

from ml_collections import ConfigDict

from configs import base

TASKS = {
    "relations": {"train.n_steps": 1500},
    "taps": {"task.name": "taps", "model.qk_from": "positions", "train.n_steps": 1000},
    "attr": {
        "task.name": "attr",
        "task.attr.n_items": 8,
        "task.attr.attribute_vocab": 16,
        "task.attr.n_queries": 4,
        "model.positions": "none",
        "train.n_steps": 2000,
        "train.batch_size": 32,
    },
    "d_retrieval": {
        "task.name": "d_retrieval",
        "task.d_retrieval.length": 8,
        "model.positions": "none",
        "model.d_model": 32,
        "model.bias": True,
        "train.n_steps": 4000,
    },
}
# task -> (n_heads, d_head): first at a fixed d_model, then at a fixed d_head
SHAPES = {
    "relations": ((1, 64), (2, 32), (4, 16), (8, 8), (1, 16), (2, 16), (8, 16)),
    "taps": ((1, 64), (2, 32), (4, 16), (8, 8), (1, 16), (2, 16), (8, 16)),
    "attr": ((1, 64), (2, 32), (4, 16), (8, 8), (1, 16), (2, 16), (8, 16)),
    "d_retrieval": ((1, 32), (2, 16), (8, 4), (1, 8), (2, 8), (3, 8), (4, 8), (5, 8)),
}


def get_config(arg: str | None = None) -> ConfigDict:
    """quick: one learning rate and seed, one of the two widths; full: tuned, 5 seeds, budgets
    doubled.
    """
    if arg not in ("quick", "full"):
        raise ValueError(f"head_count takes :quick or :full, not {arg!r}")
    config = base.get_config()
    config.experiment = f"head_count.{arg}"
    config.optim.lr = 4e-3
    if arg == "full":
        config.tune.lrs = "2e-3,4e-3,8e-3,16e-3"
        config.tune.widen = 1
        config.converge.confirm = True
    return config


def sweep(add, arg: str) -> None:
    """Every shape of every task."""
    for task, overrides in TASKS.items():
        shapes = SHAPES[task]
        if arg == "quick":
            shapes = shapes[3:] if task == "d_retrieval" else shapes[:4]
        for n_heads, d_head in shapes:
            add({**overrides, "model.n_heads": n_heads, "model.d_head": d_head})

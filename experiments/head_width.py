"""How narrow may a head be?

    python scripts/sweep.py --config=experiments/head_width.py:quick --workdir=results
    python scripts/sweep.py --config=experiments/head_width.py:full --workdir=results

`nearest` asks for the nearest of 16 vectors in 16 dimensions: one head of width 16 can compare
them, a narrower one sees a projection. At a fixed d_model more heads are narrower; at a fixed
d_head they are not, and cost parameters. Heads that share keys are compared below the cliff.

Seen with :full (911 s on 2 cores that did other work as well; the rate chosen of four on 2 seeds,
mean of 5 other seeds; every cell converged, R^2):

    heads, of width       1, 64   2, 32   4, 16   8, 8    16, 4    1, 16   2, 16   8, 16
    R^2                   .982    .983    .983    .533    .378     .981    .982    .983
    one pattern at best   1       1       1       .268    .145     1       1       1

    8 heads of width 8, kv heads     8       2       1
    R^2                              .533    .376    .273

Heads of width 16 all solve it. Width 16 is better than 8 by .45 and 8 better than 4 by .16; sharing
keys costs .16 and .10. ("One pattern at best": the baseline `softmax`, all heads alike.)

With other seeds (--config.train.seed=100) every verdict is the same: .982, .983, .982, .534, .379,
.980, .982, .983, and .376 and .274 with shared keys.
"""

from ml_collections import ConfigDict

from configs import nearest

# (n_heads, n_kv_heads, d_head): d_model 64 in slices, then width 16, then width 8 with shared keys.
SHAPES = (
    *((1, 1, 64), (2, 2, 32), (4, 4, 16), (8, 8, 8), (16, 16, 4)),
    *((1, 1, 16), (2, 2, 16), (8, 8, 16)),
    *((8, 2, 8), (8, 1, 8)),
)


def get_config(arg: str | None = None) -> ConfigDict:
    """quick: one learning rate, one seed, fewer shapes; full: tuned, 5 seeds, budgets doubled."""
    if arg not in ("quick", "full"):
        raise ValueError(f"head_width takes :quick or :full, not {arg!r}")
    config = nearest.get_config()
    config.experiment = f"head_width.{arg}"
    config.train.n_steps = 1500
    config.optim.lr = 4e-3
    if arg == "full":
        config.tune.lrs = "2e-3,4e-3,8e-3,16e-3"
        config.tune.widen = 1
        config.converge.confirm = True
    return config


def sweep(add, arg: str) -> None:
    """Every shape; quick leaves out those that share keys."""
    for n_heads, n_kv_heads, d_head in SHAPES if arg == "full" else SHAPES[:8]:
        add({"model.n_heads": n_heads, "model.n_kv_heads": n_kv_heads, "model.d_head": d_head})

"""How few key/value heads are enough?

    python scripts/sweep.py --config=experiments/kv_groups.py:quick --workdir=results
    python scripts/sweep.py --config=experiments/kv_groups.py:full --workdir=results

All query heads stay; they share fewer and fewer keys and values. Heads that only ask different
questions of the same tokens can share; heads that need other keys or values cannot, once n_kv_heads
* d_head has less room than the task needs.

Seen with :full (616 s on 2 cores that did other work as well, :quick 30 s; the rate chosen on 2
seeds, mean of 5 other seeds; cells that twice the steps move are marked *, and are not ranked):

    kv heads                                   16     8      4      2      1
    relations, 16 heads of width 4, accuracy   1.000  1.000  1.000  .998   .712*
    attr, 8 heads of width 8, accuracy                1.000  1.000  1.000  .745*
    taps, 32 channels, 8 of width 8, R^2              1.000  1.000  .500   .250
      its ceiling                                     1.000  1.000  .500   .250

On taps the last two steps down are certain. On the other two everything but one kv head solves
the task; with one, twice the steps reach .790 and .764 (validation).

With other seeds (--config.train.seed=100) the verdicts on taps are the same, to three digits. One
kv head is far behind again, .666* on relations and .747 on attr, which twice the steps leave at
.750 there, so that it is ranked last with certainty. On relations two kv heads reach .994*, three
of five seeds at once and all with twice the steps.
"""

from ml_collections import ConfigDict

from configs import base

TASKS = {
    "relations": {"model.n_heads": 16, "train.n_steps": 1500},
    "attr": {
        "task.name": "attr",
        "task.attr.n_items": 8,
        "task.attr.attribute_vocab": 16,
        "task.attr.n_queries": 4,
        "model.positions": "none",
        "model.n_heads": 8,
        "train.n_steps": 2000,
        "train.batch_size": 32,
    },
    "taps": {
        "task.name": "taps",
        "task.taps.n_taps": 2,
        "task.taps.n_channels": 32,
        "model.n_heads": 8,
        "model.qk_from": "positions",
        "train.n_steps": 1000,
    },
}


def get_config(arg: str | None = None) -> ConfigDict:
    """quick: one learning rate, one seed; full: tuned, 5 seeds, budgets doubled."""
    if arg not in ("quick", "full"):
        raise ValueError(f"kv_groups takes :quick or :full, not {arg!r}")
    config = base.get_config()
    config.experiment = f"kv_groups.{arg}"
    config.optim.lr = 4e-3
    if arg == "full":
        config.tune.lrs = "2e-3,4e-3,8e-3,16e-3"
        config.tune.widen = 1
        config.converge.confirm = True
    return config


def sweep(add) -> None:
    """n_kv_heads from n_heads (MHA) down to 1 (MQA)."""
    for overrides in TASKS.values():
        n_kv_heads = overrides["model.n_heads"]
        while n_kv_heads >= 1:
            add({**overrides, "model.n_kv_heads": n_kv_heads})
            n_kv_heads //= 2

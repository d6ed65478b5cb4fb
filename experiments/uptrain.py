"""What does it cost to make GQA or MQA of a trained MHA model, and how much does 5 % more training
give back?

    python scripts/sweep.py --config=experiments/uptrain.py:quick --workdir=results
    python scripts/sweep.py --config=experiments/uptrain.py:full --workdir=results

Ainslie et al. 2023 (2305.13245) make one kv head of a group of trained ones and train on for a
share alpha = .05 of the steps; their mean beats the first head, which beats a fresh draw. Here:
`mean`, `first`, `random`, `similar` (the mean of groups chosen so that alike heads share) and
`aligned` (heads turned to each other before the mean), to two kv heads and to one, on a task that
MHA has solved and on text that nothing has. Beside them the MHA model trained on for as long, and
models with as few kv heads that had the whole budget from the start, and all of it at a tuned rate,
while that of the MHA part is fixed. `initial_mean` in `frontier.csv` is the quality at alpha = 0,
on the validation draw.

Seen with :quick (20 runs, one seed and rate, 136 s on 2 cores), after training on:

                          mean    first   random   from the start   MHA trained on
    relations, accuracy, of MHA .993
      2 kv heads          .509    .433    .360     .978             .989
      1                   .385    .176    .180     .782
    text, bits per byte, of MHA 2.158
      2 kv heads          3.106   3.175   3.447    2.229            2.253
      1                   3.119   3.350   3.437    2.199

Text gets worse when MHA trains on, at the rate of the 1,000 steps before ("of MHA" is on test data,
as the rest). The order is that of the paper, mean before first before random, but for
one kv head on relations, where the last two are equal. None comes near a model that had its kv
heads from the start: 5 % of so short a training is 75 and 50 steps.

With another seed (`:quick --config.train.seed=100`) the mean is first again: relations .503, .434,
.374 with two kv heads and .406, .256, .351 with one, where the fresh draw is ahead of the first
head; from the start .853 and .829. Text 3.044, 3.239, 3.437 and 3.106, 3.326, 3.460.

Seen with :full (323 runs; 35 min on 2 cores that did much else), means of five seeds:

                          aligned  similar  mean    first   random   from the start   MHA trained on
    relations, accuracy, of MHA .990
      2 kv heads          .746     .777     .784    .680    .540     .998             .989
      1                   .692     .611     .611    .527    .495     .714
    text, bits per byte, of MHA 2.163
      2 kv heads          2.569    2.987    3.029   3.115   3.370    2.158            2.159
      1                   2.716    3.101    3.101   3.256   3.385    2.163

On text turning the heads towards each other before the mean takes off .46 and .39 bits of the .87
and .94 that the mean costs, told apart from all the others at this budget; these are, in the means,
in the order of the paper. To one kv head there is one group to choose, so that `similar` is `mean`.
On `relations` `aligned` begins best (`initial_mean` .28, the others .06 to .16) and after training
on is not told apart from the mean.
Nothing that was converted comes near what had its kv heads from the start.
"""

from ml_collections import ConfigDict

from configs import base, text

ALPHA = 0.05
TASKS = {
    "relations": {"model.n_heads": 16, "train.n_steps": 1500},
    "text": {
        "task.name": "text",
        "task.text.length": 64,
        "model.n_layers": 2,
        "model.d_ff": 128,
        "model.n_heads": 8,
        "train.n_steps": 1000,
        "train.batch_size": 16,
        "train.n_eval": 512,
        "train.n_test": 1024,
        "train.n_probe": 16,
    },
}
WAYS = (
    {"start.merge": "mean"},
    {"start.merge": "mean", "start.align": True},
    {"start.merge": "first"},
    {"start.merge": "similar"},
    {"start.merge": "random"},
)
# What configs/text.py says of the model.
TEXT_MODEL = {
    f"model.{key}": text.get_config().model[key] for key in ("positions", "norm", "residual")
}


def get_config(arg: str | None = None) -> ConfigDict:
    """quick: one learning rate and seed, fewer ways; full: tuned, 5 seeds."""
    if arg not in ("quick", "full"):
        raise ValueError(f"uptrain takes :quick or :full, not {arg!r}")
    config = base.get_config()
    config.experiment = f"uptrain.{arg}"
    config.optim.lr = 4e-3  # that of the sources
    if arg == "full":
        config.tune.lrs = "1e-3,2e-3,4e-3,8e-3"
        config.tune.widen = 3
        config.tune.n_selection = 1
    return config


def sweep(add, arg: str) -> None:
    """(task, kv heads, way), the MHA model trained on, and models trained from scratch."""
    for name, task in TASKS.items():
        common = task | (TEXT_MODEL if name == "text" else {})
        n_steps, n_heads = task["train.n_steps"], task["model.n_heads"]
        more = round(ALPHA * n_steps)
        source = f"n_kv_heads={n_heads},n_steps={n_steps},warmup_steps=200"
        started = {
            **common,
            "train.n_steps": more,
            "optim.warmup_steps": round(ALPHA * 200),
            "start.source": source,
        }
        add(started)
        for n_kv_heads in (2, 1):
            for way in WAYS if arg == "full" else WAYS[::2]:
                add({**started, "model.n_kv_heads": n_kv_heads, **way})
            scratch = {**common, "train.n_steps": n_steps + more, "model.n_kv_heads": n_kv_heads}
            add(scratch)

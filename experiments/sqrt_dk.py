"""Why are scores divided by sqrt(d_head)?

    python scripts/sweep.py --config=experiments/sqrt_dk.py:init --workdir=results
    python scripts/sweep.py --config=experiments/sqrt_dk.py:quick --workdir=results
    python scripts/sweep.py --config=experiments/sqrt_dk.py:full --workdir=results

Vaswani et al. 2017, 3.2.1: the variance of q.k is d_head, and large scores push the softmax to
where its gradients are small. Seen are fresh models (:init) and what becomes of them: d_model 32,
one head of width 8, 64 or 256 in each of 1, 4 or 8 layers with residual and RMS norm, asked for the
value at the other copy of a word. Wider heads have more parameters; what is compared is `scale` on
and off in the same shape, each at a rate of its own. Adam normalises small gradients away, so that
training may mend what the initial softmax looks like.

Seen with :init (54 runs, 3 seeds, 284 s on 2 cores under load): first and last layer of 8,
`score_variance` and `normalised_entropy` (1: uniform) of heads.csv, and the norm of the first
gradient of all parameters (`train/grad_norm` at step 1 of metrics.jsonl, the method `history` of
`mha_jax.load_sweep`) by the number of layers:

    d_head            8              64             256
    scale             on     off     on     off     on     off
    score variance    .85    6.8     1.1    71      .93    237
      of layer 7      .03    2.0     .04    40      .06    202
    entropy           .87    .52     .84    .15     .86    .08
      of layer 7      .99    .80     .99    .26     .99    .12
    gradient, 1       1.0    1.2     1.1    1.6     1.4    2.2
      4 layers        2.0    2.2     2.5    9.1     4.3    31
      8               2.1    3.0     2.3    35      4.5    269

The variance is d_head without the scaling and 1 with it, and the entropy collapses as said. The
gradient does not vanish: it grows, the more the deeper. (That of single matrices was not looked
at.) With the scaling all but the first layers start near uniform attention.

Seen with :quick (8 runs at one rate and seed, 51 s on 2 cores under load), accuracy after 600
steps, and the step at which it first was .99:

    d_head            8                          256
    scale             on           off           on            off
    1 layer           1.000 (320)  1.000 (440)   1.000 (100)   .999 (260)
    4                 .999 (420)   .993 (560)    1.000 (140)   .112 (never)

No run diverged (frontier.csv counts those whose loss was no number). In one layer the scaling saves
steps and no more: Adam compensates. In four, with wide heads, the model without it had learned
nothing. Single runs of 600 steps, with

    python scripts/train.py --config=experiments/sqrt_dk.py:quick --config.model.n_layers=8 \\
        --config.model.d_head=256 --config.model.scale=false

8 layers ended at .077, at the rate .0005 at .081, and with the scaling at 1.000; 4 layers of width
64 without it at .117.
Why depth matters is not told apart here: large gradients, or the noise that near one-hot heads
write into the residual stream.

Seen with :full (200 runs, 1,681 s on 2 cores that other work had most of; 5 seeds, rates tuned with
and without the scaling apart), accuracy after 600 steps, and in brackets the median step at which
it first was .99; (u): unconverged, twice the steps change it:

    d_head            8                          64                         256
    scale             on           off           on           off           on           off
    1 layer           1.000 (180)  1.000 (300)   1.000 (120)  .999 (200)    1.000 (100)  .999 (260)
    4                 .999 (380)   1.000 (340)   1.000 (160)  .120 (u)      1.000 (140)  .110 (u)
    8                 1.000 (340)  .999 (420)    1.000 (200)  .116 (u)      1.000 (180)  .087 (u)

The same, with a rate of its own for each: no run diverged, in one layer and with narrow heads the
scaling saves steps at most, and with heads of 64 or more in 4 or 8 layers no rate of the grid
(.0005 to .008) makes up for it. Twice the steps bring these to .10 to .17 on validation data.

With another seed (`:quick --config.train.seed=100`) all are 1.000 but 4 layers without the scaling:
.116 with width 256, as before, and .930 with width 8, where :full has 1.000 at a rate of its own.
"""

from ml_collections import ConfigDict

from configs import base

DEPTHS, WIDTHS = (1, 4, 8), (8, 64, 256)


def get_config(arg: str | None = None) -> ConfigDict:
    """init: fresh models, 3 seeds; quick: one learning rate and seed, fewer shapes; full: tuned, 5
    seeds, budgets doubled.
    """
    if arg not in ("init", "quick", "full"):
        raise ValueError(f"sqrt_dk takes :quick or :full, or :init, not {arg!r}")
    config = base.get_config()
    config.experiment = f"sqrt_dk.{arg}"
    config.task.relations.relations = "word"
    config.model.update(d_model=32, n_heads=1, norm="rms", residual=True)
    config.train.update(n_steps=600, batch_size=32, eval_every=20, n_eval=256, n_test=1024)
    config.optim.update(lr=2e-3, warmup_steps=20)
    config.log.n_images = 0
    if arg == "init":  # one update that moves nothing; its gradient is in the record
        config.train.n_steps = 1
        config.optim.update(lr=1e-12, warmup_steps=0, decay_fraction=0.0)
        config.log.every = config.probe.every = 1
    elif arg == "full":
        config.tune.lrs = "5e-4,1e-3,2e-3,4e-3,8e-3"
        config.tune.widen = 1
        config.tune.n_selection = 1
        config.converge.confirm = True
    return config


def sweep(add, arg: str) -> None:
    """Depth by width of a head, with and without the scaling."""
    seeds = range(3) if arg == "init" else (None,)
    for n_layers in (1, 4) if arg == "quick" else DEPTHS:
        for d_head in (8, 256) if arg == "quick" else WIDTHS:
            for scale in (True, False):
                shape = {"model.n_layers": n_layers, "model.d_head": d_head, "model.scale": scale}
                for seed in seeds:
                    add(shape if seed is None else {**shape, "train.seed": seed})

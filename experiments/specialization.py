"""What rises with the number of heads: the roles that are covered, or how far heads divide them?
And does sharing keys and values cost roles?

    python scripts/sweep.py --config=experiments/specialization.py:quick --workdir=results
    python scripts/sweep.py --config=experiments/specialization.py:full --workdir=results

Heads are slices of one width, on `relations` (four roles, all answers) and on text (two roles,
neither an answer), each scored every 50 steps. Read from `frontier.csv`: `roles_covered`, roles
that some head is named for, and what another threshold would say; `specialization`, how far heads
divide the roles beyond chance, its form weighted by what each head is worth, and `role_entropy`. A
high index says that heads differ, not that they are right: quality stands beside it and is not
explained by it.

Seen with :full (126 runs; 20 min on 2 cores that did much else), means of five seeds:

    heads, kv heads            1, 1   2, 2   4, 4   4, 1   8, 8   8, 4   8, 2   8, 1
    relations, accuracy        .548   .767   1.000  1.000  1.000  1.000  1.000  1.000
      roles covered            0      0      4      4      4      4      4      4
      specialization           -      .19    .87    .98    .72    .84    .74    .77
      its 95 % interval               .10    .80    .97    .69    .78    .70    .73
                                      .45    .90    .99    .76    .88    .77    .82
      weighted by use          -      .19    .88    .98    .84    .84    .77    .75
      role_entropy             .97    1.26   .35    .08    .54    .36    .50    .36

    heads, kv heads            1, 1   2, 2   4, 4          8, 8          8, 2   8, 1
    text, bits per byte        2.643  2.420  2.294         2.308         2.351  2.374
      roles covered            1      1      1             1             1      1
      specialization           -      .03    .07           .07           .06    .07

Roles come in one step, from none with two heads to all four with four, and with every threshold (.3
and .7 too). The index is highest where heads are as many as roles and lower with eight heads, some
of which repeat roles (told apart from four of MHA for 8, 2 and 1 kv heads, not for 4). Sharing keys
and values costs no role, and with four heads it raises the index: four heads on one kv head divide
the four roles nearly perfectly, more than four with keys of their own (the intervals do not meet).
On text one head is for the previous byte, whatever their number, and the index stays near 0: a text
has more for heads to do than the two roles that are scored.

Seen with :quick (10 runs of one seed at one rate; 4 minutes of processor time), an illustration:

    heads, kv heads            1, 1     2, 2     4, 4     8, 8     8, 2     8, 1
    relations, accuracy        .549     .758     1.000    1.000    1.000    1.000
      roles covered            0        0        4        4        4        4
      (threshold .3, .7)       (0, 0)   (1, 0)   (4, 3)   (4, 4)   (4, 4)   (4, 4)
      specialization           -        .20      .78      .70      .77      .79
      weighted by use          -        .20      .79      .83      .71      .87
      role_entropy             1.17     1.27     .49      .54      .48      .23
      .5 at step: delimiter    never    150 *    150      150      150      150
                  prev         never    never    250      200      250      250
                  word         never    never    750      400      500      500
                  class        never    never    800      500      500      550

    * lost again: .24 at the end

    heads, kv heads            1, 1     4, 4     8, 8     8, 1
    text, bits per byte        2.60     2.34     2.37     2.43
      roles covered            0        1        1        1
      specialization           -        .02      .05      .04
      previous, .5 at step     400      250      200      300

On `relations` the roles come in one step, from none with two heads to all four with four; after
that the roles do not rise, nor the index tellably, since further heads repeat roles (three of eight
are on the delimiter) or stay mixed. One and two heads end as mixtures of roles, spread over them
more evenly than uniform attention; of two heads one is a delimiter head at first (.94) and gives
that up for a mixture when the loss falls on. Roles come one after the other, the delimiter first,
those that need the word itself last and, with eight heads, sooner. Sharing all keys and values cost
no role here, and the heads of the one kv head have the lowest entropy.

With another seed (`:quick --config.train.seed=100`) the same: 0, 0, 4, 4, 4, 4 roles; the index .27
with two heads, .90 with four, .72, .75 and .78 with eight on 8, 2 and 1 kv heads; on text one role,
the previous byte, here with one head too, and an index of .01 to .05.

On text the heads of the first layer are mixed at every count, in the second one or two are named
for the previous token. The index is near 0, with one seed no more than that; the two roles are all
the task knows, so it tells how little of these heads they explain, not that the heads do the same
(their mean divergence is .31 to .33 nats).
"""

from ml_collections import ConfigDict

from configs import base

# (n_heads, n_kv_heads), all slices of one width.
FEW = ((1, 1), (4, 4), (8, 8), (8, 1))
MORE = (*FEW, (2, 2), (8, 2))
ALL = (*MORE, (4, 1), (8, 4))
TEXT = {
    "task.name": "text",
    "task.text.length": 64,
    "model.n_layers": 2,
    "model.positions": "rope",
    "model.norm": "rms",
    "model.residual": True,
    "model.d_ff": 128,
    "train.n_steps": 500,
    "train.batch_size": 16,
    "train.eval_every": 50,
    "train.n_eval": 256,
    "train.n_test": 512,
    "train.n_probe": 32,
    "optim.warmup_steps": 50,
    "optim.weight_decay": 0.1,
}


def get_config(arg: str | None = None) -> ConfigDict:
    """quick: one learning rate and seed, fewer shapes; full: tuned, 5 seeds."""
    if arg not in ("quick", "full"):
        raise ValueError(f"specialization takes :quick or :full, not {arg!r}")
    config = base.get_config()
    config.experiment = f"specialization.{arg}"
    config.train.n_steps = 1500
    config.train.eval_every = 50
    config.train.n_eval = 256
    config.train.n_test = 1024
    config.optim.lr = 4e-3
    config.probe.every = 50
    config.log.every = 50
    if arg == "full":
        config.tune.lrs = "2e-3,4e-3,8e-3,16e-3"
        config.tune.n_selection = 1
        config.tune.widen = 1
    return config


def sweep(add, arg: str) -> None:
    """Every shape on `relations`, then on text."""
    quick = arg == "quick"
    for task, shapes in (({}, MORE if quick else ALL), (TEXT, FEW if quick else MORE)):
        for n_heads, n_kv_heads in shapes:
            add({**task, "model.n_heads": n_heads, "model.n_kv_heads": n_kv_heads})

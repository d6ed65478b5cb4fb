"""Where does the head cliff lie as the number of relations grows, and where does the cache cliff?

    python scripts/sweep.py --config=experiments/relations.py:quick --workdir=results
    python scripts/sweep.py --config=experiments/relations.py:full --workdir=results

Heads: R = 2 to 8 relations asked of every word, with R - 1 and R heads of width 16; then four
under a causal mask, four without the delimiter, four among distractors, and `english`. If a head
serves one relation, every relation is solved from R heads on and not before.

Cache: 16 heads of width 4 that share fewer and fewer kv heads, for R = 4 and R = 8: many narrow
heads solve the task until their keys and values have no room. All widths are fixed, so that more
heads are more parameters.

Seen with :quick (16 runs of 1,500 steps, one seed, 224 s on one core), accuracy of all answers:

    heads                      R - 1   R           16 heads of width 4, kv heads   4      1
    2 relations                .588    1.000       4 relations                     .998   .779
    4 relations                .831    1.000
    4, next for the delimiter  .835    1.000
    4, three distractors       .823    1.000
    4, causal                  .844    .998
    6 relations                .630    .842        too few steps
    english                    .993    1.000

Seen with single runs (one seed, learning rate 4e-3; 2,000 steps, 3,000 for five relations and
more; accuracy of all answers):

    heads                        1      R - 1   R
    prev, class, word            .451   .781    1.000
    prev, class, word, next             .862    1.000
    4, causal                    .505   .872    1.000
    4, three distractors         .591   .838    1.000
    5 relations                  .347   .935    1.000
    6 relations                                 .980    (next .90)
    8 relations                         .906    .986    (.964 at 6e-3 and 5,000 steps)
    english                      .657   .995    1.000

    kv heads of 16 heads of width 4      16      4      1
    4 relations                                  .999   .793
    8 relations                          .904   .703

:full has not been run to its end yet; the dry run tells its size.
"""

from ml_collections import ConfigDict

from configs import base

# The first R of them are asked.
RELATIONS = ("prev", "class", "word", "delimiter", "next", "class_last", "rhyme", "rhyme_last")
VARIANTS = (
    {"task.relations.causal": True},
    {"task.relations.relations": "prev,class,word,next"},
    {"task.relations.n_distractors": 3},
    {"task.name": "english"},
)


def get_config(arg: str | None = None) -> ConfigDict:
    """quick: one learning rate and seed, fewer shapes; full: tuned, 5 seeds, budgets doubled."""
    if arg not in ("quick", "full"):
        raise ValueError(f"relations takes :quick or :full, not {arg!r}")
    config = base.get_config()
    config.experiment = f"relations.{arg}"
    config.model.d_head = 16
    config.train.n_steps = 1500 if arg == "quick" else 2500
    config.optim.lr = 4e-3
    if arg == "full":
        config.tune.lrs = "2e-3,4e-3,8e-3,16e-3"
        config.tune.widen = 1
        config.tune.n_selection = 1
        config.converge.confirm = True
    return config


def sweep(add, arg: str) -> None:
    """The heads of every number of relations and of every variant, then the kv heads."""
    quick = arg == "quick"
    for n_relations in (2, 4, 6) if quick else range(2, 9):
        asked = {"task.relations.relations": ",".join(RELATIONS[:n_relations])}
        for n_heads in (n_relations - 1, n_relations):
            add({**asked, "model.n_heads": n_heads})
    for variant in VARIANTS:
        for n_heads in (3, 4):
            add({**variant, "model.n_heads": n_heads})
    for n_relations in (4,) if quick else (4, 8):
        asked = {"task.relations.relations": ",".join(RELATIONS[:n_relations])}
        for n_kv_heads in (4, 1) if quick else (16, 4, 2, 1):
            heads = {"model.n_heads": 16, "model.n_kv_heads": n_kv_heads, "model.d_head": 4}
            add({**asked, **heads})

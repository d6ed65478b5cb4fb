"""Where does the head cliff lie as the number of relations grows, and where does the cache cliff?

    python scripts/sweep.py --config=experiments/relations.py:quick --workdir=results
    python scripts/sweep.py --config=experiments/relations.py:full --workdir=results

Heads: R = 2 to 8 relations asked of every word, with R - 1 and R heads of width 16; then four
under a causal mask, four without the delimiter, four among distractors, and `english`. If a head
serves one relation, every relation is solved from R heads on and not before.

Cache: 16 heads of width 4 that share fewer and fewer kv heads, for R = 4 and R = 8: many narrow
heads solve the task until their keys and values have no room. All widths are fixed, so that more
heads are more parameters.

Seen with :full (367 runs on 2 cores, 28 minutes), accuracy of all answers, mean of 5 seeds;
* where twice the steps still change it by more than .01:

    heads                       R - 1   R              16 heads of width 4, kv heads
    2 relations                 .587    1.000                         16     4      2      1
    3                           .791    1.000          4 relations    1.000  1.000  1.000  .755*
    4                           .948*   1.000          8 relations    .964*  .949*  .866*  .555
    5                           .975*   1.000
    6                           .967*   .977* (2 of 5 seeds solved)
    7                           .967*   .975* (1 of 5)
    8                           .923*   .942*
    4, next for the delimiter   .880*   1.000
    4, three distractors        .910*   1.000
    4, causal                   .980    1.000
    english                     .995*   1.000

Head cliff: R heads solve R relations up to five, R - 1 never do, but at a good rate they come
close: what falls off is the last few percent, not the score. From six relations on R heads did not
get there in 5,000 steps. Cache cliff: four relations fit two kv heads of width 4 and not one.
:quick (16 runs, 224 s on one core) has R - 1 heads lower, .588 .831 .630 for 2, 4 and 6 relations:
its one rate is not their best.
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

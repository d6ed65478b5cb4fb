"""Where does the head cliff lie as the number of relations grows, and where does the cache cliff?

    python scripts/sweep.py --config=experiments/relations.py:quick --workdir=results
    python scripts/sweep.py --config=experiments/relations.py:full --workdir=results

Heads: R = 2 to 8 relations asked of every word, with R - 1 and R heads of width 16; then four
under a causal mask, four without the delimiter, four among distractors, and `english`. If a head
serves one relation, every relation is solved from R heads on and not before.

Cache: 16 heads of width 4 that share fewer and fewer kv heads, for R = 4 and R = 8: many narrow
heads solve the task until their keys and values have no room. All widths are fixed, so that more
heads are more parameters.

Seen with :full (367 runs on 2 cores, 28 minutes), accuracy of all answers, mean of 5 seeds after
2,500 steps; in brackets how many of the 5 solve the task (every relation at .99) after 2,500 and,
where that is not all, after 5,000 steps:

    heads                       R - 1                R
    2 relations                 .587  (0)            1.000 (5)
    3                           .791  (0)            1.000 (5)
    4                           .948  (0)            1.000 (5)
    5                           .975  (0, then 5)    1.000 (5)
    6                           .967  (0)            .977  (2, then 4)
    7                           .967  (0)            .975  (1, then 2)
    8                           .923  (0)            .942  (0)
    4, next for the delimiter   .880  (0)            1.000 (5)
    4, three distractors        .910  (0)            1.000 (5)
    4, causal                   .980  (0)            1.000 (5)
    english                     .995  (1, then 2)    1.000 (5)

    16 heads of width 4, kv heads      16      4      2      1
    4 relations                        1.000   1.000  1.000  .755 (.836 after 5,000 steps)
    8 relations                        .964    .949   .866   .555

Head cliff: R heads solve R relations at once up to five. R - 1 heads come close at a good rate and
with time, the closer the more relations there are; the four heads that solve five after 5,000 steps
do so at .991 to .992 of their least relation. So H = R is where a task is easy, not a wall. From
six relations on budget and rate decide, and nothing there is ranked. Cache cliff: four relations
fit two kv heads of width 4 at once; one kv head is far behind, and still rising.

With other seeds (`--config.train.seed=100`: 344 runs) the same of 2 to 5 relations, of their
variants, of english and of both cache rows (16 heads, 4 relations: 1.000 1.000 .999 .735; 8: .970
.967 .853 .552). From six on it is not: the selection took the rate .016 in place of .004, at which
R heads solve 6 and 7 relations in all five runs at once, and 8 in three of five (mean .975). R - 1
heads stay behind as before (.954, .963, .913). So what stopped R heads above five was the rate that
was chosen, not their number.

The four heads trained on `english` (seed 0), shown "the cat sat on the warm mat .": one reads the
verb from everywhere, one the next noun (the -> cat, on -> mat), one the word before, one the other
word of its kind (cat -> mat, mat -> cat, the -> the and back), each with .94 or more of its weight.
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

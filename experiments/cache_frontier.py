"""What does each way of shrinking the cache cost in quality?

    python scripts/sweep.py --config=experiments/cache_frontier.py:quick --workdir=results
    python scripts/sweep.py --config=experiments/cache_frontier.py:full --workdir=results

Quality against the bytes that a sequence of the task's length keeps, in `figures/frontier.png`, and
in `frontier.csv` which models are on the front (`pareto`; only converged ones can be). Three tasks:

- `attr`, one layer of eight heads of width 8: what must be kept of a token is what four queries ask
  for. Its queries see the items and not one another, so that it has no newest tokens: no windows
  and no quantised cache here, and no layers that share.
- `needle`, two layers of four heads of width 8, the needle 20 positions before the question. With a
  window of W = 6 two layers see back 2 * (W - 1) = 10: the needle is out of sight, and is none of
  the two first positions that sinks keep.
- `text`, two layers of four heads of width 16.

MLA has the bytes of MQA in each of the three, and on `attr` so has GLA-2. Gate and sink logit save
nothing: they are controls.

Seen with :quick (one seed, one rate; 22 minutes beside other work, which left 11 minutes of one
core, for these 30 runs and three more), bytes kept of a sequence and quality:

    attr, accuracy                  needle, accuracy              text, bits per byte
    MHA                6144 1.000   MHA            16384 1.000   MHA            65536 2.377
    MHA, gate          6144 1.000   int8           14336 1.000   int8           41472 2.376
    MHA, sink logit    6144 1.000   int4           12800 1.000   window 16,0    40960 2.323
    keys are values    3072 1.000   window 6,0      9728 1.000   int4           34304 2.371
    GQA-2              1536 1.000   CLA-2           8192 1.000   CLA-2          32768 2.403
    GTA-2               960  .627   MQA             4096 1.000   GQA-2          32768 2.399
    MQA                 768  .688   GQA-2           8192 1.000   4 + window 16  20480 2.344
    MLA                 768  .613   MLA             4096 1.000   GTA-2          20480 2.403
    GLA-2               768  .489   2 + window 6    4096  .065   window 16      16384 2.329
                                    window 6        3072  .065   MQA            16384 2.385
                                                                 MLA            16384 2.489

The needle out of sight is lost, with sinks and without: .065 of 4,096 answers (95 % interval .057
to .073), where chance is .0625. All that see it in any layer find it, MQA and MLA in a quarter of
the bytes. On `attr` what is smaller than GQA-2 stays behind at this budget. On the text a window of
16 bytes costs nothing in 500 steps, and no head has a sink (`scripts/sinks.py`: the weight on
position 0 is below that of uniform attention), so that there is nothing for sinks to keep. int4
saves half and not seven eighths: of 64 tokens 16 are kept as they are, and steps and smallest
values of groups of 8 are float32. A single seed does not tell apart what differs by .02.

Seen with :full (370 runs; 50 min on 2 cores that did much else), means of five seeds; (u):
unconverged, twice the steps change it:

    attr, accuracy                     needle, accuracy              text, bits per byte (all u)
    MHA, gate, sink logit  6144 1.000  MHA            16384 1.000    MHA            65536 2.328
    keys are values        3072 1.000  int8           14336 1.000    int8           41472 2.331
    GQA-2                  1536  .994  int4           12800 1.000    window 16,0    40960 2.273
                            (u)        window 6,0      9728 1.000    int4           34304 2.328
    GTA-2                   960  .745  CLA-2           8192 1.000    CLA-2          32768 2.344
                            (u)        GQA-2           8192 1.000    GQA-2          32768 2.370
    MQA                     768  .706  MQA             4096 1.000    4 + window 16  20480 2.322
                            (u)        MLA             4096 1.000    GTA-2          20480 2.371
    MLA                     768  .643  2 + window 6    4096  .0627   window 16      16384 2.296
                            (u)        window 6        3072  .0625   MQA            16384 2.358
    GLA-2                   768  .607                                MLA            16384 2.413
                            (u)

On the front are, of `attr`, shared keys and values, and of `needle` the window (at chance, and the
smallest), MQA and MLA. With a window and with sinks beside it the needle is at chance, in both
intervals (.0605 to .0646, .0593 to .0662; chance .0625); MLA, the last of those that see it, is
ahead by .94. On the text nothing may be ranked at this budget, and no head has a sink; that a
window of 16 bytes does no worse than the whole cache is a matter of so short a training.
"""

from ml_collections import ConfigDict

from configs import base, text

WINDOW, SINKS, DISTANCE = 6, 2, 20
TASKS = {
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
    # Without positions, so that only the mark tells the needle.
    "needle": {
        "task.name": "needle",
        "task.needle.length": 32,
        "task.needle.distance": DISTANCE,
        "model.d_model": 32,
        "model.n_layers": 2,
        "model.n_heads": 4,
        "model.positions": "none",
        "model.norm": "rms",
        "model.residual": True,
        "train.n_steps": 500,
        "train.batch_size": 32,
    },
    "text": {
        "task.name": "text",
        "task.text.length": 64,
        "model.n_layers": 2,
        "model.d_ff": 128,
        "model.n_heads": 4,
        "train.n_steps": 500,
        "train.batch_size": 16,
        "train.n_eval": 512,
        "train.n_test": 1024,
        "train.n_probe": 16,
        # What configs/text.py says of the model.
        **{
            f"model.{key}": text.get_config().model[key]
            for key in ("positions", "norm", "residual")
        },
    },
}


def get_config(arg: str | None = None) -> ConfigDict:
    """quick: one learning rate and seed; full: tuned, 5 seeds, budgets doubled."""
    if arg not in ("quick", "full"):
        raise ValueError(f"cache_frontier takes :quick or :full, not {arg!r}")
    config = base.get_config()
    config.experiment = f"cache_frontier.{arg}"
    config.model.kv_group = config.model.kv_tail = 8
    config.optim.lr = 4e-3
    config.optim.warmup_steps = 50
    config.train.eval_every = 250
    config.probe.every = 0
    if arg == "full":
        config.tune.lrs = "1e-3,2e-3,4e-3,8e-3"
        config.tune.widen = 1
        config.tune.n_selection = 1
        config.converge.confirm = True
    return config


def sweep(add) -> None:
    """(task, variant)."""
    for name, task in TASKS.items():
        for variant in _variants(name):
            add({**task, **variant})


def _variants(task: str) -> list[dict]:
    """How each model of a task differs from MHA, which is the first."""
    few = [{}, {"model.n_kv_heads": 2}, {"model.n_kv_heads": 1}]
    gta = {"model.mixer": "gta", "model.n_kv_heads": 2}
    if task == "attr":
        switches = [{"model.share": "kv"}, {"model.gate": True}, {"model.sink_logit": True}]
        return [*few, _latents(1, 16), _latents(2, 8), gta, *switches]
    quantised = [{"model.kv_quant": "int8"}, {"model.kv_quant": "int4"}]
    stored = [*quantised, {"model.kv_from": "0,0"}]  # CLA-2
    if task == "needle":
        return [*few, _latents(1, 16), *stored, *_windows(WINDOW, SINKS)]
    return [*few, _latents(1, 24, 8), gta, *stored, *_windows(16, 4)]


def _latents(n: int, width: int, rotated: int = 0) -> dict:
    return {
        "model.mixer": "mla",
        "model.n_kv_heads": n,
        "model.d_latent": width,
        "model.d_rope": rotated,
    }


def _windows(window: int, n_sinks: int) -> list[dict]:
    """A window, sinks beside it, and a window below a layer that sees everything."""
    return [
        {"model.window": window},
        {"model.window": window, "model.n_sinks": n_sinks},
        {"model.window": f"{window},0"},
    ]

"""What the trained tabs of the attention page's demonstration show.

    python scripts/attend.py --demo --out=demo.html         # trains these runs, and shows them
    python scripts/sweep.py --config=experiments/demonstration.py --workdir=results

The task `english` asks four relations of every word of a sentence. The same model, its width cut
into 1, 2, 4 and 8 heads from the same initial weights, learns it, with a checkpoint every few
steps, so that one can watch one blurred map split into roles. A small model of real text stands
beside it, whatever its heads do. One learning rate and one seed: an illustration, not a ranking.
"""

from ml_collections import ConfigDict

from configs import base

TEXT = {
    "task.name": "text",
    "task.text.length": 64,
    "model.n_layers": 2,
    "model.d_model": 64,
    "model.positions": "rope",
    "model.norm": "rms",
    "model.residual": True,
    "model.d_ff": 256,
    "train.n_steps": 400,
    "train.batch_size": 32,
    "train.eval_every": 400,
    "train.n_eval": 256,
    "train.n_test": 256,
    "train.n_probe": 16,
    "optim.warmup_steps": 50,
    "log.checkpoint_every": 400,
}


def get_config(arg: str | None = None) -> ConfigDict:
    """`english` with the defaults of configs/base.py, and twelve checkpoints."""
    if arg is not None:
        raise ValueError(f"demonstration takes no argument, not {arg!r}")
    config = base.get_config()
    config.task.name = "english"
    config.model.d_model = 32
    config.optim.lr = 4e-3
    config.train.n_steps = 1800
    config.train.eval_every = 150
    config.train.n_eval = 512
    config.train.n_test = 512
    config.probe.every = 150
    config.log.checkpoint_every = 150
    config.log.keep = 12
    config.log.tensorboard = False
    return config


def sweep(add) -> None:
    """Four splits of one width, then text."""
    for n_heads in (1, 2, 4, 8):
        add({"model.n_heads": n_heads})
    add({**TEXT, "model.n_heads": 4})

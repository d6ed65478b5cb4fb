"""TAPS: one layer, read-out of the attention output alone, so that attention is the only path.

Queries and keys read positions alone, as in the theory: only then is the task's ceiling one.

    scripts/train.py --config=configs/taps.py --workdir=results --config.model.n_heads=4
"""

from ml_collections import ConfigDict

from configs import base


def get_config(arg: str | None = None) -> ConfigDict:
    """16 positions, 4 taps, 16 channels."""
    config = base.get_config(arg)
    config.task.name = "taps"
    config.model.qk_from = "positions"
    config.train.n_steps = 2000
    config.optim.lr = 4e-3
    return config

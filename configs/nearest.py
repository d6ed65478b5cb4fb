"""NEAREST: one layer, no positions (the context is a set), read-out of the attention output alone.

scripts/train.py --config=configs/nearest.py --workdir=results --config.model.n_heads=8
"""

from ml_collections import ConfigDict

from configs import base


def get_config(arg: str | None = None) -> ConfigDict:
    """16 vectors in 16 dimensions; four heads of width 16, the narrowest that suffice."""
    config = base.get_config(arg)
    config.task.name = "nearest"
    config.model.positions = "none"
    config.train.n_steps = 2000
    return config

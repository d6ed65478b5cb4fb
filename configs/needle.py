"""NEEDLE: one layer without positions and MLP, so that only the mark tells the needle.

scripts/train.py --config=configs/needle.py --workdir=results --config.model.window=16
"""

from ml_collections import ConfigDict

from configs import base


def get_config(arg: str | None = None) -> ConfigDict:
    """One of 63 items, of 16 symbols; one head."""
    config = base.get_config(arg)
    config.task.name = "needle"
    config.model.n_heads = 1
    config.model.positions = "none"
    config.train.n_steps = 1000
    return config

"""ATTR: one layer, no positions (items are a set), read-out of the attention output alone.

scripts/train.py --config=configs/attr.py --workdir=results --config.model.n_heads=4
"""

from ml_collections import ConfigDict

from configs import base


def get_config(arg: str | None = None) -> ConfigDict:
    """16 items of 4 attributes, 8 queries."""
    config = base.get_config(arg)
    config.task.name = "attr"
    config.model.positions = "none"
    config.train.n_steps = 5000
    config.train.batch_size = 32
    return config

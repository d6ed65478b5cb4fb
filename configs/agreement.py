"""AGREEMENT: one layer of one head, read-out of the attention output alone.

scripts/train.py --config=configs/agreement.py --workdir=results
"""

from ml_collections import ConfigDict

from configs import base


def get_config(arg: str | None = None) -> ConfigDict:
    """Up to 4 attractors, up to 2 adjectives a noun."""
    config = base.get_config(arg)
    config.task.name = "agreement"
    config.model.n_heads = 1
    return config

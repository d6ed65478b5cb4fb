"""MIXTURE: one layer with learned positions, read-out of the attention output alone.

scripts/train.py --config=configs/mixture.py --workdir=results --config.model.n_heads=4
"""

from ml_collections import ConfigDict

from configs import base


def get_config(arg: str | None = None) -> ConfigDict:
    """16 vectors in 16 dimensions, 3 taps: four heads of width 16 do both."""
    config = base.get_config(arg)
    config.task.name = "mixture"
    config.optim.lr = 4e-3
    return config

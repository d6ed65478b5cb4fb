"""TAPS: one layer, learned positions, read-out of the attention output alone, so that attention is
the only path.

    scripts/train.py --config=configs/taps.py --workdir=results --config.model.n_heads=4
"""

from ml_collections import ConfigDict

from configs import base


def get_config(arg: str | None = None) -> ConfigDict:
    """16 positions, 4 taps, 16 channels."""
    config = base.get_config(arg)
    config.task.name = "taps"
    config.train.n_steps = 2000
    return config

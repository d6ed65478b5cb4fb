"""HISTOGRAM, the control that heads do not help: one layer with an MLP.

scripts/train.py --config=configs/histogram.py --workdir=results
"""

from ml_collections import ConfigDict

from configs import base


def get_config(arg: str | None = None) -> ConfigDict:
    """Counts of 16 symbols over 16 positions."""
    config = base.get_config(arg)
    config.task.name = "histogram"
    config.model.positions = "none"
    config.model.residual = True
    config.model.norm = "rms"
    config.model.d_ff = 128
    config.train.n_steps = 2000
    return config

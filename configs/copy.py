"""COPY: two layers with residual and norm, rotary positions.

scripts/train.py --config=configs/copy.py --workdir=results
"""

from ml_collections import ConfigDict

from configs import base


def get_config(arg: str | None = None) -> ConfigDict:
    """Copies 12 of 16 symbols."""
    config = base.get_config(arg)
    config.task.name = "copy"
    config.model.n_layers = 2
    config.model.norm = "rms"
    config.model.residual = True
    config.train.n_steps = 2000
    return config

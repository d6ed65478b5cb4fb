"""DYCK: two layers of one head with MLP, learned positions.

scripts/train.py --config=configs/dyck.py --workdir=results
"""

from ml_collections import ConfigDict

from configs import base


def get_config(arg: str | None = None) -> ConfigDict:
    """12 pairs of 4 kinds, at most 4 deep."""
    config = base.get_config(arg)
    config.task.name = "dyck"
    config.model.n_layers = 2
    config.model.n_heads = 1
    config.model.d_ff = 128
    config.model.norm = "rms"
    config.model.residual = True
    config.train.n_steps = 1500
    return config

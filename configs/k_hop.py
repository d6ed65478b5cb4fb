"""K-HOP: three layers with residual and norm, learned positions.

scripts/train.py --config=configs/k_hop.py --workdir=results
"""

from ml_collections import ConfigDict

from configs import base


def get_config(arg: str | None = None) -> ConfigDict:
    """Two hops among 32 positions of 8 symbols."""
    config = base.get_config(arg)
    config.task.name = "k_hop"
    config.model.n_layers = 3
    config.model.n_heads = 2
    config.model.norm = "rms"
    config.model.residual = True
    config.train.n_steps = 1000
    return config

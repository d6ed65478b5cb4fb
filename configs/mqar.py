"""MQAR as in Zoology: two layers of one head, learned positions, no MLP, with norm and residual.

scripts/train.py --config=configs/mqar.py --workdir=results
"""

from ml_collections import ConfigDict

from configs import base


def get_config(arg: str | None = None) -> ConfigDict:
    """8 pairs in 32 positions, 64 symbols."""
    config = base.get_config(arg)
    config.task.name = "mqar"
    config.model.n_layers = 2
    config.model.n_heads = 1
    config.model.norm = "layer"
    config.model.residual = True
    config.train.n_steps = 2000
    return config

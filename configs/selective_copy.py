"""SELECTIVE COPY: two layers with residual and norm, learned positions.

scripts/train.py --config=configs/selective_copy.py --workdir=results
"""

from ml_collections import ConfigDict

from configs import base


def get_config(arg: str | None = None) -> ConfigDict:
    """8 marked ones among 32 tokens of 16 symbols."""
    config = base.get_config(arg)
    config.task.name = "selective_copy"
    config.model.n_layers = 2
    config.model.n_heads = 2
    config.model.norm = "rms"
    config.model.residual = True
    config.train.n_steps = 2000
    return config

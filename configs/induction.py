"""INDUCTION: two layers with residual and norm, learned positions, no MLP.

scripts/train.py --config=configs/induction.py --workdir=results
"""

from ml_collections import ConfigDict

from configs import base


def get_config(arg: str | None = None) -> ConfigDict:
    """Blocks of 4 to 12 of 32 symbols in 48 positions."""
    config = base.get_config(arg)
    config.task.name = "induction"
    config.model.n_layers = 2
    config.model.n_heads = 2
    config.model.norm = "rms"
    config.model.residual = True
    config.train.n_steps = 1500
    return config

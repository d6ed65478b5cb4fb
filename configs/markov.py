"""MARKOV: two layers with residual, norm and MLP, learned positions.

scripts/train.py --config=configs/markov.py --workdir=results
"""

from ml_collections import ConfigDict

from configs import base


def get_config(arg: str | None = None) -> ConfigDict:
    """Chains of 64 symbols out of 4."""
    config = base.get_config(arg)
    config.task.name = "markov"
    config.model.n_layers = 2
    config.model.n_heads = 2
    config.model.norm = "rms"
    config.model.residual = True
    config.model.d_ff = 128
    config.train.n_steps = 1500
    return config

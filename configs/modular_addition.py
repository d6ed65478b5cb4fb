"""MODULAR_ADDITION: one layer with a ReLU MLP and weight decay 1, as in arXiv:2301.05217.

scripts/train.py --config=configs/modular_addition.py --workdir=results
"""

from ml_collections import ConfigDict

from configs import base


def get_config(arg: str | None = None) -> ConfigDict:
    """Sums modulo 23; three quarters of the pairs are seen in training."""
    config = base.get_config(arg)
    config.task.name = "modular_addition"
    model = config.model
    model.residual = True
    model.d_ff = 4 * model.d_model
    model.activation = "relu"
    config.train.n_steps = 2000
    config.train.batch_size = 256
    config.optim.lr = 1e-2
    config.optim.weight_decay = 1.0
    config.optim.b2 = 0.98
    return config

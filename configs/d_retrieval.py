"""D-RETRIEVAL as published (arXiv 2510.06662): MLP encoder, a learned query token, one layer
without residual, norm or positions, GELU MLP read-out.

    scripts/train.py --config=configs/d_retrieval.py --workdir=results --config.model.n_heads=4
"""

from ml_collections import ConfigDict

from configs import base


def get_config(arg: str | None = None) -> ConfigDict:
    """The sum of 4 maxima over 16 vectors; heads of width 8."""
    config = base.get_config(arg)
    config.task.name = "d_retrieval"
    config.model.positions = "none"
    config.model.d_model = 32
    config.model.bias = True
    config.train.n_steps = 5000
    config.optim.lr = 1e-2
    return config

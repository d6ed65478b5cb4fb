"""SORT, a control that one head is enough: two layers with MLP.

scripts/train.py --config=configs/sort.py --workdir=results
"""

from ml_collections import ConfigDict

from configs import base


def get_config(arg: str | None = None) -> ConfigDict:
    """Sorts 10 of 32 symbols."""
    config = base.get_config(arg)
    config.task.name = "sort"
    config.model.n_layers = 2
    config.model.n_heads = 1
    config.model.d_ff = 128
    config.model.norm = "rms"
    config.model.residual = True
    return config

"""MEMORISE: one layer, heads of width 16 = the size of the context, no positions.

scripts/train.py --config=configs/memorise.py --workdir=results --config.model.n_heads=8
"""

from ml_collections import ConfigDict

from configs import base


def get_config(arg: str | None = None) -> ConfigDict:
    """512 examples of 16 labels over 16 context vectors; 4 heads."""
    config = base.get_config(arg)
    config.task.name = "memorise"
    config.model.positions = "none"
    config.model.d_head = 16
    return config

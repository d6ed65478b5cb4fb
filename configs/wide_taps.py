"""WIDE_TAPS: as configs/taps.py, with nothing behind the layer: its 64 columns are the answer.

scripts/train.py --config=configs/wide_taps.py --workdir=results --config.model.use_wo=False
"""

from ml_collections import ConfigDict

from configs import base


def get_config(arg: str | None = None) -> ConfigDict:
    """16 positions, 4 taps, 16 channels."""
    config = base.get_config(arg)
    config.task.name = "wide_taps"
    config.task.wide_taps.readout = "none"
    config.model.qk_from = "positions"
    config.train.n_steps = 2000
    config.optim.lr = 4e-3
    return config

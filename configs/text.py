"""Next-byte prediction on text: two pre-norm layers with MLP and rotary positions.

scripts/train.py --config=configs/text.py --workdir=results
scripts/train.py --config=configs/text.py --workdir=results --config.task.text.path=my_folder
"""

from ml_collections import ConfigDict

from configs import base


def get_config(arg: str | None = None) -> ConfigDict:
    """Width 64, windows of 128 bytes of CPython's reference text."""
    config = base.get_config(arg)
    config.task.name = "text"
    model = config.model
    model.n_layers = 2
    model.positions = "rope"
    model.norm = "rms"
    model.residual = True
    model.d_ff = 4 * model.d_model
    train = config.train
    train.n_steps = 2000
    train.batch_size = 32
    train.n_eval = 256
    train.n_test = 1024
    train.n_probe = 16
    config.optim.weight_decay = 0.1
    return config

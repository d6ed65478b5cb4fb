"""What `scripts/bench.py` measures: text models of two layers in the sizes A, B and C.

scripts/train.py --config=configs/bench.py:B --workdir=results
scripts/sweep.py --config=configs/bench.py:B --workdir=results

Layer norm, learned positions, MLP of four times the width, AdamW on a clipped gradient: what the
libraries that it is measured against have as well. The sweep is 12 shapes of 9 runs each;
`:B,2,1` is two shapes of one run.
"""

from ml_collections import ConfigDict

from configs import text

SIZES = {  # width, length, sequences in a batch
    "A": (128, 128, 64),
    "B": (64, 64, 32),
    "C": (256, 256, 16),
}
SHAPES = [(n, k) for n in (1, 2, 4, 8) for k in (1, 2, 4, 8) if k <= n] + [(16, 1), (16, 16)]
LRS = (1e-3, 2e-3, 4e-3)
N_SEEDS = 3


def get_config(arg: str | None = None) -> ConfigDict:
    """A size, and how many shapes and runs a shape the sweep has: "B" or "B,12,9"."""
    size, _, _ = _read(arg)
    config = text.get_config()
    config.experiment = f"bench.{size}"
    width, config.task.text.length, config.train.batch_size = SIZES[size]
    config.model.update(d_model=width, d_ff=4 * width, norm="layer", positions="learned")
    config.train.n_steps = 1000
    config.train.eval_every = 250
    return config


def sweep(add, arg=None):
    """The first of the shapes, each with the first of the runs: rates of every seed."""
    _, n_shapes, n_runs = _read(arg)
    runs = [(lr, seed) for seed in range(N_SEEDS) for lr in LRS]
    for n_heads, n_kv_heads in SHAPES[:n_shapes]:
        for lr, seed in runs[:n_runs]:
            add(
                {
                    "model.n_heads": n_heads,
                    "model.n_kv_heads": n_kv_heads,
                    "optim.lr": lr,
                    "train.seed": seed,
                }
            )


def _read(arg: str | None) -> tuple[str, int, int]:
    size, *numbers = (arg or "B").split(",")
    most = (len(SHAPES), len(LRS) * N_SEEDS)
    shapes, runs = (int(n) for n in numbers) if len(numbers) == 2 else most
    if size not in SIZES or len(numbers) not in (0, 2) or not 0 < shapes <= most[0]:
        raise ValueError(f"bench takes :A, :B or :C, or as :B,12,9 shapes and runs, not {arg!r}")
    if not 0 < runs <= most[1]:
        raise ValueError(f"bench has at most {most[1]} runs a shape, not {runs}")
    return size, shapes, runs

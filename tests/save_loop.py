"""Writes records and saves checkpoints until it is killed; tests/test_checkpoint.py kills it."""

import sys

import numpy as np

from mha_jax.checkpoint import Checkpoints
from mha_jax.writer import RunWriter


def state_at(step):
    """Another state for every step; numpy alone, so that the process is soon at work."""
    return {"step": step, "weights": np.random.default_rng(step).standard_normal(20_000)}


def open_run(run_dir):
    return Checkpoints(run_dir, keep=2, config_hash="0123456789")


def main(run_dir):
    """Prints each step once its checkpoint counts."""
    checkpoints = open_run(run_dir)
    restored = checkpoints.restore(state_at(0))
    step, length = (restored.step, restored.records_bytes) if restored else (0, 0)
    records = RunWriter(run_dir, tensorboard=True, records_bytes=length, start_step=step)
    while True:
        step += 1
        records.scalars(step, {"loss": 1 / step})
        length, best = records.flush(), step % 5 == 0
        checkpoints.save(step, state_at(step), records_bytes=length, metric=step, best=best)
        checkpoints.close()
        print(step, flush=True)


if __name__ == "__main__":
    main(sys.argv[1])

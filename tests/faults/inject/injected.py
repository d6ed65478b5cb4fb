"""What may go wrong around the product. Each function gets its arguments from MHA_FAULTS, and gives
what changes which module, by its name; "" is Python itself, at once.
"""

from __future__ import annotations

import os
import time


def factor(step: int, seed: int, by: str) -> dict:
    """The loss of one step of the run with a seed is multiplied by a number, such as "nan"."""
    asked = {}

    def in_train(train):
        import jax.numpy as jnp

        plain = train.train_step

        def train_step(program, state, hypers, constants):
            here = (state.step == step) & (hypers.seed == seed)
            asked["factor"] = jnp.where(here, jnp.float32(float(by)), jnp.float32(1))
            return plain(program, state, hypers, constants)

        train.train_step = train_step

    def in_loss(loss):
        plain = loss.mean_loss

        def mean_loss(*args, **kwargs):
            return plain(*args, **kwargs) * asked.get("factor", 1)

        loss.mean_loss = mean_loss

    return {"mha_jax.train": in_train, "mha_jax.loss": in_loss}


def left_out(step: int, seed: int) -> dict:
    """The update of one step of the run with a seed is not made: what a bad step that is ignored
    must come to."""

    def in_train(train):
        import jax
        import jax.numpy as jnp

        plain = train.train_step

        def train_step(program, state, hypers, constants):
            after, scalars = plain(program, state, hypers, constants)
            here = (state.step == step) & (hypers.seed == seed)
            kept = {
                name: jax.tree.map(
                    lambda old, new: jnp.where(here, old, new),
                    getattr(state, name),
                    getattr(after, name),
                )
                for name in ("params", "opt")
            }
            return after._replace(**kept), scalars

        train.train_step = train_step

    return {"mha_jax.train": in_train}


def stuck(marker: str, at: int) -> dict:
    """The first worker that comes to its `at`-th dispatch does nothing any more."""

    def in_group(group):
        plain, calls = group.Group.train_chunk, [0]

        def train_chunk(self, *args, **kwargs):
            calls[0] += 1
            if calls[0] == at:
                try:
                    os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
                except FileExistsError:
                    return plain(self, *args, **kwargs)
                while True:
                    time.sleep(3600)
            return plain(self, *args, **kwargs)

        group.Group.train_chunk = train_chunk

    return {"mha_jax.group": in_group}


def slow(by_s: float) -> dict:
    """Every dispatch of a worker takes longer: the tiny sweep is over before one has aimed."""

    def in_group(group):
        plain = group.Group.train_chunk

        def train_chunk(self, *args, **kwargs):
            time.sleep(by_s)
            return plain(self, *args, **kwargs)

        group.Group.train_chunk = train_chunk

    return {"mha_jax.group": in_group}


def hold(at: int, until: str = "") -> dict:
    """Every worker that comes to its `at`-th dispatch stays there, until a file is there."""

    def in_group(group):
        plain, calls = group.Group.train_chunk, [0]

        def train_chunk(self, *args, **kwargs):
            calls[0] += 1
            while calls[0] >= at and not (until and os.path.exists(until)):
                time.sleep(0.05)
            return plain(self, *args, **kwargs)

        group.Group.train_chunk = train_chunk

    return {"mha_jax.group": in_group}


def save_fails(at: int, text: str) -> dict:
    """Writing the arrays of a worker's `at`-th checkpoint, and of all later ones, raises."""

    def in_packing(packing):
        plain, calls = packing.write, [0]

        def write(directory, packed):
            calls[0] += 1
            if calls[0] >= at:
                raise ValueError(text)
            plain(directory, packed)

        packing.write = write

    return {"mha_jax.packing": in_packing}


def clock(at: int, by_s: float) -> dict:
    """The clock of the machine jumps when a worker comes to its `at`-th dispatch."""

    def in_group(group):
        plain, calls, now = group.Group.train_chunk, [0], time.time

        def train_chunk(self, *args, **kwargs):
            calls[0] += 1
            if calls[0] == at:
                time.time = lambda: now() + by_s
            return plain(self, *args, **kwargs)

        group.Group.train_chunk = train_chunk

    return {"mha_jax.group": in_group}


def vanish(at: int, path: str, marker: str) -> dict:
    """A directory is gone, once, when the first worker comes to its `at`-th dispatch."""

    def in_group(group):
        plain, calls = group.Group.train_chunk, [0]

        def train_chunk(self, *args, **kwargs):
            calls[0] += 1
            if calls[0] == at and not os.path.exists(marker):
                os.rename(path, marker)  # at once: a removal could meet files that are being made
            return plain(self, *args, **kwargs)

        group.Group.train_chunk = train_chunk

    return {"mha_jax.group": in_group}


FAULTS = {f.__name__: f for f in (factor, left_out, stuck, slow, hold, save_fails, clock, vanish)}

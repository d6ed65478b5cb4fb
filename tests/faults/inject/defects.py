"""How the product may be wrong: planted by tests/test_faults.py, which sees that the suite finds
it. Written as `injected.py` is."""

from __future__ import annotations


def starts_at_zero() -> dict:
    """A run that is launched again does not look for its checkpoints."""

    def in_checkpoint(checkpoint):
        checkpoint.Checkpoints.restore = lambda self, *args, **kwargs: None

    return {"mha_jax.checkpoint": in_checkpoint}


def forgets_the_newest() -> dict:
    """A run goes on from the oldest of its checkpoints, not from the newest."""

    def in_checkpoint(checkpoint):
        plain = checkpoint.Checkpoints.restore

        def restore(self, template, step=None, **kwargs):
            there = self.steps()
            return plain(self, template, there[0] if there and step is None else step, **kwargs)

        checkpoint.Checkpoints.restore = restore

    return {"mha_jax.checkpoint": in_checkpoint}


def believes_every_byte() -> dict:
    """Nothing is verified before it is restored."""

    def in_manifest(manifest):
        manifest.verify = lambda data, files: None

    def in_checkpoint(checkpoint):
        def read(self, step, told, template, partial):
            packed = checkpoint.packing.read(self._root / str(step) / told["data"])
            return checkpoint.packing.unpack(packed, told["leaves"], template, partial)

        checkpoint.Checkpoints._read = read

    return {"mha_jax.manifest": in_manifest, "mha_jax.checkpoint": in_checkpoint}


def restores_inexactly() -> dict:
    """What is restored differs in the last digits from what was saved."""

    def in_lane(lane):
        plain = lane.Lane.open.__func__

        def opened(cls, *args, **kwargs):
            one = plain(cls, *args, **kwargs)
            if one.step:
                params = lane.jax.tree.map(lambda x: x * 1.0001, one.state.params)
                one.state = one.state._replace(params=params)
            return one

        lane.Lane.open = classmethod(opened)

    return {"mha_jax.lane": in_lane}


def counts_before_it_is_written() -> dict:
    """A checkpoint counts before its arrays are on the disk."""

    def in_packing(packing):
        import time

        plain = packing.write

        def write(directory, packed):
            final = directory.parent.with_suffix("")
            final.mkdir(exist_ok=True)
            (final / "manifest.json").write_text("{}")
            time.sleep(0.05)
            plain(directory, packed)
            (final / "manifest.json").unlink()
            final.rmdir()

        packing.write = write

    return {"mha_jax.packing": in_packing}


def writes_in_place() -> dict:
    """A file is emptied before the new one is written into it."""

    def in_files(files):
        def write_atomic(path, data):
            path.write_bytes(data.encode() if isinstance(data, str) else data)

        files.write_atomic = write_atomic

    return {"mha_jax.files": in_files}


def no_lock() -> dict:
    """Every launch believes that it is alone."""

    def in_parts(parts):
        parts._take = lambda file, how: True

    return {"mha_jax.parts": in_parts}


def never_bad() -> dict:
    """A loss that is not a number is not noticed."""

    def in_train(train):
        plain = train.train_step

        def train_step(program, state, hypers, constants):
            after, scalars = plain(program, state, hypers, constants)
            name = "watch" if hasattr(state, "watch") else "diverged_at"
            return after._replace(**{name: getattr(state, name)}), scalars

        train.train_step = train_step

    return {"mha_jax.train": in_train}


def gives_up_at_once() -> dict:
    """A failed run is not tried again."""

    def in_runstate(runstate):
        runstate.MAX_ATTEMPTS = 1

    return {"mha_jax.runstate": in_runstate}


DEFECTS = {
    f.__name__: f
    for f in (
        starts_at_zero,
        forgets_the_newest,
        believes_every_byte,
        restores_inexactly,
        counts_before_it_is_written,
        writes_in_place,
        no_lock,
        never_bad,
        gives_up_at_once,
    )
}

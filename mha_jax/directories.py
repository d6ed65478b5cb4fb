"""The run directories of an experiment: made from a plan, shown in TensorBoard. No jax."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from mha_jax import config, store, tensorboard
from mha_jax.files import within, write_signed
from mha_jax.planned import PURPOSES, PlannedRun


def place(runs: list[PlannedRun], root: Path) -> dict[str, Path]:
    """Makes the run directories and their `config.json`. A run that is there already keeps its
    directory, and is told what this launch says about it: how often to log, what counts as
    converged. One that was made as a twin and is now wanted for itself is no twin any more; the
    other way round it stays what it was."""
    # Of copies the first counts, as in `store.read_sweep`.
    paths = sorted((path.parent for path in root.glob("*/config.json")), reverse=True)
    there = {path.name[-10:]: path for path in paths}
    directories = {}
    for planned in runs:
        run = planned.run
        directory = within(root, there.get(run.hash, root / f"{planned.label}-{run.hash}"))
        directories[run.hash] = directory
        if run.hash not in there or _told_anew(directory, planned.about):
            directory.mkdir(exist_ok=True)
            write_signed(
                directory / "config.json",
                {
                    "schema_version": config.SCHEMA_VERSION,
                    "hash": run.hash,
                    "group_hash": run.group_hash,
                    "static": config.to_json(run.static),
                    "hypers": config.to_json(run.hypers),
                    "about": planned.about,
                },
            )
    return directories


def _told_anew(directory: Path, about: dict[str, Any]) -> bool:
    """Whether what a config.json says about its run is to be replaced."""
    stored = store.read_run(directory).about
    if PURPOSES.index(stored["purpose"]) > PURPOSES.index(about["purpose"]):
        return False
    return stored != json.loads(json.dumps(about))


def show_table(root: Path) -> None:
    """TensorBoard's table of the sweep's runs, and the figures beside it."""
    runs, _ = store.read_sweep(root)
    sessions = [
        tensorboard.Session(
            directory=stored.directory.name,
            hparams=stored.about["overrides"],
            ok=None if stored.status == "unfinished" else stored.status == "done",
        )
        for stored in runs
    ]
    metrics = dict.fromkeys(f"test/{stored.spec.metric}" for stored in runs)
    tensorboard.write_hparams(root, sessions, list(metrics))
    for name in ("frontier", "training"):
        figure = root / "figures" / f"{name}.png"
        if figure.exists():
            tensorboard.image_file(root / "tb", name, figure)

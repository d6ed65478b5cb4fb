"""Checkpoints of one run: saved whole or not at all, checked before they are believed.

    checkpoints/<step>/manifest.json   what was saved, SHA-256 of each file and of itself
    checkpoints/<step>/data-<n>/       the state: one array of bytes, written by orbax
    checkpoints/<step>.tmp/            rubbish: a save or a removal that did not end

A checkpoint is made under a temporary name; renaming its directory is the moment from which it
counts. So a directory without a manifest is a damaged checkpoint, which is reported, and never an
unfinished one. Saving a step again adds another `data-<n>` and replaces the manifest, which names
the one that counts.

Orbax alone would restore flipped bits without a word, and its time goes by the number of arrays:
the leaves of a state are packed into one (20 leaves, 110 KB: 13 ms instead of 34).
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import threading
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from mha_jax import __version__, manifest, packing
from mha_jax.files import plain, sync_directory
from mha_jax.packing import Unusable


class CheckpointError(RuntimeError):
    """A checkpoint could not be saved, or there are some and none could be restored."""


class Unrestorable(CheckpointError):
    """A run has checkpoints and none of them can be used; nothing was changed."""


class Restored(NamedTuple):
    """A checkpoint, read back."""

    step: int
    state: Any  # the template's tree, of numpy arrays that are bit for bit what was saved
    records_bytes: int  # length of metrics.jsonl when it was saved
    records_sha256: str | None  # of those bytes; None: it was not told
    skipped: list[str]  # newer checkpoints that cannot be used, each with the reason


class Checkpoints:
    """The checkpoints of one run. One process may save; any number may restore meanwhile."""

    def __init__(
        self, run_dir: str | Path, *, keep: int, config_hash: str, pinned: int | None = None
    ) -> None:
        """Touches nothing on the disk.

        Args:
          run_dir: the run's directory.
          keep: how many of the newest checkpoints stay, at least 1; the best one stays beside them.
          config_hash: checkpoints of another config are not restored.
          pinned: a step whose checkpoint stays as well.

        Raises:
          ValueError: `keep` is less than 1.
        """
        if keep < 1:
            raise ValueError(f"keep={keep} must be at least 1")
        self._root = Path(run_dir) / "checkpoints"
        self._keep, self._config_hash, self._pinned = keep, config_hash, pinned
        self._unusable: set[int] = set()  # found so by `restore`: they do not count as kept
        self._cleaned = False
        self._thread: threading.Thread | None = None
        self._failure: CheckpointError | None = None

    def steps(self) -> list[int]:
        """The steps of all checkpoints, damaged ones included, ascending.

        Raises:
          CheckpointError: the last save failed.
        """
        self.close()
        return manifest.steps(self._root)

    def save(
        self,
        step: int,
        state: Any,
        *,
        records_bytes: int,
        records_sha256: str | None = None,
        metric: float | None,
        best: bool,
    ) -> None:
        """Copies a state and saves it on a thread; then those no longer kept are removed.

        It counts from some moment before `close`, or the next save, returns.

        Args:
          step: updates made.
          state: any tree of numpy or jax arrays and Python numbers.
          records_bytes: length of metrics.jsonl, which is on the disk already.
          records_sha256: of those bytes.
          metric: the state's validation metric.
          best: whether that is the best so far: the newest checkpoint so marked is "best".

        Raises:
          CheckpointError: the *previous* save failed. The checkpoints from before it are whole.
          TypeError: a leaf is not an array of numbers.
          ValueError: the tree has no leaves, or two with one path.
        """
        self.close()
        leaves, packed = packing.pack(state)
        body = {
            "code": __version__,
            "config_hash": self._config_hash,
            "step": int(step),
            "records_bytes": int(records_bytes),
            "records_sha256": records_sha256,
            "metric": None if metric is None else plain(float(metric)),
            "best": bool(best),
            "leaves": leaves,
        }
        self._thread = threading.Thread(target=self._save, args=(packed, body), name="checkpoint")
        self._thread.start()

    def close(self) -> None:
        """Waits until the last save counts. Without it, a save may end with the process.

        Raises:
          CheckpointError: it failed; told once.
        """
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

    def restore(
        self, template: Any, step: int | Literal["best"] | None = None, *, partial: bool = False
    ) -> Restored | None:
        """The newest checkpoint that is whole, or the one that is asked for.

        Args:
          template: a tree with the shapes and dtypes of what was saved: arrays, Python numbers,
            `ShapeDtypeStruct`s. A leaf is known by its path: a dict stands for a named tuple.
          step: None, a step, or "best".
          partial: whether the template may lack leaves that were saved: {"params": ...} then
            restores the parameters alone.

        Returns:
          None if there are no checkpoints.

        Raises:
          Unrestorable: there are checkpoints, but none of them, or not the one that is asked for,
            can be restored.
          CheckpointError: the last save failed.
        """
        steps = self.steps()
        if not steps:
            return None
        there, skipped = ", ".join(map(str, steps)), list[str]()
        if step not in (None, "best", *steps):
            raise Unrestorable(f"{self._root}: none is of step {step}; there are {there}")
        for candidate in steps[::-1] if step in (None, "best") else [int(step)]:
            marked = step != "best"
            try:
                told = manifest.read(self._root / str(candidate))
                marked = marked or told["best"]
                if marked:
                    state = self._read(candidate, told, template, partial)
                    records = told["records_bytes"], told.get("records_sha256")
                    return Restored(candidate, state, *records, skipped)
            except Unusable as reason:
                self._unusable.add(candidate)
                skipped.append(f"checkpoint {candidate} skipped: {reason}")
                if step == "best" and marked:
                    break  # an older one must not pass for the best
        why = "; ".join(skipped) or "no checkpoint is marked best"
        raise Unrestorable(f"{self._root}: {why} (there are {there}; nothing was changed)")

    def _save(self, packed: np.ndarray, body: dict[str, Any]) -> None:
        final = self._root / str(body["step"])
        home = final if final.exists() else final.with_suffix(".tmp")
        try:
            parent = self._root.parent.stat()
            self._root.mkdir(exist_ok=True)  # a run directory that vanished is not made again
            if not self._cleaned:
                sync_directory(self._root.parent)
                manifest.clean(self._root)
                self._cleaned = True
            home.mkdir(exist_ok=True)
            data = home / f"data-{manifest.next_number(home)}"
            packing.write(data, packed)
            if not os.path.samestat(parent, self._root.parent.stat()):  # orbax makes it again
                shutil.rmtree(home)
                raise FileNotFoundError("the run's directory has vanished")
            body["state_sha256"] = hashlib.sha256(packed.data).hexdigest()
            body["data"] = data.name
            body["files"] = manifest.digests(data, sync=True)
            manifest.write(home, body)
            if home != final:
                os.rename(home, final)
            sync_directory(self._root)
        except Exception as error:  # orbax raises a bare ValueError where the disk is full
            with contextlib.suppress(OSError):
                manifest.clean(self._root)
            self._failure = CheckpointError(f"{final}: not saved: {packing.line(error)}")
            return
        self._unusable.discard(body["step"])
        with contextlib.suppress(OSError):  # it is tried again when the run is opened again
            manifest.tidy(final)
            self._retire()

    def _read(self, step: int, told: dict[str, Any], template: Any, partial: bool) -> Any:
        if told["config_hash"] != self._config_hash:
            raise Unusable(f"it belongs to config {told['config_hash']}, not {self._config_hash}")
        if told["step"] != step:
            raise Unusable(f"its manifest says step {told['step']}")
        data = self._root / str(step) / told["data"]
        manifest.verify(data, told["files"])
        packed = packing.read(data)
        if hashlib.sha256(packed.data).hexdigest() != told["state_sha256"]:
            raise Unusable("the restored bytes are not those that were saved")
        return packing.unpack(packed, told["leaves"], template, partial)

    def _retire(self) -> None:
        """Removes all but the newest and the best; what cannot be used is neither, and stays."""
        usable = {}
        for step in manifest.steps(self._root)[::-1]:
            with contextlib.suppress(Unusable):
                if step not in self._unusable:
                    usable[step] = manifest.read(self._root / str(step))
        best = next((step for step, told in usable.items() if told["best"]), None)
        for step in list(usable)[self._keep :]:
            if step not in (best, self._pinned):
                home = self._root / str(step)
                shutil.rmtree(home.rename(home.with_suffix(".tmp")))

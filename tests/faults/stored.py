"""The checkpoints of one run as the product restores them, and what was saved in them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np

from mha_jax.checkpoint import CheckpointError, Checkpoints, Restored

HOW = ("fallback", "harmless", "refused", "raised")  # what restoring may come to


class Stored:
    """A run directory with several checkpoints, all of them whole when this is made."""

    def __init__(self, run_dir: Path):
        self.run_dir = run_dir
        self.root = run_dir / "checkpoints"
        self.hash = json.loads((run_dir / "config.json").read_bytes())["hash"]
        self.steps = sorted(int(p.name) for p in self.root.iterdir() if p.name.isdecimal())
        self.template = _template(self.root / str(self.steps[-1]))
        self.saved = {step: _bytes(self._restore(step).state) for step in self.steps}

    def files(self) -> list[Path]:
        """Every file of the newest checkpoint."""
        newest = self.root / str(self.steps[-1])
        return sorted(path for path in newest.rglob("*") if path.is_file())

    def after_damage(self) -> tuple[str, list[str]]:
        """What restoring comes to now.

        Returns:
          One of HOW: an older one, with the reason; the newest, bit for bit; an error of the
          product's; any other error. And what is wrong.
        """
        try:
            restored = self._restore(None)
        except CheckpointError as error:
            return "refused", [] if _named(str(error)) else [f"a bad message: {error}"]
        except Exception as error:  # what the product must never let through
            return "raised", [f"{type(error).__name__}: {error}"]
        wrong = []
        if _bytes(restored.state) != self.saved.get(restored.step):
            wrong.append(f"SILENT: step {restored.step} is not what was saved")
        if restored.step != self.steps[-1]:
            wrong += [] if all(map(_named, restored.skipped)) else ["no reason is named"]
            wrong += [] if restored.skipped else ["an older one without a word"]
            return "fallback", wrong
        return "harmless", wrong

    def _restore(self, step: int | None) -> Restored:
        checkpoints = Checkpoints(self.run_dir, keep=3, config_hash=self.hash)
        restored = checkpoints.restore(self.template, step)
        if restored is None:
            raise AssertionError("SILENT: it says that there are no checkpoints: step 0")
        return restored


def _template(home: Path) -> dict[str, Any]:
    """The tree of what a manifest says was saved: a dict stands for a named tuple."""
    tree: dict[str, Any] = {}
    for path, dtype, shape in json.loads((home / "manifest.json").read_bytes())["leaves"]:
        *folders, leaf = path.split("/")
        place = tree
        for name in folders:
            place = place.setdefault(name, {})
        place[leaf] = jax.ShapeDtypeStruct(tuple(shape), np.dtype(dtype))
    return tree


def _bytes(state: Any) -> list[bytes]:
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(state)]


def _named(reason: str) -> bool:
    return bool(reason.strip()) and "\n" not in reason and "checkpoint" in reason

"""Which task a run trains on, and what the task's module says of it.

The module is found by name when it is asked, so nothing here imports jax or a task.
"""

from __future__ import annotations

import dataclasses
import importlib
import types
from typing import Any


@dataclasses.dataclass(frozen=True)
class TaskRef:
    """Which task, with which constants."""

    name: str  # module of mha_jax.tasks
    seed: int  # draws the task's constants and its evaluation sets
    params: tuple[tuple[str, Any], ...]  # fields of the task's own Config, sorted by name
    data_hash: str  # SHA-256 of the corpus; "" for a generated task

    @property
    def module(self) -> types.ModuleType:
        """The task's module."""
        return importlib.import_module(f"mha_jax.tasks.{self.name}")

    @property
    def config(self) -> Any:
        """The task's own frozen Config."""
        return self.module.Config(**dict(self.params))

    @property
    def spec(self) -> Any:
        """The task's `tasks.TaskSpec`."""
        return self.module.spec(self.config)

    def constants(self, split: str) -> dict[str, Any]:
        """The task's numpy arrays of "train", "validation" or "test".

        Raises:
          ValueError: the corpus cannot be read.
        """
        return self._ask("constants", {}, split)

    def encode(self, text: str) -> Any:
        """A text as inputs of one sequence, numpy [t, ...].

        Raises:
          ValueError: the task reads no text, or not this one.
        """
        found = getattr(self.module, "encode", None)
        if found is None:
            raise ValueError(f"the task {self.name!r} reads no text; give inputs or a Batch")
        return found(self.config, text)

    def ceiling(self, model: Any) -> float | None:
        """Bound of the task's metric for a `config.ModelSpec`; None where none is known."""
        return self._ask("ceiling", None, model)

    def baselines(self, model: Any) -> dict[str, float]:
        """Values of the task's metric that need no training, by name, beside such a model."""
        return self._ask("baselines", {}, model)

    def documents(self) -> Any:
        """The test split as `tasks.Documents`; None where the task has none."""
        return self._ask("documents", None)

    @property
    def data_changed(self) -> bool:
        """Whether the corpus is another than the one that the run was planned with."""
        return bool(self.data_hash) and self.module.data_hash(self.config) != self.data_hash

    def _ask(self, name: str, otherwise: Any, *args: Any) -> Any:
        """What a function of the task's module says, where it has that one."""
        found = getattr(self.module, name, None)
        return found(self.config, self.seed, *args) if found else otherwise

"""What the statistics need of a run."""

from __future__ import annotations

import dataclasses
import math

from mha_jax.report import verdict
from mha_jax.tasks import TaskSpec


@dataclasses.dataclass(frozen=True)
class Result:
    """The final numbers of a run."""

    hash: str
    seed: int
    data_seed: int
    lr: float
    weight_decay: float
    purpose: str  # one of planned.PURPOSES
    status: str  # of store.STATUSES
    validation: float  # NaN where there is none
    test: float  # NaN where there is none
    outputs: tuple[float, ...]  # test metric of each read-out head; (test,) if there is one
    ceiling: float | None
    initial: float | None  # validation metric of the parameters that it began with
    steps_to_threshold: int | None

    @property
    def is_done(self) -> bool:
        """Trained to the end, with a finite test metric."""
        return self.status == "done" and math.isfinite(self.test)

    @property
    def is_diverged(self) -> bool:
        """Ran, but left no usable metric."""
        return self.status == "diverged" or (self.status == "done" and not self.is_done)

    @property
    def pair(self) -> tuple[int, int]:
        """What two runs share that are compared as a pair: initial weights and batches."""
        return self.seed, self.data_seed

    def solved(self, spec: TaskSpec) -> bool | None:
        """Whether a run that is done solved its task; None if the task does not say when."""
        return verdict.solved(self.test, self.outputs, self.ceiling, spec)

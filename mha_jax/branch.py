"""A run that starts where another one stood: a twin goes on from the constant trunk of its cell.

Until its decay begins, a run with twice the steps makes the same updates as the run with the
budget itself: the schedule is constant, and batches go by name and step. So it starts from that
run's checkpoint at the end of the trunk, with that run's record up to there.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from mha_jax.checkpoint import CheckpointError, Checkpoints, Restored
from mha_jax.files import write_atomic


def restore(
    directory: Path, told: dict[str, Any], fresh: Any, emit: Callable[[dict[str, Any]], None]
) -> tuple[Restored | None, Path]:
    """The state from which a run branches off, and the directory of the run it belongs to.

    Args:
      directory: of the run that starts, in the same experiment.
      told: `hash` of the run that it continues, and the `step`.
      fresh: a state with the shapes of what was saved.
      emit: receives a note where the run must start from scratch instead.

    Returns:
      None where that checkpoint is missing or damaged. `metrics.jsonl` then holds nothing, else the
      lines up to the step.
    """
    found = next(directory.parent.glob(f"*-{told['hash']}"), directory)
    try:
        checkpoints = Checkpoints(found, keep=1, config_hash=told["hash"])
        restored = checkpoints.restore(fresh, told["step"]) if told["step"] else None
        if restored is None:
            return None, directory
        records = directory / "metrics.jsonl"
        if not records.exists():  # else it has branched off before, and begins with the same lines
            lines = (found / "metrics.jsonl").read_bytes()[: restored.records_bytes]
            write_atomic(records, lines)
        return restored, found
    except (CheckpointError, OSError) as error:
        emit({"event": "note", "text": f"{directory.name}: starts from scratch: {error}"})
        return None, directory

"""What a case tells: how many faults it tried, how many the product withstood, and why not."""

from __future__ import annotations

import random
import sys
from typing import Any

_MOST_TOLD = 3  # reasons in a note; the rest is counted


class Tally:
    """One row of the suite."""

    def __init__(self, name: str):
        self.name, self.tried, self.passed = name, 0, 0
        self.told: list[str] = []  # what a reader should know although it passed
        self._wrong: list[str] = []

    def add(self, wrong: list[str] | str, what: str = "") -> bool:
        """Counts a fault that was tried.

        Args:
          wrong: what the product did wrong; empty: it withstood.
          what: the fault, in a few words, so that it can be found again.

        Returns:
          Whether it passed.
        """
        reasons = [wrong] if isinstance(wrong, str) and wrong else list(wrong)
        self.tried += 1
        if reasons:
            self._wrong.append(f"{what}: {'; '.join(reasons)}" if what else "; ".join(reasons))
            print(f"  {self.name}: {self._wrong[-1]}", file=sys.stderr, flush=True)
        else:
            self.passed += 1
        return not reasons

    def row(self) -> dict[str, Any]:
        """The row as the suite prints it."""
        notes = list(dict.fromkeys(self._wrong))
        if len(notes) > _MOST_TOLD:
            notes = [*notes[:_MOST_TOLD], f"and {len(notes) - _MOST_TOLD} more"]
        note = " | ".join([*notes, *self.told])
        return {"name": self.name, "tried": self.tried, "passed": self.passed, "note": note}


def needs(name: str, what: str) -> dict[str, Any]:
    """The row of a fault that this machine has no means for."""
    return {"name": name, "tried": 0, "passed": 0, "note": f"needs {what}"}


def draws(seed: int, name: str) -> random.Random:
    """The source of every draw of a case: another one for each case and seed."""
    return random.Random(f"{name} {seed}")


def say(line: str) -> None:
    """Progress, on stderr."""
    print(line, file=sys.stderr, flush=True)

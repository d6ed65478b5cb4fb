"""What compiled programs need, as a table, and which do not fit. Imports no jax."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from mha_jax.terminal import si, table


@dataclasses.dataclass(frozen=True)
class Cost:
    """What a compiler says of a program, for each device.

    `peak` is what the device must hold while it runs: arguments, temporaries, outputs and code,
    less the outputs that take the place of an argument. A loop's body is counted once in `flops`
    and `accessed`, since how often it turns is not known: so they are those of one training step,
    one batch that is evaluated, one token.
    """

    arguments: int  # bytes, as the next four
    temporaries: int
    outputs: int
    code: int
    peak: int
    flops: float | None  # None: the compiler does not say
    accessed: float | None  # bytes read and written
    compile_s: float  # lowering included; 0: it is a program that was compiled before


@dataclasses.dataclass(frozen=True)
class Compiled:
    """A program, and what became of it."""

    program: str
    cost: Cost | None  # None: it does not compile
    error: str = ""  # why it does not, in one line

    def problem(self, memory_bytes: int | None) -> str:
        """Why it cannot run on a device with that memory, in one line; "" if it can."""
        if self.cost is None:
            return f"does not compile: {self.error}"
        if memory_bytes is None or self.cost.peak <= memory_bytes:
            return ""
        return f"does not fit: {si(self.cost.peak)}B on a device of {si(memory_bytes)}B"


@dataclasses.dataclass(frozen=True)
class GroupPrograms:
    """The programs of a group of runs."""

    name: str  # "group 3  1f2e3d4c5b  relations GQA-2"
    n_runs: int
    lanes: int
    n_devices: int  # over which the lanes are split
    kernel: str  # of attention
    programs: Sequence[Compiled]


def problems(groups: Sequence[GroupPrograms], memory_bytes: int | None) -> list[str]:
    """What cannot run on devices with that memory, a line each."""
    return [
        f"{group.name}: {one.program} {told}"
        for group in groups
        for one in group.programs
        if (told := one.problem(memory_bytes))
    ]


def to_json(groups: Sequence[GroupPrograms], memory_bytes: int | None) -> list[dict[str, Any]]:
    """The same as JSON; sizes in bytes, of each device."""
    return [
        {
            **{
                field: getattr(group, field)
                for field in ("name", "n_runs", "lanes", "n_devices", "kernel")
            },
            "programs": [
                {**dataclasses.asdict(one), "fits": not one.problem(memory_bytes)}
                for one in group.programs
            ],
        }
        for group in groups
    ]


_HEADER = ("program", "arguments", "temporary", "outputs", "peak B", "FLOP", "B accessed")


def to_text(groups: Sequence[GroupPrograms], memory_bytes: int | None) -> str:
    """Tables for a terminal, with what is wrong at the end."""
    lines = ["for each device; of a loop's body FLOP and B accessed are those of one turn"]
    for group in groups:
        shared = f"{_count(group.lanes, 'lane')} on {_count(group.n_devices, 'device')}"
        how = f"{_count(group.n_runs, 'run')}, {shared}, kernel {group.kernel}"
        lines += ["", f"{group.name}: {how}"]
        body = [(*_cells(one), _fits(one, memory_bytes)) for one in group.programs]
        lines += table((*_HEADER, "compile s", "fits"), body)
    wrong = problems(groups, memory_bytes)
    compiled = [
        (one.cost.peak, group, one) for group in groups for one in group.programs if one.cost
    ]
    lines.append("")
    if compiled:
        peak, group, one = max(compiled, key=lambda told: told[0])
        of = "" if memory_bytes is None else f" of {si(memory_bytes)}B"
        lines.append(f"the largest is {one.program} of {group.name}: {si(peak)}B{of}")
    n = sum(len(group.programs) for group in groups)
    return "\n".join([*lines, *(wrong or [f"all {n} programs compile and fit"])])


def _cells(one: Compiled) -> tuple[str, ...]:
    cost = one.cost
    if cost is None:
        return (one.program, *["-"] * len(_HEADER))
    numbers = (cost.arguments, cost.temporaries, cost.outputs, cost.peak, cost.flops, cost.accessed)
    told = ("?" if number is None else si(number) for number in numbers)
    return (one.program, *told, f"{cost.compile_s:.1f}" if cost.compile_s else "as before")


def _fits(one: Compiled, memory_bytes: int | None) -> str:
    return "no" if one.problem(memory_bytes) else "yes"


def _count(n: int, noun: str) -> str:
    return f"{n} {noun}{'' if n == 1 else 's'}"

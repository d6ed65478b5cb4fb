"""Two sweeps side by side: the cells that both have, what else differs, and which is better.

Cells of a task are matched by the fields that vary inside either sweep. A size that a config
derives from others (n_kv_heads, d_head, and what `match.policy` sets) is matched by only where it
tells cells of a sweep apart, so that a sweep of MHA can be compared with the same sweep of MQA.
Every other field in which matched cells differ is what is compared.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mha_jax import config, planned, store
from mha_jax.report import cells, pairs
from mha_jax.report.cells import CellRuns
from mha_jax.report.compare import Comparison, compare

Fields = dict[str, Any]  # what a cell is, under dotted names like those of a config

_DERIVED = ("model.n_kv_heads", "model.d_head")


@dataclasses.dataclass(frozen=True)
class Match:
    """A cell that both sweeps have."""

    a: CellRuns
    b: CellRuns
    key: Fields  # by which it was matched
    differs: dict[str, tuple[Any, Any]]  # the other fields that differ, A's and B's value


@dataclasses.dataclass(frozen=True)
class Across:
    """A comparison of two sweeps."""

    roots: tuple[Path, Path]
    matches: tuple[Match, ...]
    found: tuple[Comparison, ...]  # one for each match, A - B; p adjusted over all of them
    alone: tuple[tuple[CellRuns, ...], tuple[CellRuns, ...]]  # cells that only A, only B has
    problems: tuple[str, ...]  # one line for each thing that could not be read

    @property
    def differs(self) -> list[str]:
        """What is compared, a line a field: "model.positions learned -> rope"."""
        return _told([match.differs for match in self.matches])


def across(root_a: str | Path, root_b: str | Path, anyway: bool = False) -> Across:
    """Compares two sweeps on the seeds that they share, each cell at its own learning rate.

    Args:
      root_a: `<workdir>/<experiment>`.
      root_b: another one.
      anyway: also where the task, its constants, its data or the budget differ.

    Raises:
      ValueError: a directory cannot be read as a sweep, both are the same one, they share no cell,
        or what they share is no like with like.
    """
    roots = Path(root_a), Path(root_b)
    if roots[0].resolve() == roots[1].resolve():
        raise ValueError(f"{roots[0]}: the same directory twice; give two experiments")
    (runs_a, problems_a), (runs_b, problems_b) = map(store.read_sweep, roots)
    sweeps = cells.gather(runs_a), cells.gather(runs_b)
    matches, tried = _matches(*sweeps)
    names = f"{roots[0]} and {roots[1]}"
    if not matches:
        raise ValueError(f"{names} share no cell; the fields that vary, {tried}, never agree")
    unlike = _told([{k: v for k, v in m.differs.items() if _must_agree(k)} for m in matches])
    if unlike and not anyway:
        raise ValueError(
            f"{names} are no like with like: {'; '.join(unlike)}; --anyway compares them"
        )
    for metrics in sorted({(m.a.spec.metric, m.b.spec.metric) for m in matches}):
        if metrics[0] != metrics[1]:
            raise ValueError(f"{names} cannot be subtracted: {' and '.join(metrics)}")
    shared = {id(c) for m in matches for c in (m.a, m.b)}
    alone = [tuple(c for c in sweep if id(c) not in shared) for sweep in sweeps]
    return Across(
        roots=roots,
        matches=tuple(matches),
        found=tuple(compare([pairs.pair(m.a, m.b) for m in matches])),
        alone=(alone[0], alone[1]),
        problems=(*problems_a, *problems_b),
    )


def _matches(a: Sequence[CellRuns], b: Sequence[CellRuns]) -> tuple[list[Match], str]:
    """The shared cells in the order of A, and the fields they were looked for by.

    Tasks that both have are matched one by one, since what varies may differ between them. Where
    they have none in common the task is a field like any other.
    """
    tasks = [{c.static.task.name: None for c in sweep} for sweep in (a, b)]
    common = [{name} for name in tasks[0] if name in tasks[1]] or [{*tasks[0], *tasks[1]}]
    matches: list[Match] = []
    tried: dict[str, None] = {}
    for names in common:
        own = [[(c, _fields(c)) for c in s if c.static.task.name in names] for s in (a, b)]
        key = _key([[fields for _, fields in sweep] for sweep in own])
        tried |= dict.fromkeys(key)
        found = {_values(fields, key): (c, fields) for c, fields in own[1]}
        for one, fields in own[0]:
            if _values(fields, key) in found:
                other, others = found[_values(fields, key)]
                both = {k: (fields.get(k), others.get(k)) for k in fields | others}
                differs = {k: v for k, v in both.items() if v[0] != v[1]}
                matches.append(Match(one, other, {k: fields.get(k) for k in key}, differs))
    return matches, ", ".join(tried)


def _key(sweeps: Sequence[Sequence[Fields]]) -> list[str]:
    """The fields by which cells are matched: no two cells of a sweep agree in all of them."""
    names = list(dict.fromkeys(name for sweep in sweeps for fields in sweep for name in fields))

    def n_apart(names: Sequence[str]) -> list[int]:
        return [len({_values(fields, names) for fields in sweep}) for sweep in sweeps]

    varying = [name for name in names if max(n_apart([name])) > 1]
    policies = {fields["match.policy"] for sweep in sweeps for fields in sweep}
    derived = [n for n in varying if n in _DERIVED or n.removeprefix("model.") in policies]
    key = [n for n in varying if n not in derived]
    for name in derived:
        if n_apart([*key, name]) != n_apart(key):
            key.append(name)
    return key


def _values(fields: Fields, names: Sequence[str]) -> tuple[str, ...]:
    return tuple(repr(fields.get(name)) for name in names)


def _fields(c: CellRuns) -> Fields:
    static, task = c.static, c.static.task
    return {
        "task.name": task.name,
        "task.seed": task.seed,
        **{f"task.{task.name}.{name}": value for name, value in task.params},
        "task.data_hash": task.data_hash,
        **{f"model.{name}": value for name, value in cells.model_fields(static.model).items()},
        "match.policy": c.runs[0].about["match"],
        **{f"train.{name}": value for name, value in config.to_json(static.train).items()},
        **{f"optim.{name}": value for name, value in config.to_json(static.optim).items()},
        **planned.source_fields(static),
        "n_sequences": static.n_sequences,
    }


def _must_agree(name: str) -> bool:
    """Whether cells that differ in a field are no like with like."""
    budget = ("train.n_steps", "train.batch_size", "n_sequences")
    return name.startswith("task.") or name in budget


def _told(differs: Sequence[dict[str, tuple[Any, Any]]]) -> list[str]:
    """Each field once, with all its values: "model.n_kv_heads 2, 4 -> 1"."""
    lines = []
    for name in dict.fromkeys(name for one in differs for name in one):
        values = [one[name] for one in differs if name in one]
        a, b = (", ".join(dict.fromkeys(_show(v[side]) for v in values)) for side in (0, 1))
        lines.append(f"{name} {a} -> {b}")
    return lines


def _show(value: Any) -> str:
    """A value of a field; the corpus of a generated task, and a field of another task, are none."""
    return "none" if value in (None, "") else str(value)

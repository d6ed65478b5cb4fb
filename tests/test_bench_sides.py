"""Processes that are measured against each other, in turn."""

import sys
from pathlib import Path
from typing import Any

import pytest

from mha_jax.bench import side, sides


def _double(x: int) -> dict[str, Any]:
    return {"y": 2 * x}


def _noise() -> dict[str, Any]:
    print("a library says something")
    return {"y": 1}


def _fault(n: int) -> dict[str, Any]:
    def work() -> None:
        memory = bytearray(n)
        memory[::4096] = b"x" * len(memory[::4096])

    return side.timed(work)


def _malloc() -> dict[str, Any]:
    import os

    return {"tunables": os.environ.get("GLIBC_TUNABLES", ""), "cores": len(os.sched_getaffinity(0))}


HANDLERS: side.Handlers = {
    "double": _double,
    "noise": _noise,
    "fail": lambda: {}["no such key"],
    "die": lambda: sys.exit("out of order"),
    "fault": _fault,
    "malloc": _malloc,
}


def one(**settings: Any) -> sides.Side:
    return sides.Side("ours", "tests.test_bench_sides", **settings)


def test_a_side_answers_and_says_what_went_wrong() -> None:
    with one() as ours:
        assert ours.ask("double", x=4) == {"y": 8}
        assert ours.ask("noise") == {"y": 1}
        with pytest.raises(sides.SideError, match="ours: KeyError: 'no such key'"):
            ours.ask("fail")
        assert ours.ask("double", x=1) == {"y": 2}, "it goes on"
        with pytest.raises(sides.SideError, match="ours ended: out of order"):
            ours.ask("die")
        with pytest.raises(sides.SideError, match="ours ended"):
            ours.ask("double", x=1)


def test_a_side_that_does_not_come_up() -> None:
    with pytest.raises(sides.SideError, match="ModuleNotFoundError"):
        sides.Side("ours", "tests.no_such_module")


def test_settings_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1")  # as after `host.restart`
    with one(cpu=0) as tuned, one(tuned=False) as plain:
        assert tuned.settings["malloc"] and tuned.settings["pinned"]
        assert tuned.ask("malloc") == {"tunables": "glibc.malloc.hugetlb=1", "cores": 1}
        assert plain.ask("malloc")["tunables"] == ""
        assert not plain.settings["malloc"] and not plain.settings["huge_pages"]
        pages = 64 * 2**20 // 4096  # of 64 MiB, which the tuned process keeps
        tuned.ask("fault", n=64 * 2**20)
        assert tuned.ask("fault", n=64 * 2**20)["minor_faults"] < pages / 2
        assert plain.ask("fault", n=64 * 2**20)["minor_faults"] >= pages


def test_teams_take_turns() -> None:
    """The order turns round, and a team is as slow as its slowest side."""
    order: list[str] = []

    class Fake:
        def __init__(self, name: str, seconds: float):
            self.name, self.seconds = name, seconds

        def ask(self, do: str, n: int) -> dict[str, Any]:
            assert do == "steps" and n == 3
            order.append(self.name)
            return {"seconds": self.seconds, "cpu_s": 1.0, "minor_faults": 2}

    teams: Any = {"a": [Fake("a", 1.0), Fake("a", 4.0)], "b": [Fake("b", 2.0)]}
    took = sides.in_turn(teams, "steps", {"n": 3}, reps=3)
    assert order == ["a", "a", "b", "b", "a", "a", "a", "a", "b"]
    assert took["a"].to_json() == {
        "seconds": 4.0,
        "cpu_s": 2.0,
        "minor_faults": 4,
        "spread": 1.0,
        "reps": 3,
    }


def test_the_bound_of_a_row_has_a_tenth_of_noise() -> None:
    def row(ratio: float | None, must: float | None) -> bool:
        return sides.Row("train_A", "torch", ratio, must, None, {}).kept

    assert row(0.91, 1.0) and not row(0.89, 1.0) and row(None, 1.0) and row(0.1, None)
    less = [sides.Row("w", "p", r, 1.25, 1.1, {}, less=True).kept for r in (1.0, 1.37, 1.38)]
    assert less == [True, True, False]
    assert not sides.Row("w", "p", None, 1.0, 1.0, {}, sound=False).kept
    assert not sides.Row("w", "p", 9.0, 1.0, 1.0, {}, sound=False).kept


def test_where_the_peers_live(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MHA_JAX_PEERS", str(tmp_path))
    assert sides.peers_python() is None
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.touch()
    assert sides.peers_python() == python

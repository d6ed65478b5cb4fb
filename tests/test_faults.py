"""The fault suite finds what the product does wrong: each case is given a product that is broken on
purpose, and must say so. A few cases run here at their smallest counts, so that they keep working.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mha_jax import checkpoint, manifest, store
from mha_jax.attention.core import Mask
from mha_jax.checkpoint import Checkpoints
from tests.faults import (
    __main__,
    r01_kills,
    r03_flips,
    r04_lost_files,
    r07_bad_steps,
    r12_bad_input,
    r13_records,
    r15_attention,
    small,
)
from tests.faults.inject import defects, injected
from tests.faults.stored import Stored
from tests.faults.tally import Tally, draws


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the tiny sweep is, which is trained once."""
    return tmp_path_factory.mktemp("faults")


@pytest.fixture
def stored(tmp_path: Path) -> Stored:
    """A run with three checkpoints, of numbers that are drawn."""
    (tmp_path / "config.json").write_text(json.dumps({"hash": "0123456789"}))
    checkpoints = Checkpoints(tmp_path, keep=3, config_hash="0123456789")
    for step in (20, 40, 60):
        weights = np.random.default_rng(step).standard_normal((3, 50)).astype(np.float32)
        state = {"step": np.int32(step), "params": {"w": weights}}
        checkpoints.save(step, state, records_bytes=0, metric=None, best=False)
    checkpoints.close()
    return Stored(tmp_path)


def break_here(monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], *modules: Any) -> None:
    """Plants a defect in this process, for the length of a test."""
    for module in modules:
        for name, value in vars(module).items():
            monkeypatch.setattr(module, name, value)  # noted, so that it comes back
        if module is checkpoint:
            monkeypatch.setattr(Checkpoints, "_read", Checkpoints._read)
        changes[module.__name__](module)


def failing(rows: list[dict[str, Any]]) -> list[str]:
    """The names of rows that did not pass; nothing that was tried is no pass."""
    assert all(row["tried"] > 0 for row in rows)
    return [row["name"] for row in rows if row["passed"] < row["tried"]]


def test_flipped_bits_and_lost_files_are_found(stored: Stored) -> None:
    draw = draws(0, "test")
    flips, lost = r03_flips.flips(stored, 60, draw), r04_lost_files.lost(stored, draw)
    assert (flips.tried, flips.passed) == (60, 60)
    assert lost.tried > 25 and lost.passed == lost.tried


def test_a_product_that_verifies_nothing_is_found(
    stored: Stored, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_here(monkeypatch, defects.believes_every_byte(), manifest, checkpoint)
    flips = r03_flips.flips(stored, 60, draws(0, "test"))
    assert flips.passed < flips.tried and "SILENT" in flips.row()["note"]


def test_a_product_that_starts_again_is_found(
    stored: Stored, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Checkpoints, "restore", lambda *args, **kwargs: None)
    lost = r04_lost_files.lost(stored, draws(0, "test"))
    assert lost.passed == 0 and "step 0" in lost.row()["note"]


def test_bad_input_that_is_accepted_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, count in {"OF_EACH_KEY": 1, "TOGETHER": 10, "NAMES": 10, "BY_SCRIPT": 1}.items():
        monkeypatch.setattr(r12_bad_input, name, (count, count))
    (tmp_path / "good").mkdir()
    assert failing(r12_bad_input.run(0, True, tmp_path / "good")) == []
    (tmp_path / "bad").mkdir()
    monkeypatch.setattr("mha_jax.schema.read", lambda key, value: (value, None))
    assert failing(r12_bad_input.run(0, True, tmp_path / "bad")) == [
        "R12 bad configs, overrides, names"
    ]


def test_attention_that_is_wrong_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(r15_attention, "SHAPES", (5, 5))
    monkeypatch.setattr(r15_attention, "OF_EACH", (5, 5))
    monkeypatch.setattr(r15_attention, "CACHES", (1, 1))
    assert failing(r15_attention.run(0, True, Path())) == []
    plain = Mask.sees

    def one_too_few(self: Mask, t: Any, s: Any) -> Any:
        """Causal without the query's own key, but for the first."""
        return (
            plain(self, t, s) & ((s < t) | (s == 0)) if self.kind == "causal" else plain(self, t, s)
        )

    monkeypatch.setattr(Mask, "sees", one_too_few)
    assert failing(r15_attention.run(0, True, Path())) == ["R15 attention", "R15 caches"]


def test_damaged_records_that_are_believed_are_found(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(r13_records, "TIMES", (1, 1))
    monkeypatch.setattr(r13_records, "FLIPS", (12, 12))
    whole = small.unbroken(root)
    monkeypatch.setattr(small, "unbroken", lambda _: whole)
    (tmp_path / "good").mkdir()
    assert failing(r13_records.run(0, True, tmp_path / "good")) == []
    (tmp_path / "bad").mkdir()
    monkeypatch.setattr(store, "is_as_written", lambda value: True)
    monkeypatch.setattr(store.StoredRun, "changed", lambda self, name: "")
    assert "R13 flipped bits in records" in failing(r13_records.run(0, True, tmp_path / "bad"))


def test_a_run_that_does_not_go_on_exactly_is_found(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(r01_kills, "KILLS", (1, 1))
    monkeypatch.setattr(r01_kills, "_KINDS", ("training",))
    small.unbroken(root)  # before the defect
    monkeypatch.setenv("MHA_FAULTS", '[{"name": "restores_inexactly"}]')
    (root / "r01").mkdir()
    (row,) = r01_kills.run(0, True, root / "r01")
    assert row["tried"] == 1 and "the final state differs" in row["note"]


def test_a_step_that_is_no_number_and_is_not_noticed_is_found(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MHA_FAULTS", '[{"name": "never_bad"}]')
    monkeypatch.setattr(r07_bad_steps, "_calm", lambda directory, flags: small.unbroken(root)[0])
    (root / "r07").mkdir()
    assert r07_bad_steps._one(root / "r07", 0, "stop", "nan", 300, 0)


def test_the_command(capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"name": "R4", "tried": 2, "passed": 1, "note": "lost"}]
    monkeypatch.setattr(r04_lost_files, "run", lambda seed, quick, directory: rows)
    assert __main__.main(["--quick", "--only=R4", "--seed=3", "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert (told["rows"], told["seed"], told["quick"]) == (rows, 3, True)
    assert told["versions"]["jax"] and told["machine"]["threads"]
    rows[0]["passed"] = 2
    assert __main__.main(["--quick", "--only=R4"]) == 0
    assert "R4" in capsys.readouterr().out
    for bad in (["--only=R99"], ["--seed=x"], ["--fast"], ["word"]):
        assert __main__.main(bad) == 2
        assert len(capsys.readouterr().err.splitlines()) == 1


def test_what_was_not_tried_does_not_pass() -> None:
    tally = Tally("R0")
    assert tally.row()["tried"] == 0
    tally.add("", "fine")
    tally.add(["wrong", "and more"], "a fault")
    assert tally.row() == {
        "name": "R0",
        "tried": 2,
        "passed": 1,
        "note": "a fault: wrong; and more",
    }


def test_every_fault_and_defect_names_modules_that_there_are() -> None:
    arguments = {"step": 1, "seed": 0, "by": "nan", "marker": "m", "at": 1, "text": "t"}
    arguments |= {"by_s": 1.0, "path": "p"}
    for make in (*injected.FAULTS.values(), *defects.DEFECTS.values()):
        names = make.__code__.co_varnames[: make.__code__.co_argcount]
        for module in make(**{name: arguments[name] for name in names if name in arguments}):
            assert (small.ROOT / f"{module.replace('.', os.sep)}.py").exists(), module

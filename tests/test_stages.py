"""What follows from finished results: a wider grid, the reported seeds, the twins."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from synthetic import make_run

from mha_jax import store, tune
from mha_jax.load import load
from mha_jax.report import cells
from mha_jax.stages import followups
from mha_jax.sweep import expand

ROOT = Path(__file__).parents[1]
CONFIG = """
from configs import base

def get_config(arg=None):
    config = base.get_config()
    config.experiment = "staged"
    config.task.name = "taps"
    config.model.qk_from = "positions"
    config.model.d_model = 8
    config.model.n_heads = 2
    config.train.n_steps = 50
    config.train.batch_size = 8
    config.train.eval_every = 20
    config.train.n_eval = config.train.n_test = config.train.n_probe = 16
    config.optim.warmup_steps = 5
    config.log.every = 10
    config.log.checkpoint_every = 20
    config.log.keep = 1
{body}
    return config

def sweep(add):
{sweep}
"""
TUNED = """
    config.tune.lrs = "1e-3,2e-3,4e-3"
    config.tune.n_selection = 2
    config.tune.n_reported = 3
    config.converge.confirm = True
"""


def planned(tmp_path, body=TUNED, sweep="    add({})"):
    path = tmp_path / "staged.py"
    path.write_text(CONFIG.format(body=body, sweep=sweep))
    loaded = expand(load(str(path)))
    assert not loaded.problems, loaded.problems
    return loaded


def finish(root, runs, score):
    """Stores a result of each run; `score` is a function of the planned run."""
    for one in runs:
        hypers = one.run.hypers
        assert hypers.seed == hypers.data_seed
        value = score(one)
        make_run(
            root,
            one.run.static,
            value,
            seed=hypers.seed,
            lr=hypers.lr,
            weight_decay=hypers.weight_decay,
            about={key: one.about[key] for key in ("purpose", "tune", "converge")},
        )


def hypers(runs):
    return {(one.run.hypers.lr, one.run.hypers.seed) for one in runs}


def peaked(one):
    """Best at 2e-3; twice the steps change nothing."""
    return {1e-3: 0.3, 2e-3: 0.5, 4e-3: 0.4}[one.run.hypers.lr]


def test_stage_by_stage(tmp_path):
    sweep, root = planned(tmp_path), tmp_path / "staged"
    grid = sweep.runs
    first = tune.SELECTION_SEEDS
    assert {one.about["purpose"] for one in grid} == {"selection"}
    assert hypers(grid) == {(lr, first + i) for lr in (1e-3, 2e-3, 4e-3) for i in (0, 1)}

    finish(root, grid, peaked)
    reported = followups(grid, store.read_sweep(root)[0])
    assert {one.about["purpose"] for one in reported} == {"sweep"}
    assert hypers(reported) == {(2e-3, 0), (2e-3, 1), (2e-3, 2)}
    assert [one.label for one in reported] == [f"lr=0.002,seed={i}" for i in range(3)]
    assert reported[0].overrides["train.seed"] == 0

    finish(root, reported, peaked)
    twins = followups(grid + reported, store.read_sweep(root)[0])
    assert {one.about["purpose"] for one in twins} == {"twin"}
    assert hypers(twins) == hypers(reported)
    assert {one.run.static.train.n_steps for one in twins} == {100}
    of = {one.run.hypers.seed: one.run.hash for one in reported}
    for one in twins:
        assert one.about["branch"] == {"hash": of[one.run.hypers.seed], "step": 40}
    assert len({one.label for one in [*grid, *reported, *twins]}) == 12

    finish(root, twins, peaked)
    assert followups(grid + reported + twins, store.read_sweep(root)[0]) == []


def test_a_grid_is_widened_where_it_still_rises(tmp_path):
    body = TUNED + '    config.tune.widen = 1\n    config.tune.lrs = "1e-3,2e-3"\n'
    sweep, root = planned(tmp_path, body), tmp_path / "staged"
    finish(root, sweep.runs, lambda one: 0.2 + 100 * one.run.hypers.lr)
    more = followups(sweep.runs, store.read_sweep(root)[0])
    assert {one.about["purpose"] for one in more} == {"selection"}
    assert {one.run.hypers.lr for one in more} == {4e-3}
    finish(root, more, lambda one: 0.9)
    more = followups(sweep.runs + more, store.read_sweep(root)[0])  # it may widen once only
    assert hypers(more) == {(4e-3, i) for i in range(3)}


def test_a_cell_that_reaches_its_ceiling_needs_no_twin(tmp_path):
    sweep, root = planned(tmp_path), tmp_path / "staged"
    solved = {1e-3: 0.3, 2e-3: 1.0, 4e-3: 0.4}
    finish(root, sweep.runs, lambda one: solved[one.run.hypers.lr])
    reported = followups(sweep.runs, store.read_sweep(root)[0])
    finish(root, reported, lambda one: 1.0)
    assert followups(sweep.runs + reported, store.read_sweep(root)[0]) == []


def test_twins_of_a_sweep_without_a_grid(tmp_path):
    body, loops = (
        "    config.converge.confirm = True\n",
        """
    for lr in (1e-3, 2e-3, 4e-3):
        for seed in (3, 4):
            add({"optim.lr": lr, "train.seed": seed, "train.data_seed": seed})
""",
    )
    sweep, root = planned(tmp_path, body, loops), tmp_path / "staged"
    finish(root, sweep.runs, peaked)
    twins = followups(sweep.runs, store.read_sweep(root)[0])
    assert hypers(twins) == {(2e-3, 3), (2e-3, 4)}
    assert {one.about["purpose"] for one in twins} == {"twin"}


def test_a_weight_decay_is_chosen_with_the_rate_and_kept(tmp_path):
    loops = "    for wd in (0.3, 0.0, 0.1):\n        add({'optim.weight_decay': wd})"
    body = TUNED + "    config.tune.widen = 1\n"
    sweep, root = planned(tmp_path, body, loops), tmp_path / "staged"

    def score(one):
        """Best at 4e-3 with 0.1, at an edge where it rises; then at 8e-3."""
        return 0.1 + 50 * one.run.hypers.lr - abs(one.run.hypers.weight_decay - 0.1)

    finish(root, sweep.runs, score)
    done = list(sweep.runs)
    for purpose, lr in (("selection", 8e-3), ("sweep", 8e-3), ("twin", 8e-3)):
        more = followups(done, store.read_sweep(root)[0])
        assert {one.about["purpose"] for one in more} == {purpose}
        assert {(one.run.hypers.lr, one.run.hypers.weight_decay) for one in more} == {(lr, 0.1)}
        assert {one.overrides["optim.weight_decay"] for one in more} == {0.1}
        finish(root, more, score)
        done += more
    assert followups(done, store.read_sweep(root)[0]) == []
    (cell,) = cells.gather(store.read_sweep(root)[0])
    assert len(cell.cell.seeds) == 3


def test_a_wider_grid_that_a_kill_left_incomplete_is_completed(tmp_path):
    body = TUNED + '    config.tune.widen = 1\n    config.tune.lrs = "1e-3,2e-3"\n'
    sweep, root = planned(tmp_path, body), tmp_path / "staged"
    finish(root, sweep.runs, lambda one: 0.2 + 100 * one.run.hypers.lr)
    more = followups(sweep.runs, store.read_sweep(root)[0])
    assert len(more) == 2
    finish(root, more[:1], lambda one: 0.9)
    again = followups(sweep.runs, store.read_sweep(root)[0])  # the next launch knows the grid alone
    assert {one.run.hash for one in again} == {one.run.hash for one in more}


def test_what_was_trained_for_itself_may_be_a_twin_later(tmp_path):
    """First 100 steps, then 50 with twins, in one directory."""
    root = tmp_path / "staged"
    loops = "    for s in (0, 1):\n        add({'train.seed': s, 'train.data_seed': s})"
    long = planned(tmp_path, "    config.train.n_steps = 100\n", loops)
    finish(root, long.runs, lambda one: 0.5)
    short = planned(tmp_path, "    config.converge.confirm = True\n", loops)
    finish(root, short.runs, lambda one: 0.4)
    twins = followups(short.runs, store.read_sweep(root)[0])
    assert {one.run.hash for one in twins} == {one.run.hash for one in long.runs}
    assert followups(short.runs + twins, store.read_sweep(root)[0]) == []


def test_an_older_grid_in_the_directory_takes_part_in_the_choice(tmp_path):
    """The tables choose among all runs that are there; a stage that did not would run others."""
    sweep, root = planned(tmp_path), tmp_path / "staged"
    finish(root, sweep.runs, peaked)
    newer = planned(tmp_path, TUNED.replace("1e-3,2e-3,4e-3", "1e-3,4e-3"))
    there = followups(newer.runs, store.read_sweep(root)[0])  # all of them are over
    assert {one.run.hypers.lr for one in there} == {2e-3}
    reported = followups(newer.runs + there, store.read_sweep(root)[0])
    assert hypers(reported) == {(2e-3, 0), (2e-3, 1), (2e-3, 2)}
    (cell,) = cells.gather(store.read_sweep(root)[0])
    assert cell.cell.lr == 2e-3


@pytest.mark.parametrize(
    ("sweep", "flags", "key"),
    [
        ('    add({"optim.lr": 1e-3})', [], "optim.lr"),
        ('    add({"train.seed": 1})', [], "train.seed"),
        ("    add({})", ["optim.lr=1e-3"], "--config.optim.lr"),
        ('    add({"tune.lrs": "", "tune.n_reported": 9})', [], "tune.n_reported"),
    ],
)
def test_what_tuning_sets_cannot_be_set_as_well(tmp_path, sweep, flags, key):
    path = tmp_path / "staged.py"
    path.write_text(CONFIG.format(body=TUNED, sweep=sweep))
    (problem,) = expand(load(str(path), None, flags)).problems
    assert problem.key == key and "tune.lrs" in problem.message


def test_other_seeds_by_the_command_line(tmp_path):
    path = tmp_path / "staged.py"
    path.write_text(CONFIG.format(body=TUNED, sweep="    add({})"))
    sweep = expand(load(str(path), None, ["train.seed=50"]))
    assert not sweep.problems
    assert {one.run.hypers.seed for one in sweep.runs} == {1_000_050, 1_000_051}


def launch(config: Path, workdir: Path, cache: Path) -> str:
    done = subprocess.run(
        [sys.executable, ROOT / "scripts/sweep.py", f"--config={config}", f"--workdir={workdir}"],
        env={**os.environ, "JAX_COMPILATION_CACHE_DIR": str(cache)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def rows(path):
    return list(csv.DictReader(path.read_text().splitlines()))


def untimed(path):
    found = [json.loads(line) for line in path.read_text().splitlines()]
    return [{k: v for k, v in row.items() if not k.startswith("time/")} for row in found]


def test_a_tuned_sweep_from_grid_to_twins(tmp_path):
    """The twin starts from the trunk of its run, and ends where a run of that length ends."""
    planned(tmp_path, TUNED.replace("n_reported = 3", "n_reported = 2"))
    out = launch(tmp_path / "staged.py", tmp_path / "out", tmp_path / "cache")
    assert "2 more runs at the chosen learning rates" in out
    assert "2 more runs with twice the steps" in out
    root = tmp_path / "out" / "staged"
    (cell,) = rows(root / "frontier.csv")  # the twin is no cell of its own
    assert (cell["n_lrs"], cell["n_seeds"], cell["n_selection"], cell["n_runs"]) == (
        *("3", "2", "2"),
        "8",
    )
    assert cell["twin_change"] and cell["twin_allowed"]
    purposes = [row["purpose"] for row in rows(root / "runs.csv")]
    assert sorted(purposes) == ["selection"] * 6 + ["sweep"] * 2 + ["twin"] * 2
    before = {path: path.stat().st_mtime_ns for path in root.glob("*/summary.json")}

    again = launch(tmp_path / "staged.py", tmp_path / "out", tmp_path / "cache")
    assert "8 of 8 runs were finished before" in again
    assert {path: path.stat().st_mtime_ns for path in before} == before

    # The same runs from scratch: bitwise, by every number of their records.
    lr = cell["lr"]
    planned(
        tmp_path,
        "    config.train.n_steps = 100\n",
        f'    for s in (0, 1): add({{"optim.lr": {lr}, "train.seed": s, "train.data_seed": s}})',
    )
    launch(tmp_path / "staged.py", tmp_path / "scratch", tmp_path / "cache")
    whole = {path.parent.name[-10:]: path for path in tmp_path.glob("scratch/*/*/metrics.jsonl")}
    twins = [row for row in rows(root / "runs.csv") if row["purpose"] == "twin"]
    assert {row["hash"] for row in twins} == whole.keys()
    for row in twins:
        (directory,) = root.glob(f"*-{row['hash']}")
        assert untimed(directory / "metrics.jsonl") == untimed(whole[row["hash"]])
        sessions = json.loads((directory / "run.json").read_text())["sessions"]
        assert len(sessions) == 2  # that of the trunk, and its own
        assert not (directory / "checkpoints" / "20").exists()

    # Planned for themselves, they are no twins any more.
    launch(tmp_path / "staged.py", tmp_path / "out", tmp_path / "cache")
    assert {row["n_steps"] for row in rows(root / "frontier.csv")} == {"50", "100"}


@pytest.mark.slow
def test_a_flat_curve_is_no_convergence(tmp_path):
    """Two thousand steps at a rate of 1e-3 end at half of what four thousand reach."""
    (tmp_path / "flat.py").write_text(
        """
from configs import attr

def get_config(arg=None):
    config = attr.get_config()
    config.model.n_heads, config.model.n_kv_heads = 8, 4
    config.optim.lr = 1e-3
    config.train.n_steps = 2000
    config.train.n_test = 1024
    config.converge.confirm = True
    return config
"""
    )
    launch(tmp_path / "flat.py", tmp_path / "out", tmp_path / "cache")
    (cell,) = rows(tmp_path / "out" / "flat" / "frontier.csv")
    assert (cell["status"], cell["reason"]) == ("unconverged", "budget")
    assert float(cell["twin_change"]) > 0.1

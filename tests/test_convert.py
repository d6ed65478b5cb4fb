"""A trained run converted to fewer kv heads, from the command line."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest
from synthetic import make_run, static

from mha_jax import convert, launch, load_run, store
from mha_jax.flags import checkpoint, read
from mha_jax.load import load
from mha_jax.runner import run_group
from mha_jax.sweep import expand

ROOT = Path(__file__).parents[1]
CONFIG = """
from configs import base

def get_config():
    config = base.get_config()
    config.experiment = "source"
    config.model.d_model = 16
    config.train.n_steps = 40
    config.train.batch_size = 8
    config.train.eval_every = 20
    config.train.n_eval = config.train.n_test = config.train.n_probe = 16
    config.optim.warmup_steps = 20
    config.probe.every = 0
    config.log.tensorboard = False
    return config
"""
ENVIRONMENT = {"device": "cpu", "threads": 1, "lane_mode": "", "source": "", "versions": {}}
HOW = {"merge": "mean", "align": False, "alpha": 0.05, "lr": None}


def script(*argv: str, name: str = "convert.py") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(ROOT / "scripts" / name), *argv],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_a_run_trains_on_with_fewer_kv_heads(tmp_path):
    (tmp_path / "source.py").write_text(CONFIG)
    sweep = expand(load(str(tmp_path / "source.py")))
    root = tmp_path / "results" / "source"
    root.mkdir(parents=True)
    (source,) = launch.place(sweep.runs, root).values()
    (root / "sweep.json").write_text("the plan of the sweep")
    run_group([source], lambda event: None, ENVIRONMENT)
    before = {path: path.read_bytes() for path in source.rglob("*") if path.is_file()}

    done = script(str(source), "--n_kv_heads=2", "--alpha=0.25", "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    run = load_run(told["run"])
    assert run.run.source == load_run(source).run and run.directory.parent == root
    assert told["variant"] == ["MHA", "GQA-2"] and told["n_steps"] == [40, 10]
    assert told["kv_bytes_per_token"] == [128, 64]
    assert told["validation"]["converted"] == run.summary["initial"]
    assert told["test"]["uptrained"] == run.summary["final"]["test/accuracy"]
    assert told["test"]["source"] == load_run(source).summary["final"]["test/accuracy"]
    assert run.step() == 10 and run.run.static.optim.warmup_steps == 5
    assert "GQA-2, mean of MHA, 40 + 10 steps" in (root / "frontier.csv").read_text()
    # What the user made is as it was.
    assert {p: p.read_bytes() for p in source.rglob("*") if p.is_file()} == before
    assert (root / "sweep.json").read_text() == "the plan of the sweep"

    again = script(str(source), "--n_kv_heads=2", "--alpha=0.25")
    assert again.returncode == 0 and "were finished before and are kept" in again.stderr
    assert "MHA to GQA-2, 128 to 64 KV bytes/token" in again.stdout

    chain = script(told["run"], "--n_kv_heads=1", "--merge=first", "--alpha=0.5", "--lr=0.001")
    assert chain.returncode == 0, chain.stderr
    rows = [
        line for line in (root / "runs.csv").read_text().splitlines() if "first of GQA-2" in line
    ]
    assert len(rows) == 1 and "trained on for 5 of 10 steps" in chain.stdout


def test_the_plan(tmp_path):
    run = store.read_run(
        make_run(tmp_path, static(n_heads=8, n_layers=2, n_steps=1000), 0.5, seed=3)
    )
    planned = convert.plan(run, [4, 2], **{**HOW, "lr": 1e-4, "merge": "similar"})
    made = planned.run
    assert [layer.n_kv_heads for layer in made.static.model.layers] == [4, 2]
    assert made.static.train.n_steps == 50 and made.static.optim.warmup_steps == 10
    assert made.hypers.lr == 1e-4 and made.source == run.run and made.hypers.seed == 3
    assert planned.about["overrides"]["model.n_kv_heads"] == "4,2"
    assert convert.plan(run, [1], **HOW).run.hypers.lr == run.run.hypers.lr
    assert convert.plan(run, [1], **{**HOW, "alpha": 1e-9}).run.static.train.n_steps == 1


@pytest.mark.parametrize(
    ("n_kv_heads", "how", "spec", "says"),
    [
        ([3], {}, {}, "--n_kv_heads=3 must divide that; choose a divisor"),
        ([8], {}, {}, "layer 0 has 4 kv heads, and --n_kv_heads=8 must divide that"),
        ([4], {}, {}, "has MHA already"),
        ([2, 2], {}, {}, "2 entries, the model 1 layers"),
        ([2], {"merge": "random", "align": True}, {}, "--align must be False"),
        ([2], {}, {"model": {"share": "qk"}}, "share='qk' makes both of one matrix"),
        ([2], {"align": True}, {"model": {"share": "kv"}}, "neither keys nor values can turn"),
        ([2], {"merge": "similar"}, {"model": {"use_wo": False}}, "needs model.use_wo=True"),
    ],
)
def test_what_cannot_be_converted_is_told(tmp_path, n_kv_heads, how, spec, says):
    run = store.read_run(make_run(tmp_path, static(**spec), 0.5))
    with pytest.raises(ValueError, match=says):
        convert.plan(run, n_kv_heads, **{**HOW, **how})


def test_a_run_that_is_not_over_is_refused(tmp_path):
    run = store.read_run(make_run(tmp_path, static(), status="unfinished"))
    with pytest.raises(ValueError, match="is unfinished; let it come to its end"):
        convert.plan(run, [1], **HOW)


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        ((), "takes one run"),
        (("a", "b", "--n_kv_heads=1"), "takes one run"),
        (("a",), "--n_kv_heads is missing"),
        (("a", "--n_kv_heads=0"), "--n_kv_heads=0 must be"),
        (("a", "--n_kv_heads=2,x"), "--n_kv_heads=2,x must be"),
        (("a", "--n_kv_heads=2", "--merge=mode"), "--merge=mode must be one of mean, first"),
        (("a", "--n_kv_heads=2", "--alpha=nan"), "--alpha=nan must be a number above 0"),
        (("a", "--n_kv_heads=2", "--lr=0"), "--lr=0 must be"),
        (("a", "--n_kv_heads=2"), "not a run directory"),
        (("a", "--kv=2"), "--kv is no flag"),
    ],
)
def test_bad_input_is_one_line(tmp_path, argv, says):
    spec = spec_from_file_location("convert_script", ROOT / "scripts" / "convert.py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    errors = io.StringIO()
    with contextlib.redirect_stderr(errors):
        assert module.main(list(argv)) == 2
    assert errors.getvalue().count("\n") == 1 and says in errors.getvalue()


@pytest.mark.parametrize("name", ["convert.py", "compare.py", "report.py", "heads.py"])
def test_help_and_an_unknown_flag(name):
    assert script("--help", name=name).stdout.count("usage: python scripts/" + name) == 1
    done = script("--jsom", name=name)
    assert (
        done.returncode == 2 and "is no flag" in done.stderr and len(done.stderr.splitlines()) == 1
    )


def test_flags():
    words, flags = read(["a", "--at=3", "--json"], 1, "one", valued=["--at"], switches=["--json"])
    assert words == ["a"] and flags == {"--at": "3", "--json": ""}
    for argv, says in (
        (["--at"], "has no value"),
        (["--json=1"], "takes no value"),
        (["--json", "--json"], "given twice"),
        (["--jsno"], "did you mean --json"),
        (["a", "b"], "takes one; got a b"),
    ):
        with pytest.raises(ValueError, match=says):
            read(argv, 1, "one", valued=["--at"], switches=["--json"])
    assert checkpoint("7") == 7 and checkpoint("best") == "best"
    with pytest.raises(ValueError, match="last, best or a step"):
        checkpoint("-1")

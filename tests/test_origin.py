"""Runs that start from other ones: how they are planned, and what they begin with."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from saved import program_and_state
from synthetic import make_run, static

from mha_jax import config, launch, loss, rng, stages, start, store, train
from mha_jax import plan as plan_of
from mha_jax.analysis import conversion
from mha_jax.load import load
from mha_jax.report import cells, tables
from mha_jax.run import load_run
from mha_jax.runner import run_group
from mha_jax.sweep import expand

CONFIG = """
from configs import base

def get_config(arg=None):
    config = base.get_config()
    config.experiment = "started"
    config.model.d_model = 16
    config.model.n_heads = 4
    config.model.d_head = 4
    config.train.n_steps = 10
    config.train.batch_size = 8
    config.train.eval_every = 10
    config.train.n_eval = config.train.n_test = config.train.n_probe = 16
    config.optim.warmup_steps = 5
    config.probe.every = 0
    config.log.tensorboard = False
{body}
    return config

def sweep(add):
{sweep}
"""
ENVIRONMENT = {
    "device": "cpu",
    "threads": 1,
    "lane_mode": "sequential",
    "source": "",
    "versions": {},
}
FROM = '"start.source": "{}"'


def plan(tmp_path: Path, *runs: str, body: str = "") -> Any:
    path = tmp_path / "started.py"
    adds = "\n".join(f"    add({{{one}}})" for one in runs)
    path.write_text(CONFIG.format(body=body, sweep=adds))
    return expand(load(str(path)))


MERGED = '"model.n_kv_heads": 2, ' + FROM.format("n_kv_heads=4,n_steps=20")
PRUNED = '"model.n_heads": 2, ' + FROM.format("n_heads=4,n_steps=20")


def test_the_source_is_planned_once_with_the_seeds_of_the_run(tmp_path):
    sweep = plan(
        tmp_path, MERGED + ', "train.seed": 3', MERGED + ', "start.merge": "first", "train.seed": 3'
    )
    assert not sweep.problems
    mean, first, source = sweep.runs
    assert mean.run.source == first.run.source == source.run
    assert source.run.hypers == mean.run.hypers and source.run.hypers.seed == 3
    assert source.run.static.train.n_steps == 20 and source.run.static.start is None
    assert source.about["variant"] == "MHA" and mean.about["variant"] == "GQA-2"
    assert source.about["kv_bytes_per_token"] == 2 * mean.about["kv_bytes_per_token"]
    assert len({one.label for one in sweep.runs}) == 3
    assert not [one for one in sweep.runs if "source=," in one.label]


def test_a_source_that_the_sweep_has_is_not_planned_again(tmp_path):
    own = '"model.n_kv_heads": 4, "train.n_steps": 20'
    for runs in ((own, MERGED), (MERGED, own)):
        sweep = plan(tmp_path, *runs)
        assert len(sweep.runs) == 2 and not sweep.problems
        (started,) = [one.run for one in sweep.runs if one.run.source]
        assert started.source in [one.run for one in sweep.runs]


def test_what_a_start_does_not_do_is_no_part_of_the_run(tmp_path):
    continued = FROM.format("n_steps=20")
    sweep = plan(
        tmp_path, continued, continued + ', "start.merge": "first", "start.keep": "random"'
    )
    assert len(sweep.runs) == 2 and len(sweep.dropped) == 1
    spec = sweep.runs[0].run.static.start
    assert (spec.merge, spec.align, spec.keep) == ("", False, "")


def test_config_json_describes_a_run_with_its_source(tmp_path):
    run = plan(tmp_path, MERGED).runs[0].run
    told = {"schema_version": config.SCHEMA_VERSION, "static": config.to_json(run.static)}
    told = json.loads(json.dumps({**told, "hypers": config.to_json(run.hypers)}))
    assert config.run_from_json(told) == run
    assert run.static.steps_before == 20 and run.static.n_sequences == 30 * 8
    drawn = config.Run(dataclasses.replace(run.static, start=None), run.hypers)
    assert drawn.hash != run.hash and drawn.static.n_sources == 0 and run.static.n_sources == 1


@pytest.mark.parametrize(
    ("run", "key", "says"),
    [
        ('"start.merge": "first"', "start.merge", "no effect without start.source"),
        ('"model.kv_tail": 64', "model.kv_tail", "no effect without model.kv_quant"),
        (FROM.format("n_head=8"), "start.source", "did you mean n_heads"),
        (FROM.format("seed=1"), "start.source", "the same seeds"),
        (FROM.format("8 heads"), "start.source", "name=value"),
        (FROM.format("n_heads=0"), "start.source", "names a run that is refused"),
        (FROM.format("n_layers=2"), "start.source", "2 layers, and must have 1"),
        (FROM.format("norm=layer"), "start.source", "model.norm='layer', and it must be 'none'"),
        (FROM.format("d_head=8"), "start.source", "set model.d_head=8"),
        (FROM.format("n_kv_heads=2"), "start.source", "must be at least the 4 here"),
        (
            '"model.n_heads": 6, "model.n_kv_heads": 2, ' + FROM.format("n_kv_heads=3"),
            "start.source",
            "must divide 3",
        ),
        (
            '"model.n_heads": 2, "model.n_kv_heads": 1, ' + FROM.format("n_heads=4,n_kv_heads=4"),
            "start.source",
            "one run can do one of the two",
        ),
        (PRUNED + ', "model.d_model": 8, "model.use_wo": False', "start.keep", "use_wo=True"),
        (MERGED + ', "start.merge": "random", "start.align": True', "start.align", "no kv head"),
        (MERGED + ', "model.share": "kv", "start.align": True', "start.align", "share="),
        (
            MERGED + ', "match.policy": "d_model", "match.to": "n_heads=4"',
            "start.source",
            "match.policy",
        ),
        ('"start.keep": "best"', "start.keep", "zero"),
    ],
)
def test_is_refused(tmp_path, run, key, says):
    problems = [str(problem) for problem in plan(tmp_path, run).problems]
    assert [line for line in problems if key in line and says in line], problems


def test_tuned_runs_have_sources_in_every_stage(tmp_path):
    body = '    config.tune.lrs = "1e-3,2e-3,4e-3"\n    config.tune.n_reported = 3'
    sweep = plan(tmp_path, MERGED, body=body)
    assert not sweep.problems
    chosen = [one for one in sweep.runs if one.run.source]
    sources = [one for one in sweep.runs if not one.run.source]
    assert len(chosen) == 6 and len(sources) == 2  # two seeds choose; a source has one rate
    assert {one.run.hypers.lr for one in sources} == {3e-3}
    assert {one.about["purpose"] for one in sources} == {"selection source"}
    root = tmp_path / "out" / "started"
    for one in sweep.runs:
        make_run(
            root, one.run.static, 0.5 - abs(one.run.hypers.lr - 2e-3), seed=one.run.hypers.seed,
            lr=one.run.hypers.lr, weight_decay=0.0, about={**one.about},
        )  # fmt: skip
    more = stages.followups(sweep.runs, store.read_sweep(root)[0])
    reported = [one for one in more if one.run.source]
    assert {one.run.hypers.lr for one in reported} == {2e-3} and len(reported) == 3
    assert [one.run.source for one in reported] == [one.run for one in more if not one.run.source]
    # The dry run counts them too.
    assert plan_of._later(sweep) == {"reported": 3, "sources": 3, "twins": 0}


def test_a_source_is_no_rate_of_a_cell_that_has_a_grid(tmp_path):
    body = '    config.tune.lrs = "1e-3,2e-3"\n    config.tune.n_selection = 1'
    source = MERGED.replace("n_steps=20", "n_steps=10,lr=5e-3")
    sweep = plan(tmp_path, source, "", body=body)
    assert not sweep.problems
    root = tmp_path / "out" / "started"
    for one in sweep.runs:
        hypers = one.run.hypers
        make_run(root, one.run.static, 0.9, seed=hypers.seed, lr=hypers.lr, about=one.about)
    gathered = {c.variant: c for c in cells.gather(store.read_sweep(root)[0])}
    assert gathered["MHA"].cell.choice.grid == (1e-3, 2e-3)
    assert {run.about["purpose"] for run in gathered["MHA"].runs} == {"selection"}
    more = stages.followups(sweep.runs, store.read_sweep(root)[0])
    assert {one.about["purpose"] for one in more} == {"sweep", "source"}


def test_runs_at_several_rates_start_from_one_source(tmp_path):
    rates = [f'{MERGED}, "optim.lr": {lr}' for lr in (1e-3, 2e-3)]
    sweep = plan(tmp_path, *rates)
    assert len(sweep.runs) == 3 and len({one.run.group_hash for one in sweep.runs}) == 2
    assert sweep.runs[0].run.source == sweep.runs[1].run.source == sweep.runs[2].run
    assert sweep.runs[2].run.hypers.lr == 3e-3
    own = plan(tmp_path, rates[0].replace("n_steps=20", "n_steps=20,lr=5e-3"))
    assert own.runs[0].run.source.hypers.lr == 5e-3


def test_cells_that_differ_in_their_source_alone_have_names_of_their_own(tmp_path):
    other = MERGED.replace("n_steps=20", "n_steps=20,lr=5e-3")
    sweep = plan(tmp_path, MERGED, other)
    for one in sweep.runs:
        lr = one.run.hypers.lr
        make_run(tmp_path / "out", one.run.static, 0.9, lr=lr, about=one.about)
    labels = [c.label for c in cells.gather(store.read_sweep(tmp_path / "out")[0])]
    assert len(set(labels)) == 3 and sum("start.lr" in label for label in labels) == 2


def test_a_run_whose_source_diverged_has_diverged(tmp_path):
    sweep = plan(tmp_path, FROM.format("n_steps=20"))
    root = tmp_path / "out" / "started"
    started, source = sweep.runs
    make_run(root, source.run.static, status="diverged", about=source.about)
    directory = launch.place(sweep.runs, root)[started.run.hash]
    run_group([directory], lambda event: None, ENVIRONMENT)
    told = json.loads((directory / "summary.json").read_text())
    assert told["status"] == "diverged" and told["diverged_at"] == 0 and told["error"] is None


def test_a_run_that_serves_two_is_what_matters_more(tmp_path):
    root = tmp_path / "out"
    (one,) = plan(tmp_path, "").runs
    for purposes, kept in (
        (("source", "sweep"), "sweep"),
        (("sweep", "source"), "sweep"),
        (("selection", "selection source"), "selection"),
        (("twin", "source"), "source"),
        (("source", "twin"), "source"),
    ):
        shutil.rmtree(root, ignore_errors=True)
        root.mkdir()
        for purpose in purposes:
            told = dataclasses.replace(one, about={**one.about, "purpose": purpose})
            (directory,) = launch.place([told], root).values()
        stored = json.loads((directory / "config.json").read_text())
        assert stored["about"]["purpose"] == kept


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> tuple[Any, dict[str, Path]]:
    """A source and runs that start from it in every way; of these three are trained."""
    tmp_path = tmp_path_factory.mktemp("started")
    merged = [f'{MERGED}, "start.merge": "{m}"' for m in ("mean", "first", "random", "similar")]
    pruned = [f'{PRUNED}, "start.keep": "{k}"' for k in ("zero", "gradient", "random")]
    aligned = MERGED + ', "start.align": True'
    sweep = plan(tmp_path, FROM.format("n_steps=20"), *merged, aligned, *pruned)
    assert not sweep.problems
    root = tmp_path / "out" / "started"
    root.mkdir(parents=True)
    directories = launch.place(sweep.runs, root)
    for one in sorted(sweep.runs, key=lambda one: one.run.static.n_sources):
        spec = one.run.static.start
        if not spec or (spec.merge, spec.keep) in (("", ""), ("mean", ""), ("", "zero")):
            run_group([directories[one.run.hash]], lambda event: None, ENVIRONMENT)
    return sweep, directories


def started(trained: Any, merge: str = "", keep: str = "", align: bool = False) -> Any:
    """A run that starts so, and its source."""
    sweep, directories = trained
    for one in sweep.runs:
        spec = one.run.static.start
        if spec and (spec.merge, spec.keep, spec.align) == (merge, keep, align):
            return load_run(directories[one.run.hash]), load_run(directories[one.run.source.hash])
    raise AssertionError("not planned")


def begun(run: Any) -> tuple[Any, dict[str, Any]]:
    """The parameters it begins with, and what is told of them."""
    params = start.begin(run.run, run.directory)
    return params, json.loads((run.directory / "start.json").read_text())


def first_loss(run: Any) -> float:
    """The validation loss before the first step."""
    rows = [json.loads(line) for line in (run.directory / "metrics.jsonl").read_text().splitlines()]
    (row,) = [row for row in rows if row["step"] == 0 and "eval/accuracy" in row]
    assert run.summary["initial"] == row["eval/accuracy"]
    return row["eval/loss"]


def loss_of(run: Any, params: Any, **changes: Any) -> float:
    """The loss on the validation draw, of parameters of the run's own shapes."""
    program = train.Program.of(run.run.static)
    key = jax.random.fold_in(rng.stream(0, "validation"), 0)
    batch = program.sample(key, {}, 16)
    outputs, _ = program.model.apply(params, batch.inputs, **changes)
    return float(loss.mean_loss(loss.sums(outputs, batch, program.spec)))


def same(a: Any, b: Any) -> bool:
    return jax.tree.structure(a) == jax.tree.structure(b) and jax.tree.all(
        jax.tree.map(np.array_equal, a, b)
    )


def test_a_continued_run_begins_where_its_source_ended(trained):
    run, source = started(trained)
    assert source.summary["final"]["eval/loss"] == first_loss(run)
    assert run.summary["final"]["eval/loss"] != first_loss(run)


def test_training_begins_with_these_parameters(trained):
    for how in ({"merge": "mean"}, {"keep": "zero"}):
        run, _ = started(trained, **how)
        # float32 sums of 16 sequences, in another program
        assert first_loss(run) == pytest.approx(loss_of(run, begun(run)[0]), rel=1e-5)


@pytest.mark.parametrize("merge", ["mean", "first"])
def test_a_merged_run_begins_with_the_converted_model(trained, merge):
    run, source = started(trained, merge)
    made = conversion.convert(source.params(), source.run.static.model, 2, merge)
    params, told = begun(run)
    assert same(params, made.params) and told["source"] == source.directory.name


def test_a_random_merge_is_a_draw_of_the_run_and_not_of_its_source(trained):
    run, source = started(trained, "random")
    drawn = begun(run)[0]["layers"]["0"]["mixer"]["wk"]
    others = [
        program_and_state(run.run.static, seed)[1].params for seed in (0, run.run.hypers.seed)
    ]
    assert not any(np.array_equal(drawn, x["layers"]["0"]["mixer"]["wk"]) for x in others)
    assert same(drawn, begun(run)[0]["layers"]["0"]["mixer"]["wk"])
    wq = [x["layers"]["0"]["mixer"]["wq"] for x in (begun(run)[0], source.params())]
    assert np.array_equal(*wq)


@pytest.mark.parametrize(("merge", "align"), [("similar", False), ("mean", True)])
def test_alike_heads_are_found_from_activations(trained, merge, align):
    run, source = started(trained, merge, align=align)
    program, total = train.Program.of(source.run.static), None
    draw = rng.stream(0, "validation")
    for i in range(2):  # 16 sequences, in batches of 8
        batch = program.sample(jax.random.fold_in(draw, i), {}, 8)
        _, stops = source.apply(batch, want=["k", "v"])
        bskh = {f"{x}_bskh": jnp.asarray(stops[x][0]) for x in ("k", "v")}
        sums = conversion.head_sums(bskh, rope=False)
        total = sums if total is None else jax.tree.map(jnp.add, total, sums)
    model = source.run.static.model
    made = conversion.convert(source.params(), model, 2, merge, align=align, activations=[total])
    params, told = begun(run)
    assert told["groups"] == [made.groups[0]] and told["aligned"] == list(made.aligned)
    # rotations found from float32 sums that were added in another order
    assert loss_of(run, params) == pytest.approx(loss_of(run, made.params), rel=1e-4)


@pytest.mark.parametrize("keep", ["zero", "gradient", "random"])
def test_a_pruned_run_begins_as_the_masked_source(trained, keep):
    run, source = started(trained, keep=keep)
    params, told = begun(run)
    (kept,) = told["kept"]
    mask = jnp.asarray(np.isin(np.arange(4), kept), jnp.float32)
    masked = loss_of(source, source.params(), head_mask=[mask])
    # float32 sums over two heads in place of four
    assert len(kept) == 2 and loss_of(run, params) == pytest.approx(masked, rel=1e-5)


def test_the_heads_that_stay_are_those_whose_loss_costs_most(trained):
    run, source = started(trained, keep="zero")
    program, params = train.Program.of(source.run.static), source.params()
    rises = np.zeros(4)
    draw = rng.stream(0, "validation")
    for i in range(2):  # 16 sequences, in batches of 8
        batch = program.sample(jax.random.fold_in(draw, i), {}, 8)
        for head in range(4):
            mask = jnp.asarray(np.arange(4) != head, jnp.float32)
            outputs, _ = program.model.apply(params, batch.inputs, head_mask=[mask])
            rises[head] += float(loss.of_sequences(outputs, batch, program.spec).sum())
    assert begun(run)[1]["kept"] == [sorted(np.argsort(rises)[2:].tolist())]


def test_it_goes_on_in_the_stream_of_batches():
    source = static("relations", n_steps=7)
    spec = config.StartSpec(source, 1e-3, 0.0, "", False, "")
    program, state = program_and_state(source, 1)
    after = train.Program.of(dataclasses.replace(source, start=spec))
    hypers = train.HyperArrays(jnp.uint32(1), jnp.uint32(2), jnp.float32(1e-3), jnp.float32(0))
    _, seventh = train.train_step(program, state._replace(step=jnp.int32(7)), hypers, {})
    _, first = train.train_step(after, state, hypers, {})
    assert first["loss"] == seventh["loss"]


def test_a_source_that_is_not_there_or_not_over_is_told(trained, tmp_path):
    run, source = started(trained)
    alone = tmp_path / run.directory.name
    shutil.copytree(run.directory, alone)
    with pytest.raises(ValueError, match=f"{source.run.hash}, is not beside it"):
        start.begin(run.run, alone)
    unfinished = tmp_path / source.directory.name
    shutil.copytree(source.directory, unfinished)
    (unfinished / "summary.json").unlink()
    with pytest.raises(ValueError, match="is unfinished"):
        start.begin(run.run, alone)
    assert start.begin(run.run, run.directory)


def test_a_run_whose_source_failed_says_so(trained, tmp_path):
    run, _ = started(trained)
    alone = tmp_path / run.directory.name
    alone.mkdir()
    shutil.copy(run.directory / "config.json", alone)
    events: list[dict[str, Any]] = []
    run_group([alone], events.append, ENVIRONMENT)
    assert "starts from" in json.loads((alone / "summary.json").read_text())["error"]
    assert [event["event"] for event in events][-1] == "failed"


def test_once_begun_it_needs_no_source(trained, tmp_path):
    run, _ = started(trained, "mean")
    alone = tmp_path / run.directory.name
    shutil.copytree(run.directory, alone)
    (alone / "summary.json").unlink()
    run_group([alone], lambda event: None, ENVIRONMENT)
    again = json.loads((alone / "summary.json").read_text())
    assert again["final"] == run.summary["final"]


def test_whole_groups_are_judged_as_one():
    old, new = (
        static(n_heads=n, n_kv_heads=k, d_head=8).model.layers[0] for n, k in ((4, 2), (2, 1))
    )
    of_heads, of_groups = np.array([9.0, 9.0, 1.0, 1.0]), np.array([0.0, 5.0])
    assert start._kept_of_layer(of_heads, of_groups, old, new) == [2, 3]
    per_group = dataclasses.replace(old, n_heads=2)
    assert start._kept_of_layer(np.array([1.0, 9.0, 3.0, 2.0]), of_groups, old, per_group) == [1, 2]


def test_tables_tell_where_a_run_began(trained):
    sweep, directories = trained
    root = next(iter(directories.values())).parent
    gathered = cells.gather(store.read_sweep(root)[0])
    rows = {row["start"]: row for row in tables.frontier_rows(gathered)}
    assert {"", "continued", "mean of MHA", "aligned mean of MHA", "2 of 4 heads by zero"} <= {
        *rows
    }
    assert rows["mean of MHA"]["steps_before"] == 20 and rows[""]["steps_before"] == 0
    assert rows["mean of MHA"]["cell_label"] == "4 heads, GQA-2, mean of MHA, 20 + 10 steps"
    assert rows[""]["initial_mean"] is not None
    assert rows["continued"]["initial_mean"] == pytest.approx(rows[""]["validation_mean"])
    assert rows["continued"]["start_lr"] == 3e-3 and rows[""]["start_lr"] is None


def test_one_layer_may_be_pruned_and_another_merged(trained, tmp_path):
    del trained
    spec = '"model.n_layers": 2, "model.n_heads": "4,2", "model.n_kv_heads": "2,2", '
    spec += '"start.source": "n_heads=4,n_kv_heads=4,n_steps=20", "start.merge": "similar"'
    started, source = plan(tmp_path, spec, body="    config.model.residual = True").runs
    root = tmp_path / "out" / "started"
    root.mkdir(parents=True)
    directories = launch.place([started, source], root)
    run_group([directories[source.run.hash]], lambda event: None, ENVIRONMENT)
    params = start.begin(started.run, directories[started.run.hash])
    _, fresh = program_and_state(started.run.static, 0)
    shapes = jax.tree.map(jnp.shape, (params, fresh.params))
    assert shapes[0] == shapes[1]

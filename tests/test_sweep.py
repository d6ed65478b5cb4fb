"""Planning: members, labels, drops, equal parameters, the dry run."""

import itertools
import json
import re
from pathlib import Path
from typing import Any

import pytest
from cases import config_of, run_of, write_config

from mha_jax import cost, labels, load, match, plan, schema
from mha_jax.planned import groups
from mha_jax.sweep import Sweep, expand

HEADS = """
for n in (2, 4, 8):
    for k in (1, 2):
        for seed in range(2):
            add({'model.n_heads': n, 'model.n_kv_heads': k, 'train.seed': seed})
"""


def swept(
    folder: Path, sweep: str = "", body: str = "", *overrides: str, arg: str | None = None
) -> Sweep:
    """The sweep of a config file that must have no problem."""
    path = write_config(folder / "mine.py", body, sweep)
    found = expand(load.load(str(path), arg, overrides))
    assert not found.problems, [str(problem) for problem in found.problems]
    return found


def test_a_file_without_a_sweep_is_a_sweep_of_one(tmp_path: Path) -> None:
    (planned,) = swept(tmp_path).runs
    assert planned.run == run_of() and planned.label == "relations" and planned.overrides == {}


def test_members_are_runs_with_labels_of_what_varies(tmp_path: Path) -> None:
    sweep = swept(tmp_path, HEADS, "c.optim.lr = 0.01")
    assert sweep.experiment == "mine" and len(sweep.runs) == 12
    assert sweep.runs[5].label == "n_heads=4,n_kv_heads=1,seed=1"
    assert sweep.runs[5].overrides == {
        "model.n_heads": 4,
        "model.n_kv_heads": 1,
        "train.seed": 1,
    }
    assert sweep.runs[5].run == run_of(
        {"optim.lr": 0.01, "model.n_heads": 4, "model.n_kv_heads": 1, "train.seed": 1}
    )
    found = groups(sweep.runs)
    assert [len(members) for members in found.values()] == [2] * 6
    for group_hash, members in found.items():
        assert {planned.run.group_hash for planned in members} == {group_hash}
        assert len({planned.run.static for planned in members}) == 1


def test_more_seeds_leave_the_runs_that_were_there(tmp_path: Path) -> None:
    def hashes(n: int) -> set[str]:
        sweep = swept(tmp_path, f"for s in range({n}):\n    add({{'train.seed': s}})")
        return {planned.run.hash for planned in sweep.runs}

    assert hashes(1) < hashes(5) and len(hashes(5)) == 5


def test_labels_are_safe_short_and_unambiguous() -> None:
    rows: list[dict[str, Any]] = [
        {"train.seed": 0, "task.seed": 1, "model.d_ff": "4,8", "optim.lr": 1e-05, "x.same": 1},
        {"train.seed": 1, "task.seed": 2, "model.d_ff": 4, "optim.lr": 0.003, "x.same": 1},
        {"train.seed": 1, "model.bias": True, "task.text.path": "../a b/é", "x.same": 1},
        {"train.seed": 1, "model.bias": None, "task.text.path": "z" * 200, "x.same": 1},
    ]
    made = labels.labels(rows)
    assert made[0] == "train.seed=0,task.seed=1,d_ff=4-8,lr=1e-05"
    assert made[1] == "train.seed=1,task.seed=2,d_ff=4,lr=0.003"
    assert made[2] == "train.seed=1,bias=true,path=..-a-b"
    assert made[3].startswith("train.seed=1,bias=none,path=zzz") and len(made[3]) == 80
    assert all(re.fullmatch(r"[A-Za-z0-9._=,-]*", label) for label in made)
    assert labels.labels([{}]) == [""] and labels.labels([]) == []


def test_labels_say_nothing_twice() -> None:
    rows = [
        {"task.name": task, "train.seed": seed, "train.data_seed": seed, "model.d_ff": d_ff}
        for task, d_ff in (("relations", 0), ("text", 256))
        for seed in (3, 4)
    ]
    assert labels.labels(rows) == [
        "relations,seed=3",
        "relations,seed=4",
        "text,seed=3",
        "text,seed=4",
    ]


def test_a_task_section_is_named_for_its_own_runs_only(tmp_path: Path) -> None:
    sweep = swept(
        tmp_path,
        "add({'task.name': 'relations'})\nfor n in (16, 32):\n"
        "    add({'task.name': 'taps', 'task.taps.length': n})",
    )
    assert [planned.label for planned in sweep.runs] == [
        "relations",
        "taps,length=16",
        "taps,length=32",
    ]


def test_equal_runs_are_one_and_drops_are_listed(tmp_path: Path) -> None:
    sweep = swept(
        tmp_path,
        "for n in (2, 4):\n    add({'model.n_heads': n})\n"
        "add({'model.n_heads': 4, 'model.n_kv_heads': 4})\n"
        "add.drop({'model.n_heads': 3, 'optim.lr': float('nan')}, ' 3 does not divide 64 ')\n"
        "add({'model.n_heads': 2, 'log.every': 7})",
    )
    assert [planned.label for planned in sweep.runs] == ["n_heads=2", "n_heads=4"]
    assert sweep.dropped == [
        ({"model.n_heads": 3, "optim.lr": "nan"}, "3 does not divide 64"),
        ({"model.n_heads": 4, "model.n_kv_heads": 4}, "the same run as n_heads=4"),
        ({"model.n_heads": 2, "log.every": 7}, "the same run as n_heads=2"),
    ]
    json.dumps(sweep.to_json(), allow_nan=False)


def test_the_argument_reaches_the_sweep(tmp_path: Path) -> None:
    for parameters in ("add, arg", "add, arg=None", "add, *rest"):
        path = write_config(tmp_path / "mine.py")
        name = "rest[0]" if "*" in parameters else "arg"
        path.write_text(
            path.read_text() + f"\n\ndef sweep({parameters}):\n"
            f"    for s in range(3 if {name} == 'full' else 1):\n        add({{'train.seed': s}})\n"
        )
        assert len(expand(load.load(str(path), "full")).runs) == 3
        assert len(expand(load.load(str(path))).runs) == 1


def test_flags_reach_every_run_and_the_sweep_goes_over_them(tmp_path: Path) -> None:
    sweep = swept(
        tmp_path,
        "add({})\nadd({'optim.lr': 0.1})",
        "",
        "optim.lr=0.5",
        "train.n_steps=500",
    )
    assert [planned.run.hypers.lr for planned in sweep.runs] == [0.5, 0.1]
    assert {planned.run.static.train.n_steps for planned in sweep.runs} == {500}
    assert [planned.overrides for planned in sweep.runs] == [{}, {"optim.lr": 0.1}]
    assert sweep.to_json()["overrides"] == {"optim.lr": 0.5, "train.n_steps": 500}


def test_a_flag_for_one_of_several_tasks_is_fine(tmp_path: Path) -> None:
    sweep = swept(
        tmp_path,
        "for name in ('taps', 'copy'):\n    add({'task.name': name})",
        "",
        "task.taps.length=20",
    )
    assert dict(sweep.runs[0].run.static.task.params)["length"] == 20
    assert dict(sweep.runs[1].run.static.task.params)["length"] == 12


def test_members_do_not_change_each_other_or_the_base(tmp_path: Path) -> None:
    body = (
        "o = {}\nfor n in (2, 4):\n    o['model.n_heads'] = n\n    add(o)\nadd({'train.seed': 1})"
    )
    sweep = swept(tmp_path, body)
    assert [p.run.static.model.layers[0].n_heads for p in sweep.runs] == [2, 4, 4]
    assert [p.overrides for p in sweep.runs][:2] == [{"model.n_heads": 2}, {"model.n_heads": 4}]


def test_numbers_of_numpy_become_plain(tmp_path: Path) -> None:
    sweep = swept(
        tmp_path,
        "import numpy as np\nfor n in np.array([2, 4]):\n"
        "    add({'model.n_heads': n, 'optim.lr': np.float64(0.1), 'log.every': np.int32(5)})",
    )
    for planned in sweep.runs:
        json.dumps([planned.overrides, planned.about])
    assert sweep.runs[0].label == "n_heads=2" and sweep.runs[0].about["log"]["every"] == 5


def test_what_tables_are_told(tmp_path: Path) -> None:
    body = "c.model.n_heads = 8\nc.model.n_kv_heads = 2\nc.log.keep = 7"
    (planned,) = swept(tmp_path, "add({'train.seed': 3})", body).runs
    static = planned.run.static
    assert planned.about == {
        "experiment": "mine",
        "task": "relations",
        "variant": "GQA-2",
        "match": "none",
        "match_to": "",
        "params_ratio": None,
        "n_params": cost.n_params(static),
        "kv_bytes_per_token": 2 * 2 * 8 * 4,
        "kv_bytes_resident": 2 * 2 * 8 * 4 * static.task.spec.length,
        "kv_bytes_read_per_step": 2 * 2 * 8 * 4 * static.task.spec.length,
        "state_bytes": 0,
        "flops_per_token": cost.flops_per_token(static),
        "log": {
            "every": 100,
            "checkpoint_every": 1000,
            "keep": 7,
            "tensorboard": True,
            "n_images": 5,
        },
        "probe": {"every": 100},
        "overrides": {"train.seed": 3},
        "purpose": "sweep",
        "tune": None,
        "source": {},
        "converge": {"confirm": False, "tol": 0.01},
    }


def test_the_record_of_a_sweep(tmp_path: Path) -> None:
    sweep = swept(tmp_path, HEADS)
    body = json.loads(json.dumps(sweep.to_json()))
    assert body["experiment"] == "mine" and body["arg"] is None and len(body["source_sha"]) == 64
    assert body["swept"] == {
        "model.n_heads": [2, 4, 8],
        "model.n_kv_heads": [1, 2],
        "train.seed": [0, 1],
    }
    assert [run["hash"] for run in body["runs"]] == [planned.run.hash for planned in sweep.runs]


# Equal parameters.

MLP = {"model.residual": True, "model.d_ff": 256, "model.n_heads": 8}


def matched(overrides: dict[str, Any]) -> tuple[Any, float]:
    config = config_of(overrides)
    run, problems = schema.resolve(config)
    assert run is not None, problems
    result = match.match(config, run)
    assert not result.problems, result.problems
    assert result.params_ratio is not None
    return result.run.static, result.params_ratio


@pytest.mark.parametrize("k", [1, 2, 4, 8])
def test_what_kv_heads_save_goes_to_the_mlp(k: int) -> None:
    """2 (n - k) h d a layer, over the 2 d of one unit of the MLP."""
    changed = {"model.n_kv_heads": k, "match.policy": "d_ff", "match.to": "n_kv_heads=8"}
    static, ratio = matched({**MLP, "model.n_layers": 2, **changed})
    h, d = 8, 64
    assert [layer.d_ff for layer in static.model.layers] == [
        256 + 2 * (8 - k) * h * d // (2 * d)
    ] * 2
    assert [layer.n_kv_heads for layer in static.model.layers] == [k, k]
    assert ratio == 1


def test_the_mlp_of_shazeer_2019_in_a_decoder_with_one_attention_a_layer() -> None:
    """There 18 attentions share 12 MLPs: 4096 + 1344. Here each MLP has one: 4096 + 896."""
    static, ratio = matched(
        {
            "model.d_model": 1024,
            "model.n_layers": 6,
            "model.n_heads": 8,
            "model.n_kv_heads": 1,
            "model.d_head": 128,
            "model.d_ff": 4096,
            "model.residual": True,
            "limits.memory_gib": 100,
            "match.policy": "d_ff",
            "match.to": "n_kv_heads=8",
        }
    )
    given_back = 2 * (8 - 1) * 128 * 1024 // (2 * 1024)
    assert given_back == 896 and 4096 + 18 * given_back // 12 == 5440
    assert {layer.d_ff for layer in static.model.layers} == {4096 + given_back} and ratio == 1


@pytest.mark.parametrize(
    ("n_heads", "n_kv_heads", "d_head", "d_ff"),
    [(8, 8, 128, 8192), (8, 1, 128, 9088)] + [(n, n, 128 // n, 9984) for n in (1, 2, 4, 8)],
)
def test_widths_of_shazeers_language_models(
    n_heads: int, n_kv_heads: int, d_head: int, d_ff: int
) -> None:
    """Shazeer 2019, table 3: 6 layers of width 1024, all with as many parameters as MHA, 8 heads of
    width 128 and an MLP of 8192.
    """
    static, ratio = matched(
        {
            **MLP,
            "model.d_model": 1024,
            "model.n_layers": 6,
            "model.n_heads": n_heads,
            "model.n_kv_heads": n_kv_heads,
            "model.d_head": d_head,
            "model.d_ff": 8192,
            "limits.memory_gib": 100,
            "match.policy": "d_ff",
            "match.to": "n_heads=8,n_kv_heads=8,d_head=128",
        }
    )
    assert {layer.d_ff for layer in static.model.layers} == {d_ff} and ratio == 1


def test_layers_without_an_mlp_get_none() -> None:
    changed = {"model.n_layers": 3, "model.d_ff": "256,0,128", "model.n_kv_heads": 2}
    static, ratio = matched({**MLP, **changed, "match.policy": "d_ff", "match.to": "n_kv_heads=8"})
    # Three layers save 2 * 6 * 8 * 64 each, two MLPs share it.
    assert [layer.d_ff for layer in static.model.layers] == [256 + 72, 0, 128 + 72] and ratio == 1


def test_a_width_that_does_not_fit_exactly_leaves_a_ratio() -> None:
    changed = {"model.activation": "swiglu", "model.n_kv_heads": 3, "model.n_heads": 6}
    sizes = {"model.d_model": 60, "match.policy": "d_ff", "match.to": "n_kv_heads=6"}
    static, ratio = matched({**MLP, **changed, **sizes})
    reference = run_of({**MLP, **changed, "model.d_model": 60, "model.n_kv_heads": 6}).static
    assert ratio == cost.n_params(static) / cost.n_params(reference)
    # 2 * 3 * 10 * 60 saved, 3 * 60 a unit: exactly 20. One unit more or less is further away.
    assert static.model.layers[0].d_ff == 276 and ratio == 1


@pytest.mark.parametrize("policy", ["d_ff", "d_model", "n_layers"])
def test_no_neighbour_is_nearer(policy: str) -> None:
    base = {**MLP, "model.n_layers": 2, "model.n_kv_heads": 2}
    key, step = f"model.{policy}", 8 if policy == "d_model" else 1
    for to in ("gate=true,bias=true", "n_layers=5", *(f"d_ff={f}" for f in range(200, 900, 37))):
        static, ratio = matched({**base, "match.policy": policy, "match.to": to})
        made, target = cost.n_params(static), cost.n_params(static) / ratio
        model = static.model
        layers = len(model.layers)
        here = {"d_ff": model.layers[0].d_ff, "d_model": model.d_model, "n_layers": layers}[policy]
        for other in (here - step, here + step):
            if other > 0:
                neighbour = cost.n_params(run_of({**base, key: other}).static)
                assert abs(neighbour - target) >= abs(made - target), to


@pytest.mark.parametrize(("positions", "step"), [("learned", 12), ("rope", 24)])
def test_d_model_stays_divisible_by_every_head_count(positions: str, step: int) -> None:
    base = {"model.n_layers": 2, "model.n_heads": "4,6", "model.d_model": 48, "model.d_ff": 64}
    reached = set()
    for f in range(64, 1000, 50):
        changed = {"model.positions": positions, "match.policy": "d_model", "match.to": f"d_ff={f}"}
        reached.add(matched({**base, **changed})[0].model.d_model)
    assert len(reached) > 3 and all(d % step == 0 for d in reached)


def test_a_reference_alone_tells_the_ratio_and_changes_nothing(tmp_path: Path) -> None:
    body = "c.model.n_kv_heads = 1\nc.match.to = 'n_kv_heads=4'"
    (planned,) = swept(tmp_path, "", body).runs
    assert planned.run == run_of({"model.n_kv_heads": 1})
    ratio = planned.about["params_ratio"]
    assert ratio == cost.n_params(planned.run.static) / cost.n_params(run_of().static) < 1
    assert planned.about["match"] == "none" and planned.about["match_to"] == "n_kv_heads=4"


def test_a_reference_may_differ_by_layer() -> None:
    base = {**MLP, "model.n_layers": 3, "model.n_kv_heads": 1}
    for to in ("n_kv_heads=8,4,2,gate=true", "gate=true, n_kv_heads=8,4,2"):
        _, ratio = matched({**base, "match.to": to})
        reference = run_of({**base, "model.n_kv_heads": "8,4,2", "model.gate": True}).static
        assert ratio == cost.n_params(run_of(base).static) / cost.n_params(reference)


def test_matched_runs_of_a_sweep(tmp_path: Path) -> None:
    sweep = swept(
        tmp_path,
        HEADS,
        "c.model.residual = True\nc.model.d_ff = 64\nc.match.policy = 'd_ff'\n"
        "c.match.to = 'n_heads=8,n_kv_heads=8'",
    )
    assert {planned.about["params_ratio"] for planned in sweep.runs} == {1.0}
    assert len({planned.about["n_params"] for planned in sweep.runs}) == 1


# The dry run.


def test_the_dry_run_shows_every_group_run_and_drop(tmp_path: Path) -> None:
    sweep = swept(tmp_path, HEADS + "add.drop({'model.n_heads': 16}, 'too many')")
    table, body = plan.dry_run_table(sweep), plan.dry_run_json(sweep)
    assert json.loads(json.dumps(body)) == body
    assert table.startswith("mine: 12 runs in 6 groups (") and table.isascii()
    assert "n_heads=16: too many" in table and "rough" in table
    assert body["dropped"] == [{"overrides": {"model.n_heads": 16}, "reason": "too many"}]
    assert (body["n_runs"], body["n_groups"]) == (12, 6)
    assert body["estimate"]["assumption"] in table
    by_hash = {planned.run.hash: planned for planned in sweep.runs}
    for group in body["groups"]:
        assert group["group_hash"] in table and f"{group['n_params']:,} parameters" in table
        assert f"{group['kv_bytes_per_token']:,} KV bytes/token" in table
        assert f"{group['flops_per_token']:,} FLOPs/token" in table
        for run in group["runs"]:
            planned = by_hash.pop(run["hash"])
            assert run["directory"] == f"{planned.label}-{planned.run.hash}"
            assert run["directory"] in table and run["overrides"] == planned.overrides
            assert run["hypers"]["seed"] == planned.run.hypers.seed
    assert not by_hash


def test_the_estimate_of_time_follows_the_work(tmp_path: Path) -> None:
    def seconds(overrides: dict[str, Any]) -> float:
        return plan.run_seconds(run_of(overrides).static)

    base = seconds({})
    # 3000 steps of 64 sequences: the evaluations are a small part.
    assert seconds({"train.n_steps": 30_000}) == pytest.approx(10 * base, rel=0.1)
    assert seconds({"train.batch_size": 640}) == pytest.approx(10 * base, rel=0.1)
    one, two = (
        plan.dry_run_json(swept(tmp_path, f"for s in range({n}):\n    add({{'train.seed': s}})"))
        for n in (1, 2)
    )
    more = two["estimate"]["core_seconds"] - one["estimate"]["core_seconds"]
    assert more == pytest.approx(base, abs=0.1)


def test_matching_is_shown_in_the_dry_run(tmp_path: Path) -> None:
    body = "c.model.n_kv_heads = 1\nc.match.to = 'n_kv_heads=4'"
    table = plan.dry_run_table(swept(tmp_path, "", body))
    assert re.search(r"\(0\.\d+ x n_kv_heads=4, match none\)", table)


def test_overrides_of_all_kinds_are_shown(tmp_path: Path) -> None:
    sweep = swept(tmp_path, "add({'model.n_heads': 2, 'optim.lr': 0.1, 'train.data_seed': 5})")
    table = plan.dry_run_table(sweep)
    assert "seed=0,data_seed=5,lr=0.1,weight_decay=0  n_heads=2" in table


def test_times_are_told_in_fitting_units() -> None:
    shown = [plan._time(s) for s in (0.4, 59, 119, 130, 7200, 10**6)]
    assert shown == ["0 s", "59 s", "119 s", "2.2 min", "2.0 h", "11.6 days"]


def test_loops_over_everything_with_what_does_not_fit_dropped(tmp_path: Path) -> None:
    sweep = swept(
        tmp_path,
        "for n in (1, 2, 4, 8):\n    for k in (1, 2, 4, 8):\n        for s in range(10):\n"
        "            if n % k:\n                add.drop({'model.n_heads': n}, 'k')\n"
        "                continue\n"
        "            add({'model.n_heads': n, 'model.n_kv_heads': k, 'train.seed': s})",
    )
    pairs = [(n, k) for n, k in itertools.product((1, 2, 4, 8), repeat=2) if n % k == 0]
    assert len(sweep.runs) == 10 * len(pairs) == 100 and len(sweep.dropped) == 60
    assert len({planned.run.hash for planned in sweep.runs}) == 100


MODELS = "for n in (2, 4, 8):\n    add({'model.n_heads': n})"


@pytest.mark.parametrize(
    ("body", "loops", "reported", "twins"),
    [
        ("", MODELS, 0, 0),
        ("c.tune.lrs = '1e-3,2e-3'\nc.tune.n_reported = 3\nc.tune.widen = 1", MODELS, 9, 0),
        (
            "c.tune.lrs = '1e-3,2e-3'\nc.tune.n_reported = 3\nc.converge.confirm = True",
            MODELS,
            9,
            9,
        ),
        # Three seeds at either rate of one model: at the better one they are doubled.
        (
            "c.converge.confirm = True",
            "for lr in (1e-3, 2e-3):\n    for s in range(3):\n"
            "        add({'optim.lr': lr, 'train.seed': s})",
            0,
            3,
        ),
    ],
)
def test_the_dry_run_tells_the_later_stages(
    tmp_path: Path, body: str, loops: str, reported: int, twins: int
) -> None:
    sweep = swept(tmp_path, loops, body)
    assert plan.dry_run_json(sweep)["later"] == {"reported": reported, "sources": 0, "twins": twins}
    lines = plan.dry_run_table(sweep).splitlines()
    assert (f"then {reported} runs at the learning rates that these choose" in lines) == bool(
        reported
    )
    assert (f"then up to {twins} runs with twice the steps" in lines) == bool(twins)
    wider = "  and up to 1 more rate of a model whose best one lies at a rising edge of its grid"
    assert (wider in lines) == ("widen" in body)
    once = plan.dry_run_json(swept(tmp_path, loops, ""))["estimate"]["core_seconds"]
    assert (plan.dry_run_json(sweep)["estimate"]["core_seconds"] > once) == bool(body)


@pytest.mark.parametrize("policies", ["('d_ff', 'none')", "('none', 'd_ff')"])
def test_a_model_that_no_policy_changes_is_known_as_unmatched(
    tmp_path: Path, policies: str
) -> None:
    """Whatever the order of the loops: so it is compared under every policy."""
    loops = (
        f"for p in {policies}:\n    for k in (8, 1):\n"
        "        add({'match.policy': p, 'model.n_kv_heads': k})"
    )
    body = "c.model.n_heads = 8\nc.model.d_ff = 64\nc.model.residual = True\n"
    body += "c.match.to = 'n_kv_heads=8'"
    sweep = swept(tmp_path, loops, body)
    assert sorted((p.about["variant"], p.about["match"]) for p in sweep.runs) == [
        ("MHA", "none"),
        ("MQA", "d_ff"),
        ("MQA", "none"),
    ]


def test_the_estimate_counts_the_later_stages(tmp_path: Path) -> None:
    def seconds(body: str) -> float:
        sweep = swept(tmp_path, MODELS, f"c.tune.lrs = '1e-3,2e-3'\n{body}")
        return plan.dry_run_json(sweep)["estimate"]["core_seconds"]

    few, many = seconds("c.tune.n_reported = 3"), seconds("c.tune.n_reported = 6")
    doubled = seconds("c.tune.n_reported = 3\nc.converge.confirm = True")
    # Three models, three more runs each; a twin makes 1.2 times the steps of its run.
    compiled = 3 * plan.COMPILE_S
    assert (doubled - few - compiled) / (many - few) == pytest.approx(1.2, rel=0.02)

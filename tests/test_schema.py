"""The table of keys, the reading of values, the rules between keys, and the run they make."""

import dataclasses
import sys
import time
import types
from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
import pytest
from cases import config_of, run_of

from configs import base
from mha_jax import config, keys, mixers, schema, tasks, values
from mha_jax.config import LayerSpec
from mha_jax.values import Key


def told(overrides: dict[str, Any]) -> list[str]:
    return [str(problem) for problem in schema.check(config_of(overrides))]


def test_the_table_has_every_key_of_the_base_config_and_its_default_is_sound() -> None:
    raw, problems = schema.leaves(base.get_config().to_dict())
    own = {key for key in raw if key.startswith("task.relations.")}
    assert not problems and set(raw) - own == set(keys.KEYS)
    assert own == set(keys.task_keys("relations"))
    for key, spec in keys.KEYS.items():
        assert values.read(spec, raw[key]) == (raw[key], None), key


@pytest.mark.parametrize("name", tasks.NAMES)
def test_every_task_has_a_section_and_a_run(name: str) -> None:
    section = base.get_config().to_dict()["task"][name]
    assert {f"task.{name}.{field}" for field in section} == set(keys.task_keys(name))
    task = run_of({"task.name": name}).static.task
    assert dict(task.params) == section and list(task.params) == sorted(task.params)
    assert len(task.data_hash) == (64 if name == "text" else 0)


def test_defaults_are_filled_in() -> None:
    (layer,) = run_of({"model.n_heads": 8}).static.model.layers
    assert layer == LayerSpec("grouped", 8, 8, 8, 0, 0, 0, None)
    (layer,) = run_of(
        {"model.n_heads": 8, "model.d_head": 5, "model.n_kv_heads": 2}
    ).static.model.layers
    assert (layer.n_kv_heads, layer.d_head) == (2, 5)


def test_comma_strings_become_layers() -> None:
    changed = {"model.n_layers": 3, "model.n_heads": "8,4, 2", "model.d_ff": 16}
    layers = run_of({**changed, "model.n_kv_heads": "1,2,2"}).static.model.layers
    assert [layer.n_heads for layer in layers] == [8, 4, 2]
    assert [layer.n_kv_heads for layer in layers] == [1, 2, 2]
    assert [layer.d_head for layer in layers] == [8, 16, 32]
    assert [layer.d_ff for layer in layers] == [16, 16, 16]


def test_one_run_has_one_hash_however_it_is_written() -> None:
    plain = run_of({"model.n_layers": 2, "optim.weight_decay": 0.0, "optim.clip": 1.0})
    for same in (
        {"model.n_layers": 2, "model.n_heads": "4,4"},
        {"model.n_layers": 2, "model.n_kv_heads": 4, "model.d_head": 16},
        {"model.n_layers": np.int64(2), "optim.weight_decay": np.float64(0), "optim.clip": 1},
        {"model.n_layers": 2, "optim.weight_decay": -0.0, "model.bias": np.False_},
        {"model.n_layers": 2, "task.taps.length": 99, "log.every": 7, "limits.memory_gib": 4},
    ):
        assert run_of(same).hash == plain.hash, same
    assert run_of({"model.n_layers": 2, "train.n_steps": 3001}).hash != plain.hash
    assert run_of({"model.n_layers": 2, "train.seed": 1}).group_hash == plain.group_hash


@pytest.mark.parametrize("name", tasks.NAMES)
def test_a_run_survives_its_record(name: str) -> None:
    run = run_of({"task.name": name, "model.n_layers": 2, "model.n_kv_heads": "1,2"})
    body = {
        "schema_version": config.SCHEMA_VERSION,
        "static": config.to_json(run.static),
        "hypers": config.to_json(run.hypers),
    }
    assert config.run_from_json(body) == run


def test_the_message_names_key_value_rule_and_fix() -> None:
    assert told({"model.n_heads": 8, "model.n_kv_heads": 3}) == [
        "model.n_kv_heads=3 must divide model.n_heads=8; choose one of 1, 2, 4, 8"
    ]
    assert told({"optim.lr": 0}) == [
        "optim.lr=0 must be a finite number above 0 and at most 100; raise it"
    ]
    assert told({"model.positions": "rop"}) == [
        "model.positions='rop' must be one of 'rope', 'learned', 'none'; did you mean rope?"
    ]


def test_all_problems_are_told_and_each_once() -> None:
    found = told(
        {
            "model.n_layers": 4,
            "model.n_kv_heads": 3,  # wrong in each of four layers
            "model.typo": 1,
            "optim.lr": float("nan"),
            "train.n_steps": 10,
            "task.relations.n_values": -1,
        }
    )
    assert [line.split("=")[0] for line in found] == [
        "optim.lr",
        "model.typo",
        "model.n_kv_heads",
        "optim.warmup_steps",
        "task.relations.n_values",
    ]


@pytest.mark.parametrize("kind", ["int", "float", "bool", "str"])
def test_only_the_kind_itself_is_read(kind: str) -> None:
    key = Key(kind, -100, 100)
    samples = {
        "int": [3, np.int64(3), np.uint8(3)],
        "float": [3.0, np.float32(3), np.float64(3)],
        "bool": [True, np.True_],
        "str": ["x", np.str_("x")],
    }
    for other, given in samples.items():
        for sample in given:
            value, message = values.read(key, sample)
            if other == kind or (kind, other) == ("float", "int"):
                assert message is None and type(value).__name__ == kind, sample
            else:
                assert message is not None, sample
    for sample in (None, [3], (3,), {}, 1j, b"x", object(), int):
        assert values.read(key, sample)[1] is not None


def test_every_key_refuses_what_it_cannot_hold() -> None:
    for key, spec in keys.KEYS.items():
        for wrong in (b"x", [], {}, object(), float("nan"), "\0", 10**400, -(10**400)):
            if spec.kind == "str" and wrong == "\0" and spec.choices == ():
                continue  # refused for its character, below
            message = told({key: wrong})
            assert any(line.startswith(f"{key}=") and ";" in line for line in message), (key, wrong)
    assert "printable" in told({"match.to": "a\0"})[0]


@pytest.mark.parametrize(
    ("text", "kind", "expected"),
    [
        ("8", "int", 8),
        ("+8", "int", 8),
        ("-8", "int", -8),
        ("2.0", "int", "2.0"),
        ("0x8", "int", "0x8"),
        (" 8", "int", " 8"),
        ("1e-3", "float", 0.001),
        (".5", "float", 0.5),
        ("5.", "float", 5.0),
        ("8", "float", 8.0),
        ("1_0.0", "float", "1_0.0"),
        ("True", "bool", True),
        ("false", "bool", False),
        ("1", "bool", "1"),
        ("8", "str", "8"),
        ("none", "str", "none"),
    ],
)
def test_parse_goes_by_the_kind_of_the_key(text: str, kind: str, expected: Any) -> None:
    value = values.parse(Key(kind), text)
    assert value == expected and type(value) is type(expected)


def test_none_is_parsed_where_it_is_allowed() -> None:
    assert values.parse(keys.KEYS["model.n_kv_heads"], "None") is None
    assert values.parse(keys.KEYS["model.n_heads"], "none") == "none"


def test_nearest_looks_at_whole_names_and_at_leaves() -> None:
    known = ["model.n_heads", "optim.lr", "train.seed", "task.seed"]
    assert values.nearest("model.n_head", known) == "; did you mean model.n_heads?"
    assert values.nearest("train.lr", known) == "; did you mean optim.lr?"
    assert values.nearest("sed", known) == "; did you mean train.seed or task.seed?"
    assert values.nearest("zzz", known) == ""


def test_divisors_are_those_nearest() -> None:
    from mha_jax.rules import divisors

    assert divisors(8, 3) == "1, 2, 4, 8"
    assert divisors(1, 5) == "1"
    assert divisors(4096, 100, limit=3) == "32, 64, 128"


@pytest.mark.parametrize("size", [10**9, 10**30, 2**24])
def test_huge_sizes_are_answered_at_once(size: int) -> None:
    """No array is built, nothing is compiled, no loop runs over the size."""
    sizes = [key for key, spec in keys.KEYS.items() if spec.kind == "int"]
    cases = [{key: size} for key in sizes]
    for name in tasks.NAMES:
        cases += [
            {"task.name": name, key: size}
            for key, spec in keys.task_keys(name).items()
            if spec.kind == "int"
        ]
    start = time.perf_counter()
    for case in cases:
        run, problems = schema.resolve(config_of(case))
        assert (run is None) == bool(problems)
    # Measured: 0.1 s for all of them; a single list of 10**9 takes seconds and 8 GB.
    assert time.perf_counter() - start < 10


def test_memory_is_refused_above_the_limit_and_names_the_largest_size() -> None:
    big = {"model.d_ff": 100_000, "model.d_model": 8192, "model.n_heads": 1}
    (line,) = told(big)
    assert line.startswith("model.d_ff=100000 makes a run of an estimated ")
    assert "at most limits.memory_gib=8" in line and "model.d_model=8192" in line
    assert told({**big, "limits.memory_gib": 1000.0}) == []


def test_mixers_are_found_without_importing_them() -> None:
    assert "grouped" in mixers.own()
    assert not {"core", "init", "positions", "__init__"} & set(mixers.own())


@dataclasses.dataclass(frozen=True)
class StubConfig:
    length: int
    rate: float
    flag: bool
    mode: Literal["a", "b"]


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> Iterator[types.ModuleType]:
    """A task of a user's own in the place of `histogram`."""
    module = types.ModuleType("mha_jax.tasks.histogram")
    module.Config = StubConfig
    module.problems = lambda cfg: iter([])
    monkeypatch.setitem(sys.modules, "mha_jax.tasks.histogram", module)
    keys.task_keys.cache_clear()
    schema._data_hash.cache_clear()
    yield module
    keys.task_keys.cache_clear()
    schema._data_hash.cache_clear()


def stub_config(**changed: Any) -> dict[str, Any]:
    made = config_of({"task.name": "histogram"})
    made["task"]["histogram"] = {"length": 8, "rate": 0.5, "flag": True, "mode": "a", **changed}
    return made


def test_a_task_section_is_checked_by_its_annotations(stub: types.ModuleType) -> None:
    from mha_jax.tasks import copy

    stub.spec = lambda cfg: copy.spec(copy.Config(length=cfg.length, vocab=4))
    run, problems = schema.resolve(stub_config(rate=1))
    assert run is not None, problems
    assert dict(run.static.task.params) == {"length": 8, "rate": 1.0, "flag": True, "mode": "a"}
    bad = {"length": 8.0, "rate": float("inf"), "flag": 1, "mode": "c", "more": 1}
    found = [str(problem) for problem in schema.check(stub_config(**bad))]
    assert [line.split("=")[0] for line in found] == [
        f"task.histogram.{field}" for field in ("length", "rate", "flag", "mode", "more")
    ]


def test_a_tasks_own_rules_and_hash_are_used(stub: types.ModuleType) -> None:
    from mha_jax.tasks import copy

    stub.spec = lambda cfg: copy.spec(copy.Config(length=cfg.length, vocab=4))
    stub.data_hash = lambda cfg: f"{cfg.length:064d}"
    run, _ = schema.resolve(stub_config())
    assert run is not None and run.static.task.data_hash == f"{8:064d}"
    stub.problems = lambda cfg: iter([("length", "must be prime", "use 7")])
    assert [str(problem) for problem in schema.check(stub_config())] == [
        "task.histogram.length=8 must be prime; use 7"
    ]


@pytest.mark.parametrize("broken", ["problems", "spec", "data_hash", "Config"])
def test_a_task_module_that_fails_is_named(stub: types.ModuleType, broken: str) -> None:
    from mha_jax.tasks import copy

    def fails(*args: object) -> None:
        raise RuntimeError("broken here")

    stub.spec = lambda cfg: copy.spec(copy.Config(length=cfg.length, vocab=4))
    if broken == "Config":
        stub.Config = None
    else:
        setattr(stub, broken, fails)
    (problem,) = schema.check(stub_config())
    assert str(problem).startswith("task.name='histogram' is a task whose module fails; repair it")
    assert broken == "Config" or "test_schema.py:" in str(problem)


def test_a_mixer_whose_cost_fails_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mha_jax.mixers.own", lambda: ("grouped", "mine"))
    (line,) = told({"model.mixer": "mine"})
    assert line.startswith("model.mixer='mine' is a mixer whose cost fails; repair it: ")
    assert "ModuleNotFoundError" in line

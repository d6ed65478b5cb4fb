"""Bad input of every kind: exit code 2, one line that names the key, no traceback, nothing started.

Each case goes through the whole command line in this process, a few through a process of their own.
"""

import os
import re
import subprocess
import sys
import types
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
from cases import write_config

from mha_jax import cli

ROOT = Path(__file__).resolve().parent.parent


class Bad(NamedTuple):
    """A config file (or the flags beside one) that must be refused."""

    key: str  # what the message must name
    body: str = ""  # lines of get_config
    sweep: str = ""  # lines of sweep(add)
    flags: tuple[str, ...] = ()
    says: str = ""  # a regular expression that the message must match as well
    text: str | bytes | None = None  # the whole file, instead of body and sweep
    arg: str = "arg=None"  # parameters of get_config


def keys(says: str = "", **values: str) -> list[Bad]:
    """One case for each key=expression; "__" in a name is a dot."""
    found = []
    for name, expression in values.items():
        key = name.replace("__", ".")
        found.append(Bad(key, f"c.{key} = {expression}", says=says))
    return found


TYPOS = [
    Bad("model.n_head", "c.model.n_head = 8", says="did you mean model.n_heads"),
    Bad("model.nkv_heads", "c.model.nkv_heads = 2", says="model.n_kv_heads"),
    Bad("model.dmodel", "c.model.dmodel = 64", says="model.d_model"),
    Bad("model.lr", "c.model.lr = 0.1", says="optim.lr"),
    Bad("optim.learning_rate", "c.optim.learning_rate = 0.1", says="configs/base.py"),
    Bad("train.steps", "c.train.steps = 5", says="train.n_steps"),
    Bad("train.batchsize", "c.train.batchsize = 5", says="train.batch_size"),
    Bad("modle", "c.modle = 5", says="model"),
    Bad("seed", "c.seed = 1", says="train.seed"),
    Bad("task.tap", "c.task.tap = dict(length=8)", says="task.taps"),
    Bad("task.relations.n_class", "c.task.relations.n_class = 3", says="n_classes"),
    Bad("log.evry", "c.log.evry = 3", says="log.every"),
    Bad("limits.memory_gb", "c.limits.memory_gb = 3", says="limits.memory_gib"),
    Bad("match.polcy", "c.match.polcy = 'd_ff'", says="match.policy"),
    Bad("task.name", "c.task.name = 'relation'", says="did you mean relations"),
    Bad("model.positions", "c.model.positions = 'rop'", says="did you mean rope"),
    Bad("model.kernel", "c.model.kernel = 'Fast'", says="'auto', 'reference', 'fast'"),
    Bad("model.kernel", "c.model.kernel = 'splash'", says="blocks of 128 .* task has 13"),
    Bad("model.kernel", "c.model.kernel = 'cudnn'", says="model.compute_dtype='bfloat16'"),
    Bad("model.n_heads", "del c.model.n_heads", says="is missing"),
    Bad("train", "del c.train", says="is missing"),
    Bad("task.relations.n_values", "del c.task.relations.n_values", says="is missing"),
]
TYPES = [
    *keys("without quotes", model__n_heads="'8'", optim__lr="'0.1'", model__residual="'True'"),
    *keys("write 2", model__d_model="2.0", train__n_steps="2.0"),
    *keys("integer", model__n_layers="2.5", train__seed="None", train__batch_size="[64]"),
    *keys("bool", model__d_ff="True", train__n_eval="False"),
    *keys("=True .*bool", optim__lr="True", optim__clip="True", limits__memory_gib="True"),
    Bad("optim.clip", sweep="add({'optim.clip': True})", says="bool"),
    *keys("True or False", model__bias="1", model__scale="0", log__tensorboard="None"),
    *keys("string", match__to="8", experiment="7"),
    *keys("type list", task__name="['taps']"),
    *keys(
        "one of",
        model__norm="None",
        model__share="True",
        model__kv_init="3",
        model__cache_dtype="'float64'",
    ),
    *keys('"4,4"', model__n_heads="(4, 4)"),
    *keys("type complex", optim__weight_decay="1j"),
    *keys("type function", optim__eps="lambda: 1"),
    *keys("is a section", model="4", train="None", task="'taps'", limits="[]"),
    Bad("task.relations", "c.task.relations = 5", says="is a section"),
    Bad("task.relations.n_values", "c.task.relations.n_values = 4.5", says="integer"),
    Bad("task.text.path", "c.task.name = 'text'\nc.task.text.path = 3", says="string"),
    Bad("model.d_model", "c.model.d_model = dict(a=1)", says="integer"),
]
RANGES = [
    *keys("raise", model__n_heads="0", model__d_model="-64", model__n_layers="0"),
    *keys("raise", model__n_kv_heads="0", model__d_head="-1", model__d_ff="-5", model__window="-1"),
    *keys("raise", train__n_steps="0", train__batch_size="-1", train__eval_every="0"),
    *keys("raise", train__n_test="0", train__n_probe="0", train__seed="-1", task__seed="-3"),
    *keys("raise", optim__lr="0.0", optim__weight_decay="-0.1", optim__warmup_steps="-1"),
    *keys("raise", optim__b1="-0.1", optim__eps="0.0", optim__clip="-1", log__every="0"),
    *keys("raise", log__checkpoint_every="0", log__keep="-1", limits__memory_gib="0"),
    *keys("lower", optim__lr="1e6", optim__b1="1.0", optim__b2="1.5", optim__decay_fraction="2"),
    *keys("lower", train__data_seed="2**32", log__n_images="6", train__n_steps="10**12"),
    *keys("finite", optim__lr="float('nan')", optim__clip="float('inf')", optim__b2="1e400"),
    *keys("finite", optim__weight_decay="-float('inf')", limits__memory_gib="float('nan')"),
    *keys("finite", optim__decay_fraction="float('nan')"),
]
HUGE = [
    *keys("lower", model__n_heads="10**9", model__n_layers="10**9", model__d_head="10**30"),
    *keys("lower", model__d_model="10**5000", train__batch_size="10**9"),
    *keys("GiB", model__d_ff="2**24", model__d_model="2**20", train__batch_size="2**20"),
    Bad("model.d_head", "c.model.n_heads = 4096\nc.model.d_head = 2**20", says="n_heads=4096"),
    Bad("task.taps.length", "c.task.name = 'taps'\nc.task.taps.length = 10**9", says="less"),
    Bad("task.copy.vocab", "c.task.name = 'copy'\nc.task.copy.vocab = 10**9", says="less"),
    Bad("task.text.length", "c.task.name = 'text'\nc.task.text.length = 10**9", says="less"),
    Bad("task.attr.n_items", "c.task.name = 'attr'\nc.task.attr.n_items = 10**40", says="lower"),
    Bad("optim.lr", sweep="add({'optim.lr': 10**400})", says="finite"),
    Bad("train.n_test", "c.limits.memory_gib = 1e-3", says="limits.memory_gib=0.001"),
]
CROSS = [
    Bad(
        "model.n_kv_heads",
        "c.model.n_heads = 8\nc.model.n_kv_heads = 3",
        says=r"=3 must divide model\.n_heads=8; choose one of 1, 2, 4, 8$",
    ),
    Bad("model.n_kv_heads", "c.model.n_kv_heads = 8", says="choose one of 1, 2, 4"),
    Bad("model.n_heads", "c.model.n_heads = 6", says=r"model\.d_model=64.*or set model\.d_head"),
    Bad("model.n_heads", "c.model.n_heads = 64\nc.model.positions = 'rope'", says="even"),
    Bad("model.d_head", "c.model.d_head = 5\nc.model.positions = 'rope'", says="even"),
    Bad("model.share", "c.model.share = 'qk'\nc.model.n_kv_heads = 2", says="n_kv_heads=2 equal"),
    Bad("model.share", "c.model.share = 'qkv'\nc.model.n_kv_heads = 1", says="n_kv_heads=None"),
    Bad("model.n_heads", "c.model.n_layers = 2\nc.model.n_heads = '4,4,4'", says="3 entries"),
    Bad("model.d_ff", "c.model.d_ff = '4,'", says="entry 2"),
    Bad("model.n_heads", "c.model.n_layers = 2\nc.model.n_heads = '4,x'", says="entry 2 is 'x'"),
    Bad("model.n_heads", "c.model.n_layers = 2\nc.model.n_heads = '4,0'", says="entry 2"),
    Bad(
        "model.n_kv_heads",
        "c.model.n_layers = 2\nc.model.n_kv_heads = '4,3'",
        says=r"\(layer 1: 3\) must divide model\.n_heads=4",
    ),
    Bad("model.mixer", "c.model.mixer = 'group'", says="grouped"),
    Bad("model.mixer", "c.model.mixer = 'core'", says="with a Mixer"),
    Bad("model.mixer", "c.model.mixer = '../grouped'", says="with a Mixer"),
    Bad("model.window", "c.model.window = 4", says="full mask of the task 'relations'"),
    Bad("model.n_sinks", "c.task.name = 'copy'\nc.model.n_sinks = 2", says="window is 0"),
    Bad(
        "model.n_sinks",
        "c.task.name = 'copy'\nc.model.window = 4\nc.model.n_sinks = 4",
        says="below model.window=4",
    ),
    Bad(
        "model.use_wo",
        "c.model.use_wo = False\nc.model.d_head = 5\nc.model.residual = True",
        says="= 20 columns.*residual",
    ),
    Bad("model.use_wo", "c.model.use_wo = False\nc.model.d_head = 5\nc.model.d_ff = 8", says="MLP"),
    Bad(
        "model.use_wo",
        "c.model.use_wo = False\nc.model.d_head = 5\nc.model.n_layers = 2",
        says="next layer",
    ),
    Bad(
        "model.d_model",
        "c.task.name = 'wide_taps'\nc.task.wide_taps.readout = 'none'\nc.model.d_model = 32",
        says="must be 64.*readout='linear'",
    ),
    Bad(
        "model.use_wo",
        "c.task.name = 'wide_taps'\nc.task.wide_taps.readout = 'none'\nc.model.use_wo = False\n"
        "c.model.d_head = 8",
        says="d_head = 32 columns.*must have 64",
    ),
    Bad("optim.warmup_steps", "c.train.n_steps = 100", says="lower it to 80"),
    Bad("optim.warmup_steps", "c.optim.decay_fraction = 1.0", says="lower it to 0"),
    Bad("match.to", "c.match.policy = 'd_ff'", says="must name the model"),
    Bad("match.to", "c.match.policy = 'd_ff'\nc.match.to = 'heads'", says="name=value"),
    Bad("match.to", "c.match.to = 'n_head=8'", says="n_heads"),
    Bad("match.to", "c.match.to = 'n_heads=8,n_heads=4'", says="twice"),
    Bad("match.to", "c.match.to = 'n_heads=7'", says=r"refused \(model\.n_heads=7"),
    Bad("match.to", "c.match.to = 'n_heads='", says="name=value"),
    Bad("match.to", "c.match.to = 'd_model=' + '9' * 5000", says="refused"),
    Bad(
        "match.policy",
        "c.match.policy = 'd_ff'\nc.match.to = 'n_kv_heads=1'",
        says="must have an MLP.*'d_model' or 'n_layers'",
    ),
    Bad(
        "match.policy",
        "c.match.policy = 'd_ff'\nc.model.d_ff = 8\nc.match.to = 'd_model=8'",
        says="MLP of width -",
    ),
    Bad(
        "match.policy",
        "c.match.policy = 'n_layers'\nc.model.n_layers = 2\nc.model.n_heads = '4,2'\n"
        "c.match.to = 'd_ff=64'",
        says="equal layers",
    ),
    Bad(
        "match.policy",
        "c.match.policy = 'd_model'\nc.model.use_wo = False\nc.model.d_head = 16\n"
        "c.model.residual = True\nc.match.to = 'd_model=64,d_ff=64'",
        says="refused",
    ),
    Bad(
        "task.attr.attribute_vocab",
        "c.task.name = 'attr'\nc.task.attr.attribute_vocab = 4",
        says="n_items=16",
    ),
    Bad("task.taps.length", "c.task.name = 'taps'\nc.task.taps.length = 3", says="n_taps=4"),
    Bad("task.text.path", "c.task.name = 'text'\nc.task.text.path = 'no/such'", says="not exist"),
    Bad("task.text.suffix", "c.task.name = 'text'\nc.task.text.suffix = 'txt'", says="dot"),
]
UNICODE = [
    Bad("model.n_heäds", "c.model['n_heäds'] = 3", says="n_heads"),
    Bad("experiment", "c.experiment = 'naïve'"),
    Bad("experiment", r"c.experiment = '\udcff'"),
    Bad("experiment", "c.experiment = '\\u202eevil'"),
    Bad("match.to", r"c.match.to = 'n_heads=\u0664'", says="refused"),
    Bad("task.text.path", r"c.task.name = 'text'" + "\n" + r"c.task.text.path = 'a\udc80b'"),
    Bad("task.text.path", r"c.task.name = 'text'" + "\n" + r"c.task.text.path = 'a\0b'"),
    Bad("model.n_heads", flags=("--config.model.n_heads=٤",)),
    Bad("--config.model.ñ", flags=("--config.model.ñ=4",)),
    Bad("optim.lr", flags=("--config.optim.lr=\udcff",)),
]
PATHS = [
    *keys("directory", experiment="'../x'"),
    *keys("directory", experiment="'/abs'"),
    *keys("directory", experiment="'a/b'"),
    *keys("directory", experiment="'.hidden'"),
    *keys("directory", experiment="'..'"),
    *keys("directory", experiment="'x' * 81"),
    *keys("directory", experiment="'a b'"),
    *keys("directory", experiment="'a\\\\b'"),
    *keys("directory", experiment="'<script>'"),
    *keys("printable", experiment="'a\\0b'"),
    *keys("printable", experiment="'a\\nb'"),
]
FILES = [
    Bad("--config", text="def get_config(:\n", says=r"bad\.py:1 raised SyntaxError"),
    Bad("--config", text="x = 1\n  y = 2\n", says=r"bad\.py:2 raised IndentationError"),
    Bad("--config", text="import nothing_like_this\n", says=r"bad\.py:1 raised ModuleNotFound"),
    Bad("--config", text="from configs import bass\n", says=r"bad\.py:1 raised ImportError"),
    Bad("--config", text="\n\n1 / 0\n", says=r"bad\.py:3 raised ZeroDivisionError"),
    Bad("--config", text="raise SystemExit(0)\n", says=r"bad\.py:1 raised SystemExit"),
    Bad("--config", text="import sys\nsys.exit('bye')\n", says=r"bad\.py:2 .*bye"),
    Bad("--config", text=b"x = '\xff'\n", says="SyntaxError"),
    Bad("--config", text=b"x = 1\0\n", says="null bytes"),
    Bad("--config", text="raise BaseException\n", says=r"bad\.py:1 raised BaseException"),
    Bad("--config", text="assert False, 'two\\nlines'\n", says="two lines"),
    Bad("get_config", text="", says="is missing"),
    Bad("get_config", text="get_config = 3\n", says="is missing"),
    Bad("get_config", text="def get_config():\n    pass\n", says="not NoneType"),
    Bad("get_config", text="def get_config():\n    return {}\n", says="not dict"),
    Bad(
        "model",
        text="from ml_collections import ConfigDict as C\ndef get_config():\n    return C()\n",
        says="is missing",
    ),
    Bad("--config", "raise KeyError('x')", says=r"bad\.py:6 raised KeyError"),
    Bad("--config", "c.nothing.here = 3", says=r"bad\.py:6 raised AttributeError"),
    Bad("--config", "c.model.n_heads += '3'", says=r"bad\.py:6 raised TypeError"),
    Bad("--config", arg="arg", body="raise ValueError(f'no {arg}')", says="ValueError: no None"),
]
FLAGS = [
    Bad("--config.model.n_head", flags=("--config.model.n_head=8",), says="n_heads"),
    Bad("--config.n_heads", flags=("--config.n_heads=8",), says="model.n_heads"),
    Bad("--config.model", flags=("--config.model=8",), says="no config key"),
    Bad("--config.", flags=("--config.=8",), says="no config key"),
    Bad("--config.model.n_heads", flags=("--config.model.n_heads",), says="no value"),
    Bad("model.n_heads", flags=("--config.model.n_heads=",), says="integer"),
    Bad("model.n_heads", flags=("--config.model.n_heads=two",), says="integer"),
    Bad("model.n_heads", flags=("--config.model.n_heads=2.5",), says="integer"),
    Bad("model.n_heads", flags=("--config.model.n_heads=1_6",), says="integer"),
    Bad("model.n_heads", flags=("--config.model.n_heads=none",), says="integer"),
    Bad("model.residual", flags=("--config.model.residual=yes",), says="True or False"),
    Bad("model.residual", flags=("--config.model.residual=1",), says="True or False"),
    Bad("optim.lr", flags=("--config.optim.lr=nan",), says="finite"),
    Bad("optim.lr", flags=("--config.optim.lr=inf",), says="finite"),
    Bad("optim.lr", flags=("--config.optim.lr=1e999",), says="finite"),
    Bad("optim.lr", flags=("--config.optim.lr=-1",), says="above 0"),
    Bad("optim.lr", flags=("--config.optim.lr=0,1",), says="string"),
    Bad(
        "--config.optim.lr",
        flags=("--config.optim.lr=1", "--config.optim.lr=2"),
        says="given twice",
    ),
    Bad("--config.task.taps.length", flags=("--config.task.taps.length=8",), says="no effect"),
    Bad("--config.task.tap.length", flags=("--config.task.tap.length=8",), says="task.taps.length"),
    Bad(
        "--config.task.taps.length",
        body="del c.task.taps",
        flags=("--config.task.taps.length=8", "--config.task.name=taps"),
        says="no place",
    ),
    Bad("--config.train.seed", sweep="add({'train.seed': 3})", flags=("--config.train.seed=1",)),
    Bad("--wrokers", flags=("--wrokers=2",), says="did you mean --workers"),
    Bad("--confg.model.n_heads", flags=("--confg.model.n_heads=8",), says="no flag"),
    Bad("--workers", flags=("--workers=0",)),
    Bad("--workers", flags=("--workers=two",)),
    Bad("--workers", flags=("--workers=1e9",)),
    Bad("--workers", flags=("--workers",), says="no value"),
    Bad("--engine", flags=("--engine=slurm",), says="must be one of local, ray"),
    Bad("--engine", flags=("--engine=lokal",), says="did you mean local"),
    Bad("--ray_address", flags=("--ray_address=auto",), says="with --engine=ray alone"),
    Bad("--ray_address", flags=("--ray_address=ray://a:1",), says="a client's address"),
    Bad("--part", flags=("--part=2",), says="i/n"),
    Bad("--part", flags=("--part=0/2",), says="i from 1 to n"),
    Bad("--part", flags=("--part=3/2",), says="i from 1 to n"),
    Bad("--part", flags=("--part=1/1025",), says="at most 1024"),
    Bad("--part", flags=("--part",), says="no value"),
    Bad("--hosts", flags=("--hosts=two",), says="HOST:PORT,INDEX,COUNT"),
    Bad("--hosts", flags=("--hosts=a:70000,0,2",), says="HOST:PORT,INDEX,COUNT"),
    Bad("--hosts", flags=("--hosts=a:9911,2,2",), says="INDEX from 0"),
    Bad("--part", flags=("--hosts=auto", "--part=1/2"), says="with --hosts"),
    Bad("--workers", flags=("--hosts=auto", "--workers=2"), says="with --hosts"),
    Bad("--json", flags=("--json",), says="add --dry_run"),
    Bad("--dry_run", flags=("--dry_run=yes",), says="switch"),
    Bad("stray", flags=("stray",), says="no flag"),
    Bad("--workdir", flags=("--workdir=again",), says="given twice"),
    Bad("--config", flags=("--config=again.py",), says="given twice"),
]
SWEEPS = [
    Bad("model.n_head", sweep="add({'model.n_head': 8})", says=r"n_heads.*\(.*bad\.py:10\)"),
    Bad("model.n_kv_heads", sweep="add({})\nadd({'model.n_kv_heads': 3})", says="1 of 2 runs"),
    Bad(
        "model.n_kv_heads",
        sweep="for s in range(4):\n    add({'model.n_kv_heads': 3, 'train.seed': s})",
        says=r"must divide model\.n_heads=4; choose one of 1, 2, 4 \(all 4 runs\)",
    ),
    Bad("optim.lr", sweep="for lr in (1e-3, float('nan')):\n    add({'optim.lr': lr})"),
    Bad("model.n_heads", sweep="add({'model.n_heads': '8'})", says="without quotes"),
    Bad("experiment", sweep="add({'experiment': 'x'})", says="whole sweep"),
    Bad("task.taps.length", sweep="add({'task.taps.length': 8})", says="task.name is 'relations'"),
    Bad("task.taps", sweep="add({'task.taps': {'length': 8}})", says="no config key"),
    Bad("model.d_ff", sweep="add({'model.d_ff': 2**24, 'model.d_model': 2**15})", says="GiB"),
    Bad("3", sweep="add({3: 4})", says="no config key"),
    Bad("sweep", sweep="add(3)", says=r"calls add\(3\)"),
    Bad("sweep", sweep="add('model.n_heads', 4)", says="TypeError"),
    Bad("sweep", sweep="add(['model.n_heads'])", says="give a dict"),
    Bad("n_heads", sweep="add(n_heads=4)", says="did you mean model.n_heads"),
    Bad("sweep", sweep="pass", says="adds no run"),
    Bad("sweep", sweep="add.drop({'model.n_heads': 8}, 'too few')", says="adds no run"),
    Bad("sweep", sweep="add({})\nadd.drop({'model.n_heads': 8})", says="must say why"),
    Bad("model.n_head", sweep="add({})\nadd.drop({'model.n_head': 8}, 'x')", says="n_heads"),
    Bad("sweep", sweep="1 / 0", says=r"bad\.py:10 raised ZeroDivisionError"),
    Bad("sweep", sweep="raise SystemExit", says="SystemExit"),
    Bad("sweep", sweep="while True:\n    add({})", says="at most 10000 runs"),
    Bad("sweep", sweep="yield add({})", says="yields or awaits"),
    Bad("sweep", text="from configs.base import get_config\nsweep = 3\n", says="function"),
    Bad(
        "sweep",
        text="from configs.base import get_config\ndef sweep():\n    pass\n",
        says="TypeError",
    ),
    Bad(
        "sweep",
        text="from configs.base import get_config\nasync def sweep(add):\n    pass\n",
        says="awaits",
    ),
    Bad("match.policy", sweep="add({'match.policy': 'd_ff', 'match.to': 'n_heads=2'})", says="MLP"),
]
# In a process of its own only: deep recursion disturbs what pytest hooks into.
ENDLESS = Bad("--config", "return get_config()", says=r"bad\.py:\d raised RecursionError")
GROUPS = {
    "typos": TYPOS,
    "types": TYPES,
    "ranges": RANGES,
    "huge": HUGE,
    "cross": CROSS,
    "unicode": UNICODE,
    "paths": PATHS,
    "files": FILES,
    "flags": FLAGS,
    "sweeps": SWEEPS,
}
ALL = [(f"{group}{i}", bad) for group, found in GROUPS.items() for i, bad in enumerate(found)]


def test_there_are_many_and_no_two_alike() -> None:
    assert len({bad for _, bad in ALL}) == len(ALL) >= 120


@pytest.fixture(autouse=True)
def never_started(monkeypatch: pytest.MonkeyPatch) -> None:
    def launch(*args: object, **kwargs: object) -> int:
        raise AssertionError("bad input was accepted")

    monkeypatch.setitem(sys.modules, "mha_jax.launch", types.SimpleNamespace(launch=launch))


def write(bad: Bad, folder: Path) -> Path:
    path = folder / "bad.py"
    if bad.text is None:
        return write_config(path, bad.body, bad.sweep, bad.arg)
    path.write_bytes(bad.text if isinstance(bad.text, bytes) else bad.text.encode())
    return path


def check(stderr: str, key: str, says: str) -> None:
    lines = stderr.splitlines()
    assert "Traceback" not in stderr and len(lines) <= 60
    assert re.fullmatch(r"\d+ problems?; nothing was started", lines[0])
    printable = key.encode("ascii", "backslashreplace").decode()
    naming = [line for line in lines[1:] if re.match(rf"  {re.escape(printable)}[ =.]", line)]
    assert naming, stderr
    assert any(re.search(says, line) for line in naming), stderr
    assert all(len(line) < 500 for line in lines), stderr
    assert stderr.isascii()


@pytest.mark.parametrize("bad", [bad for _, bad in ALL], ids=[name for name, _ in ALL])
def test_is_refused(
    bad: Bad, tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = write(bad, tmp_path)
    code = cli.main([f"--config={path}", "--workdir=results", *bad.flags])
    shown = capsys.readouterr()
    assert code == 2 and shown.out == ""
    check(shown.err, bad.key, bad.says)
    assert sorted(tmp_path.iterdir()) == [path]  # nothing was made, not even a bytecode cache


@pytest.mark.parametrize(
    ("argv", "key", "says"),
    [
        ([], "--config", "is missing"),
        ([], "--workdir", "is missing"),
        (["--config"], "--config", "no value"),
        (["--config="], "--config", "no value"),
        (["--config=nowhere.py", "--workdir=w"], "--config", "is not there"),
        (["--config=folder.py", "--workdir=w"], "--config", "not a regular file"),
        (["--config=pipe.py", "--workdir=w"], "--config", "not a regular file"),
        (["--config=text.txt", "--workdir=w"], "--config", "ends with .py"),
        (["--config=text", "--workdir=w"], "--config", "ends with .py"),
        (["--config=a\0b.py", "--workdir=w"], "--config", "is not there|null byte"),
        (["--config=" + "x" * 5000 + ".py", "--workdir=w"], "--config", "cannot be read"),
        (["--config=good.py:", "--workdir=w"], "--config", "argument"),
        (["--config=bare.py:quick", "--workdir=w"], "--config", "takes none"),
        (["--config=good.py", "--workdir=text.txt"], "--workdir", "is a file"),
        (["--config=good.py", "--workdir=text.txt/deeper"], "--workdir", "is a file"),
        (["--config=good.py", "--workdir=a\0b"], "--workdir", "null"),
        (["--config=my config.py", "--workdir=w"], "experiment", "directory"),
        (["--config=.py", "--workdir=w"], "experiment", "directory"),
    ],
)
def test_command_line_is_refused(
    argv: Sequence[str],
    key: str,
    says: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("good.py", "my config.py", ".py"):
        write_config(tmp_path / name)
    write_config(tmp_path / "bare.py", arg="")
    (tmp_path / "text.txt").write_text("x")
    (tmp_path / "folder.py").mkdir()
    os.mkfifo(tmp_path / "pipe.py")
    there = sorted(tmp_path.iterdir())
    assert cli.main(argv) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    check(shown.err, key, says)
    assert sorted(tmp_path.iterdir()) == there


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read and write everything")
def test_unreadable_file_and_unwritable_directory(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    path = write_config(tmp_path / "closed.py")
    path.chmod(0)
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o500)
    assert cli.main([f"--config={path}", f"--workdir={closed}/w"]) == 2
    shown = capsys.readouterr().err
    check(shown, "--config", "Permission denied")
    check(shown, "--workdir", "not writable")


def test_all_problems_of_all_runs_are_told_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    path = write_config(
        tmp_path / "bad.py",
        "c.model.n_head = 8\nc.optim.lr = float('nan')\nc.train.n_steps = '5'",
        "for k in (1, 3, 5):\n    for s in range(10):\n"
        "        add({'model.n_kv_heads': k, 'train.seed': s})\nadd({'model.window': 4})",
    )
    flags = ("--config.optim.b1=2", "--config.optm.b1=2", "--workdir", str(tmp_path), "--jsn")
    assert cli.main([f"--config={path}", *flags]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "9 problems; nothing was started"
    for key in ("--jsn", "--config.optm.b1", "model.n_head", "optim.lr", "optim.b1"):
        assert sum(line.startswith(f"  {key}=") or f"  {key} " in line for line in lines) == 1, key
    kv = [line for line in lines if "model.n_kv_heads" in line]
    assert [re.search(r"\((\d+) of 31 runs", line)[1] for line in kv] == ["10", "10"]
    assert all("first n_kv_heads=" in line for line in kv)


def test_a_thousand_problems_are_cut(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    path = write_config(
        tmp_path / "bad.py", sweep="for i in range(1000):\n    add({'train.n_steps': -i})"
    )
    assert cli.main([f"--config={path}", "--dry_run"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "1000 problems; nothing was started" and lines[-1] == "  and 960 more"


def test_ctrl_c_in_a_config_is_no_problem_of_the_config(tmp_path: Path) -> None:
    path = write_config(tmp_path / "bad.py", "raise KeyboardInterrupt")
    with pytest.raises(KeyboardInterrupt):
        cli.main([f"--config={path}", "--dry_run"])


@pytest.mark.parametrize("script", ["sweep.py", "train.py"])
@pytest.mark.parametrize(
    "bad",
    [CROSS[0], FILES[0], FILES[5], ENDLESS, UNICODE[9], FLAGS[0], SWEEPS[2]],
    ids=["cross", "syntax", "exit", "endless", "bytes", "flag", "sweep"],
)
def test_the_scripts_say_so(bad: Bad, script: str, tmp_path: Path) -> None:
    if script == "train.py" and bad.sweep:
        pytest.skip("it does not look at the sweep")
    path = write(bad, tmp_path)
    command = [sys.executable, "-W", "error", f"{ROOT}/scripts/{script}", f"--config={path.name}"]
    done = subprocess.run(
        [*command, "--workdir=results", *bad.flags],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"], "LC_ALL": "C"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2 and done.stdout == ""
    check(done.stderr, bad.key, bad.says)

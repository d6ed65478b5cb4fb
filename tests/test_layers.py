"""Who may import whom, what must answer without jax, and what no file may hold."""

import ast
import itertools
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.synthetic import make_run, static

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "mha_jax"

# From the bottom up; a module reads its own layer and those below. A name covers its submodules.
LAYERS = (
    ("config", "rng", "values", "files", "events", "picture", "host", "labels", "packing", "tune")
    + ("mixers", "taskref", "terminal", "flags", "alone", "parts", "signals"),
    ("attention", "loss", "optim", "cost", "layer_cost", "tasks", "keys", "rules", "kv_rules")
    + ("schema", "load", "changes", "decode_cost", "presets", "accelerators", "budget")
    + ("kernel_rules",),
    ("blocks", "ends", "transformer", "model"),
    ("train", "evaluate", "examine", "analysis", "given", "heads", "sampling", "token_loop")
    + ("decode", "decode_speed"),
    ("group", "match", "members", "sweep", "plan", "writer", "records", "manifest", "checkpoint")
    + ("store", "rows", "tensorboard", "runstate", "idle", "planned", "origin", "placement")
    + ("kernel_choice", "programs", "fits", "topology"),
    ("lane", "outcome", "branch", "start", "runner", "worker", "progress", "jobs", "pool", "launch")
    + ("stages", "report", "run", "held_out", "gating", "importance", "redundancy", "heads_text")
    + ("slots", "sinks", "convert", "shrink", "prune", "prune_text", "cli", "bench", "stream")
    + ("aot", "engines", "directories", "page", "maps"),
)
# Modules that may read less: beside themselves and the lowest layer only these.
ONLY: dict[str, set[str]] = {
    "attention": set(),
    "tasks": set(),
    "loss": {"tasks"},
    "optim": set(),
    "cost": {"layer_cost", "tasks"},
    "layer_cost": set(),
    "decode_cost": {"cost", "layer_cost", "tasks"},
    "presets": {"decode_cost", "tasks"},
    "accelerators": set(),
    "budget": {"accelerators", "cost", "decode_cost"},
    "blocks": {"attention"},
    "ends": {"attention", "blocks", "tasks"},
    "transformer": {"attention", "blocks", "ends", "tasks"},
    "analysis": {"attention", "tasks"},
    "given": {"tasks"},
    "sweep": {"changes", "idle", "keys", "load", "match", "members", "origin", "planned", "schema"},
    "planned": {"cost"},
    "origin": {"analysis", "changes", "keys", "planned", "schema"},
    "store": {"rows", "tasks"},
    "writer": {"records"},
    "checkpoint": {"manifest"},
    "report": {"analysis", "cost", "planned", "store", "tasks"},
    # It knows the workers by their command line, so that jax never enters its process.
    "launch": {"directories", "engines", "jobs", "planned", "pool", "progress", "report"}
    | {"runstate", "stages", "store", "sweep"},
    "engines": {"cost", "jobs", "planned"},
    "directories": {"planned", "store", "tensorboard"},
    "jobs": {"cost", "planned"},
    "stages": {"origin", "planned", "report", "store"},
    "pool": {"engines", "planned", "progress", "runstate"},
}
# They know what a TaskSpec says, and no task.
NO_TASK_MODULE = {"transformer", "model", "loss", "train", "evaluate", "group"}

ABSENT = ("jax", "flax", "optax", "orbax", "tensorstore", "torch", "matplotlib", "PIL", "pandas")


def test_every_import_goes_down() -> None:
    height = {name: i for i, names in enumerate(LAYERS) for name in names}
    wrong = []
    for module, imported, where in edges():
        if module == imported or "" in (module, imported):  # mha_jax itself is lazy
            continue
        missing = {module, imported} - height.keys()
        assert not missing, f"{where}: give {missing} a place in LAYERS of {Path(__file__).name}"
        if height[imported] > height[module]:
            wrong.append(f"{where}: {module} is below {imported}")
        if height[imported] and imported not in ONLY.get(module, height):
            wrong.append(f"{where}: {module} does not read {imported}, see ONLY in this test")
    assert not wrong, "\n".join(wrong)


def test_the_model_knows_no_task() -> None:
    wrong = [
        f"{where}: {module} reads {name}"
        for path in sorted(PACKAGE.rglob("*.py"))
        if (module := top(path)) in NO_TASK_MODULE
        for name, where in imports(path)
        if name.startswith("mha_jax.tasks.") and name.split(".")[2] in task_names()
    ]
    assert not wrong, "\n".join(wrong)


def test_no_import_cycle() -> None:
    graph: dict[str, set[str]] = {}
    for path in PACKAGE.rglob("*.py"):
        names = {name for name, _ in imports(path) if name.startswith("mha_jax.")}
        # The root imports nothing by itself: it is lazy.
        graph[dotted(path)] = {
            m for m in map(module_of, names) if m not in (dotted(path), "mha_jax")
        }
    state: dict[str, int] = {}

    def visit(module: str, trail: tuple[str, ...]) -> None:
        assert state.get(module) != 1, " -> ".join([*trail, module])
        if module not in state:
            state[module] = 1
            for name in sorted(graph.get(module, ())):
                visit(name, (*trail, module))
            state[module] = 2

    for module in sorted(graph):
        visit(module, ())


def test_configs_and_experiments_stand_alone() -> None:
    for path in itertools.chain(ROOT.glob("configs/*.py"), ROOT.glob("experiments/*.py")):
        for name, where in imports(path):
            allowed = name.split(".")[0] in {"configs", "ml_collections"} | sys.stdlib_module_names
            assert allowed, f"{where}: only configs, ml_collections and Python itself, not {name}"


@pytest.mark.smoke
def test_imports_without_jax() -> None:
    names = ["config", "schema", "load", "sweep", "cost", "store", "report", "launch"]
    names += ["report.pruning", "decode_cost", "presets", "accelerators", "budget", "kernel_rules"]
    names += [f"tasks.{name}" for name in task_names()]
    run_without(f"import importlib\nfor n in {names}: importlib.import_module('mha_jax.' + n)")


@pytest.mark.smoke
def test_tasks_answer_without_jax() -> None:
    run_without(
        """
from configs.base import get_config
from mha_jax import schema, tasks
for name in tasks.NAMES:
    config = get_config().to_dict()
    config["task"]["name"] = name
    run, problems = schema.resolve(config)
    assert not problems, problems
    task = run.static.task
    assert list(task.module.problems(task.config)) == []
    task.spec
    task.ceiling(run.static.model)
    for split in tasks.SPLITS:
        task.constants(split)
"""
    )


@pytest.mark.smoke
@pytest.mark.parametrize("arguments", ["--help", "--config=experiments/quickstart.py --dry_run"])
def test_sweep_command_answers_without_jax(arguments: str, tmp_path: Path) -> None:
    run_script("scripts/sweep.py", *arguments.split(), f"--workdir={tmp_path}")


@pytest.mark.smoke
def test_compare_answers_without_jax(tmp_path: Path) -> None:
    make_run(tmp_path / "a", static("copy", 2), 0.5)
    make_run(tmp_path / "b", static("copy", 2, model={"positions": "rope"}), 0.5)
    for arguments in (["--help"], [str(tmp_path / "a"), str(tmp_path / "b")]):
        run_script("scripts/compare.py", *arguments)


@pytest.mark.smoke
def test_plan_answers_without_jax() -> None:
    run_script("scripts/plan.py", "--help")
    run_script("scripts/plan.py", "--preset=all", "--config=configs/text.py", "--accelerator=h200")


def test_package_runs_no_foreign_code() -> None:
    """No loader in the package can be made to run code by a file that it reads."""
    loaders = {"pickle", "cPickle", "marshal", "shelve", "dill", "cloudpickle", "joblib"}
    wrong = []
    for path in PACKAGE.rglob("*.py"):
        wrong += [where for name, where in imports(path) if name.split(".")[0] in loaders]
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in (
                *("eval", "exec", "compile", "__import__"),
                *("yaml.load", "yaml.unsafe_load", "os.system", "os.popen"),
            ):
                wrong.append(f"{path.relative_to(ROOT)}:{node.lineno} {ast.unparse(node.func)}")
            if isinstance(node, ast.keyword) and ast.unparse(node) in (
                "allow_pickle=True",
                "shell=True",
            ):
                wrong.append(f"{path.relative_to(ROOT)}:{node.value.lineno} {ast.unparse(node)}")
    assert not wrong, "\n".join(wrong)


def test_files_hold_no_registry_and_no_machine() -> None:
    """No address of a package registry, and no path of the machine that a file was written on."""
    patterns = (
        r"https?://[^\s\"']*(pypi|pythonhosted|download\.pytorch)",
        r"(index-url|find-links|trusted-host)\b",
        r"file:///",
        r"(?<![\w.])/(root|home|Users|work|opt)/",
    )
    wrong = [
        f"{path.relative_to(ROOT)}:{number} {line.strip()}"
        for path in committed()
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if any(re.search(pattern, line) for pattern in patterns) and path != Path(__file__)
    ]
    assert not wrong, "\n".join(wrong)


def test_modules_are_short() -> None:
    lengths = {path: path.read_text(encoding="utf-8").count("\n") for path in PACKAGE.rglob("*.py")}
    long = [f"{path.relative_to(ROOT)} has {n} lines" for path, n in lengths.items() if n > 250]
    assert not long, "a module over 250 lines has two jobs: " + ", ".join(long)


def edges() -> Iterator[tuple[str, str, str]]:
    """(module, imported module, file:line), named by the part under mha_jax; "" is its root."""
    for path in sorted(PACKAGE.rglob("*.py")):
        for name, where in imports(path):
            if name.split(".")[0] == "mha_jax":
                parts = module_of(name).split(".")
                yield top(path), parts[1] if len(parts) > 1 else "", where


def imports(path: Path) -> Iterator[tuple[str, str]]:
    """(dotted name, file:line) of every import in a file, at any depth; `from a import b`: a.b."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        where = f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}"
        if isinstance(node, ast.Import):
            yield from ((alias.name, where) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{where}: write the import from mha_jax on"
            yield from ((f"{node.module}.{alias.name}", where) for alias in node.names)


def module_of(name: str) -> str:
    """The module that a dotted name below mha_jax stands in: `mha_jax.config.Run` -> its config."""
    parts = name.split(".")
    while parts:
        path = ROOT.joinpath(*parts)
        if path.with_suffix(".py").exists() or (path / "__init__.py").exists():
            return ".".join(parts)
        parts.pop()
    raise AssertionError(f"{name} is no module of this project")


def dotted(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def top(path: Path) -> str:
    """The name under mha_jax that a file belongs to: `tasks` for mha_jax/tasks/taps.py."""
    parts = dotted(path).split(".")
    return parts[1] if len(parts) > 1 else ""


def task_names() -> tuple[str, ...]:
    from mha_jax.tasks import NAMES

    return NAMES


def committed() -> Iterator[Path]:
    """The text files of the project; known folders, so that it works outside of git too."""
    folders = ["mha_jax", "configs", "experiments", "scripts", "tests", "docs", "requirements"]
    folders += [".ci"]
    found = [path for folder in folders for path in (ROOT / folder).rglob("*")]
    for path in [*found, *ROOT.iterdir()]:
        binary = path.suffix in (".png", ".npz", ".pyc", ".ico", ".gz")
        if path.is_file() and not binary and "__pycache__" not in path.parts:
            yield path


def run_script(*argv: str) -> None:
    run_without(
        f"""
import runpy
sys.path.insert(0, "scripts")
sys.argv = {list(argv)}
try:
    runpy.run_path(sys.argv[0], run_name="__main__")
except SystemExit as stop:
    assert not stop.code, stop.code
"""
    )


def run_without(code: str) -> None:
    """Runs code in a Python in which jax, and what else is slow to import, cannot be imported."""
    block = f"import sys\nsys.modules.update(dict.fromkeys({ABSENT}))\n"
    command = [sys.executable, "-W", "error", "-c", block + code]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr

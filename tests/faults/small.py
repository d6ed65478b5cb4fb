"""The tiny sweep of the suite, its launch as a process, and what must be equal when it is over."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
INJECT = Path(__file__).parent / "inject"
NAME = "small"  # the experiment: its files are in <workdir>/small
N_STEPS, SAVE_EVERY = 600, 20
SLOW = {"name": "slow", "by_s": 0.05}  # a fault that gives time to aim
# Dispatches are of ten steps.
_BROKEN_OFF_AT, _HELD_AT = 240, 26
_PATIENCE_S = 600.0  # no launch of the tiny sweep takes as long, however busy the machine is
_CONFIG = f"""
from configs import base

def get_config(arg=None):
    config = base.get_config()
    config.experiment = "{NAME}"
    config.task.name = "taps"
    config.model.qk_from = "positions"
    config.model.d_model = 8
    config.model.n_heads = 2
    config.train.n_steps = {N_STEPS}
    config.train.batch_size = 8
    config.train.eval_every = 60
    config.train.n_eval = config.train.n_test = config.train.n_probe = 16
    config.optim.warmup_steps = 5
    config.probe.every = 100
    config.log.every = 10
    config.log.checkpoint_every = {SAVE_EVERY}
    return config

def sweep(add):
    for seed in (0, 1):
        add({{"train.seed": seed, "train.data_seed": seed}})
"""
_TABLES = ("runs.csv", "frontier.csv", "comparisons.csv", "heads.csv", "order.txt")
_TABLES += ("over_time.csv", "rises.csv")


def write(directory: Path) -> Path:
    """The config file of a sweep of two runs, which two workers train on two cores."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{NAME}.py"
    path.write_text(_CONFIG)
    return path


class Ended(NamedTuple):
    """A process that is over."""

    code: int
    out: str
    err: str
    seconds: float

    def wrong(self, *codes: int) -> list[str]:
        """What no launch may do, and another exit code than one of `codes`."""
        found = []
        if self.code not in codes:
            said = (self.err.strip() or self.out.strip()).splitlines()[-1:]
            wanted = " or ".join(map(str, codes))
            found.append(f"exit code {self.code} instead of {wanted} ({' '.join(said)[:200]})")
        if "Traceback" in self.out + self.err:
            found.append("a traceback")
        return found


def start(
    config: Path,
    workdir: Path,
    *flags: str,
    faults: Sequence[Mapping[str, Any]] = (),
    env: Mapping[str, str] | None = None,
    script: str = "sweep.py",
) -> subprocess.Popen[str]:
    """A launch in a process group of its own, with two workers, however many cores there are.

    Args:
      config: the config file.
      workdir: for --workdir.
      flags: more of the command line.
      faults: what goes wrong inside of its processes: see `inject/sitecustomize.py`.
      env: replaces variables of the environment.
      script: of the folder scripts.
    """
    asked = [*json.loads(os.environ.get("MHA_FAULTS", "[]")), *faults]
    path = os.pathsep.join(filter(None, [str(INJECT), os.environ.get("PYTHONPATH")]))
    workers = [] if any(flag.startswith("--workers") for flag in flags) else ["--workers=2"]
    cache = os.environ.get("JAX_COMPILATION_CACHE_DIR") or str(config.parent.parent / "cache")
    return subprocess.Popen(
        [
            sys.executable,
            str(ROOT / "scripts" / script),
            f"--config={config}",
            f"--workdir={workdir}",
            *workers,
            *flags,
        ],
        cwd=config.parent,
        env={
            **os.environ,
            "JAX_PLATFORMS": "cpu",
            "JAX_COMPILATION_CACHE_DIR": cache,
            "PYTHONPATH": path,
            "MHA_FAULTS": json.dumps(asked),
            **(env or {}),
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
        errors="replace",
        start_new_session=True,
    )


def finish(process: subprocess.Popen[str], patience_s: float = _PATIENCE_S) -> Ended:
    """Waits for the end of a launch; one that does not end is killed, with code -9."""
    begun = time.monotonic()
    try:
        out, err = process.communicate(timeout=patience_s)
    except subprocess.TimeoutExpired:
        kill(process)
        out, err = process.communicate()
    return Ended(process.returncode, out, err, time.monotonic() - begun)


def launch(config: Path, workdir: Path, *flags: str, **options: Any) -> Ended:
    """`start` and `finish`."""
    return finish(start(config, workdir, *flags, **options))


def again(config: Path, workdir: Path) -> Ended:
    """The same command after a fault. What was tried twice in vain is not tried again before its
    summary.json is deleted, as the launch says; so it is."""
    ended = launch(config, workdir)
    if ended.code == 1 and "not tried again" in ended.out:
        for path in workdir.glob("*/*/summary.json"):
            if json.loads(path.read_bytes())["status"] == "failed":
                path.unlink()
        ended = launch(config, workdir)
    return ended


def kill(process: subprocess.Popen[str]) -> None:
    """Kills a launch with its workers, and waits until they are gone."""
    with_workers = [process.pid, *children(process.pid)]
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    wait_for(lambda: not any(map(_alive, with_workers[1:])), 30)


def children(pid: int) -> list[int]:
    """The processes that a process has started: the workers of a launcher."""
    try:
        told = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    except OSError:
        return []
    return [int(word) for word in told.split()]


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_for(
    there: Callable[[], Any], patience_s: float = _PATIENCE_S, pause_s: float = 0.01
) -> Any:
    """What `there` says as soon as that is something, or at the end of the patience."""
    deadline = time.monotonic() + patience_s
    while not (found := there()) and time.monotonic() < deadline:
        time.sleep(pause_s)
    return found


@functools.cache
def unbroken(root: Path) -> tuple[Path, float]:
    """The tiny sweep that nothing happened to, and the seconds that it took; trained once."""
    config = write(root / "unbroken")
    ended = launch(config, root / "unbroken" / "out")
    if ended.code:
        raise RuntimeError(f"without a fault: exit code {ended.code}\n{ended.out}\n{ended.err}")
    return root / "unbroken" / "out" / NAME, ended.seconds


@functools.cache
def _broken_off(root: Path) -> Path:
    config, out = write(root / "broken_off"), root / "broken_off" / "out"
    process = start(config, out, faults=[{"name": "hold", "at": _HELD_AT}])
    # The records of the dispatch before are written, and so is the checkpoint before that.
    wait_for(lambda: progress(out / NAME) >= 2 * _BROKEN_OFF_AT or process.poll() is not None)
    kill(process)
    process.communicate()
    if set(saved(out / NAME).values()) != {_BROKEN_OFF_AT}:
        raise RuntimeError(f"it could not be broken off: {saved(out / NAME)}")
    return out / NAME


def broken_off(root: Path, workdir: Path) -> Path:
    """A copy, below `workdir`, of a sweep that was killed when both runs had three checkpoints, and
    records of later steps."""
    shutil.copytree(_broken_off(root), workdir / NAME)
    return workdir / NAME


def progress(root: Path) -> int:
    """The newest saved steps of all runs, added up."""
    return sum(saved(root).values())


def runs(root: Path) -> list[Path]:
    """The run directories of a sweep."""
    return sorted(path.parent for path in root.glob("*/config.json"))


def saved(root: Path) -> dict[str, int]:
    """The newest acknowledged step of each run: its checkpoint has its name."""
    found: dict[str, int] = {}
    for path in root.glob("*/checkpoints/*/manifest.json"):
        if path.parent.name.isdecimal():
            run = path.parents[2].name
            found[run] = max(int(path.parent.name), found.get(run, 0))
    return found


def rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a metrics.jsonl, without what a clock measured."""
    found = []
    for line in path.read_bytes().splitlines():
        row = json.loads(line)
        found.append({key: value for key, value in row.items() if not key.startswith("time/")})
    return found


def state(directory: Path) -> tuple[int, bytes]:
    """The step of a run's newest checkpoint and the bytes of its arrays, as they are in the files.

    Read without the product: what it makes of a checkpoint is in question.
    """
    newest = max(int(p.name) for p in (directory / "checkpoints").iterdir() if p.name.isdecimal())
    home = directory / "checkpoints" / str(newest)
    named = json.loads((home / "manifest.json").read_bytes())["data"]
    return newest, (home / named / "state" / "0").read_bytes()


def run_differences(run: Path, whole: Path) -> list[str]:
    """What a run that is over has otherwise than the same run that nothing happened to."""
    found = []
    for name, read in {
        "the final state": state,
        "metrics.jsonl": lambda d: rows(d / "metrics.jsonl"),
        "heads.csv": lambda d: (d / "heads.csv").read_bytes(),
        "indices.json": lambda d: (d / "indices.json").read_bytes(),
        "summary.json": _summary,
    }.items():
        try:
            if read(run) != read(whole):
                found.append(f"{run.name}: {name} differs")
        except (OSError, ValueError, KeyError) as error:
            found.append(f"{run.name}: {name}: {type(error).__name__} {error}")
    return found


def differences(root: Path, whole: Path) -> list[str]:
    """What a sweep that is over has otherwise than the same sweep that nothing happened to."""
    found = []
    if [path.name for path in runs(root)] != [path.name for path in runs(whole)]:
        found.append("other run directories")
    for directory in runs(whole):
        found += run_differences(root / directory.name, directory)
    for name in _TABLES:
        if not (root / name).exists():
            found.append(f"{name} is missing")
        elif (root / name).read_bytes() != (whole / name).read_bytes():
            found.append(f"{name} differs")
    found += [f"{path} is left over" for path in root.glob("*/checkpoints/*.tmp")]
    return found


def _summary(directory: Path) -> dict[str, Any]:
    """summary.json without what a clock measured and how often the run was tried."""
    told = json.loads((directory / "summary.json").read_bytes())
    return {key: told[key] for key in told if key not in ("timing", "attempts", "sha256", "files")}


def contents(directory: Path) -> dict[str, bytes | None]:
    """Every file below a directory, and the directories."""
    return {
        str(path.relative_to(directory)): path.read_bytes() if path.is_file() else None
        for path in directory.rglob("*")
    }

"""The tiny sweep of the suite, and its launch as a process."""

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

from tests.faults import results

ROOT = Path(__file__).resolve().parents[2]
INJECT = Path(__file__).parent / "inject"
NAME = "small"  # the experiment: its files are in <workdir>/small
N_STEPS, SAVE_EVERY = 600, 20
SLOW = {"name": "slow", "by_s": 0.05}  # a fault that gives time to aim
# Dispatches are of ten steps.
_BROKEN_OFF_AT, _HELD_AT = 240, 26
_started: list[subprocess.Popen[str]] = []
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
    process = subprocess.Popen(
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
    _started.append(process)
    return process


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


def stop() -> None:
    """Ends what was started and is not over: where the suite itself is interrupted."""
    for process in _started:
        if process.poll() is None:
            kill(process)


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
    wait_for(
        lambda: results.progress(out / NAME) >= 2 * _BROKEN_OFF_AT or process.poll() is not None
    )
    kill(process)
    process.communicate()
    if set(results.saved(out / NAME).values()) != {_BROKEN_OFF_AT}:
        raise RuntimeError(f"it could not be broken off: {results.saved(out / NAME)}")
    return out / NAME


def broken_off(root: Path, workdir: Path) -> Path:
    """A copy, below `workdir`, of a sweep that was killed when both runs had three checkpoints, and
    records of later steps."""
    shutil.copytree(_broken_off(root), workdir / NAME)
    return workdir / NAME

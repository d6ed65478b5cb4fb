"""Settings of the process that must be made before jax starts, and a record of them. Imports no
jax.

On a CPU, XLA allocates its whole temporary buffer anew at each call, and glibc hands it back to the
kernel each time: page faults then cost more than dispatch. Keeping freed memory in one arena, on
huge pages, makes small training steps up to 1.7 times faster. Huge pages must be asked for before a
process starts: workers are started so, and a script that computes starts itself again once.
`MHA_JAX_HOST=plain` leaves the process as it is.
"""

from __future__ import annotations

import ctypes
import fcntl
import glob
import hashlib
import importlib.util
import os
import platform
import sys
import tempfile
from collections.abc import Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

HUGE_PAGES = "glibc.malloc.hugetlb=1"
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8  # malloc.h


def accelerator() -> bool:
    """Whether jax would find a GPU or TPU here, told without importing it."""
    wanted = os.environ.get("JAX_PLATFORMS", "")
    if wanted:
        return wanted.split(",")[0] != "cpu"
    gpu = any(importlib.util.find_spec(f"jax_cuda{v}_plugin") for v in (12, 13)) and glob.glob(
        "/dev/nvidia[0-9]*"
    )
    tpu = importlib.util.find_spec("libtpu") and (
        glob.glob("/dev/accel[0-9]*") or glob.glob("/dev/vfio/[0-9]*")
    )
    return bool(gpu or tpu)


def cores() -> list[int]:
    """The cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def _tunes_memory() -> bool:
    plain = os.environ.get("MHA_JAX_HOST") == "plain"
    return not plain and platform.libc_ver()[0] == "glibc" and not accelerator()


def _tunables(environ: Mapping[str, str]) -> dict[str, str]:
    """What an environment needs for huge pages; {} where they are not wanted, or the user has
    chosen."""
    set_already = environ.get("GLIBC_TUNABLES", "")
    if not _tunes_memory() or "glibc.malloc.hugetlb" in set_already:
        return {}
    return {"GLIBC_TUNABLES": f"{set_already}:{HUGE_PAGES}".removeprefix(":")}


def restart() -> None:
    """Starts this process again, once, with huge pages, and keeps freed memory in it. The first
    thing that a script which computes in its own process does.
    """
    if tunables := _tunables(os.environ):
        os.execve(sys.executable, sys.orig_argv, os.environ | tunables)
    prepare(None)


def child_environment(cache_dir: Path, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment of a worker process: huge pages for malloc and a persistent compile cache.

    Args:
      cache_dir: of compiled programs.
      environ: what it is made of.
    """
    env = dict(environ)
    # Workers run the code that planned the sweep, wherever they are started and whatever else is
    # installed.
    root, path = str(Path(__file__).parents[1]), env.get("PYTHONPATH")
    env["PYTHONPATH"] = os.pathsep.join([root, path]) if path else root
    env.setdefault("JAX_COMPILATION_CACHE_DIR", str(cache_dir))
    env.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    env.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")
    return env | _tunables(env)


def free_core(directory: Path | None = None) -> int:
    """A core that no other process has which asked in this way: it is this process's until its end.
    Where all are taken, one of them.

    Args:
      directory: of this machine alone, for the locks; None: one for this user's temporary files.
    """
    if directory is None:
        directory = Path(tempfile.gettempdir()) / f"mha_jax-cores-{os.getuid()}"
    directory.mkdir(mode=0o700, exist_ok=True)
    for core in cores():
        file = os.open(directory / str(core), os.O_CREAT | os.O_RDWR, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return core  # the file stays open: the lock goes with it
        except BlockingIOError:
            os.close(file)
    return cores()[os.getpid() % len(cores())]


def prepare(cpu: int | None) -> dict[str, Any]:
    """Pins this process to one core and keeps freed memory in the process. Call before importing
    jax.

    Args:
      cpu: the core; None leaves the process on all of them.

    Returns:
      What was done, for `run.json`.
    """
    done: dict[str, Any] = {"pinned": False, "malloc": False}
    if cpu is not None and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {cpu})
        done["pinned"] = True
    if _tunes_memory():
        libc = ctypes.CDLL(None)
        settings = (
            (_M_MMAP_THRESHOLD, 1 << 30),
            (_M_TRIM_THRESHOLD, 2**31 - 1),
            (
                _M_ARENA_MAX,
                1,
            ),  # without it the thresholds do nothing: XLA allocates from another arena
        )
        done["malloc"] = all([libc.mallopt(key, value) == 1 for key, value in settings])
    done["huge_pages"] = HUGE_PAGES in os.environ.get("GLIBC_TUNABLES", "") and _has_huge_pages()
    return done


def _has_huge_pages() -> bool:
    """Whether the kernel gives huge pages to those who ask."""
    try:
        return "[never]" not in Path("/sys/kernel/mm/transparent_hugepage/enabled").read_text()
    except OSError:
        return False


@cache
def source_digest() -> str:
    """First ten hex digits of the SHA-256 of the package's source."""
    root = Path(__file__).parent
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:10]


def describe(device: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """What `run.json` records of a process.

    Args:
      device: the accelerator or "cpu", as jax names its kind.
      settings: what `prepare` returned.
    """
    names = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy", "mha_jax")
    versions = {"python": platform.python_version()}
    for name in names:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = "not installed"
    return {
        "versions": versions,
        "device": device,
        "threads": len(cores()),
        "host": dict(settings),
        "platform": f"{sys.platform} {platform.machine()}",
        "source": source_digest(),
    }

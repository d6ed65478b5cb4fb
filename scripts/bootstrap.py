"""Makes the virtual environment that `scripts/quickstart` and `scripts/test` run in.

Standard library only. The version check below must be readable for any Python 3, so the syntax
of this file and of the two scripts stays that of Python 3.6.

An environment is made by this file, or is not touched: its stamp says for which Python, directory
and locks, and whether the set-up was finished. An unfinished or outdated one is made again.

    python3 scripts/bootstrap.py [core|dev]     only make the environment, print its interpreter
"""

import sys

if sys.version_info < (3, 11):  # noqa: UP036  the very point: older ones get a clear line
    sys.stderr.write(
        "mha_jax needs Python 3.11 or newer, and {} is Python {}.{}; run this with a newer one, "
        "for example: python3.11 {}\n".format(
            sys.executable, sys.version_info[0], sys.version_info[1], " ".join(sys.argv)
        )
    )
    sys.exit(2)

import contextlib
import fcntl
import hashlib
import json
import os
import shlex
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
REQUIREMENTS = ROOT / "requirements"
STAMP = "mha_jax-setup.json"


class SetupError(Exception):
    """The environment cannot be made; the message says why and what to do."""


def main() -> int:
    """Makes the environment of the lock named on the command line and prints its interpreter."""
    lock = sys.argv[1] if len(sys.argv) > 1 else "core"
    if lock not in ("core", "dev") or len(sys.argv) > 2:
        say(f"usage: {sys.argv[0]} [core|dev]")
        return 2
    print(python_of(lock))
    return 0


def python_of(lock: str) -> Path:
    """The interpreter of an environment that holds `requirements/lock-<lock>.txt`.

    The directory is `.venv`, or what MHA_JAX_VENV says. An up-to-date environment is found by its
    stamp alone. On failure prints one line and exits with 2.
    """
    venv = Path(os.environ.get("MHA_JAX_VENV") or ROOT / ".venv").absolute()
    try:
        if not is_ready(venv, lock):
            with _one_at_a_time():
                if not is_ready(venv, lock):  # another process may have made it meanwhile
                    make(venv, lock)
    except (SetupError, OSError) as error:
        say(f"set-up failed: {error}")
        sys.exit(2)
    except KeyboardInterrupt:
        say("set-up interrupted; the next call starts it again")
        sys.exit(130)
    return venv / "bin" / "python"


def is_ready(venv: Path, lock: str) -> bool:
    """Whether the set-up of this directory was finished, for these locks and this Python.

    The dev lock holds everything in the core lock, so its environment serves both.
    """
    stamp = _read_stamp(venv)
    wanted = [_stamp(name, done=True) for name in ("core", "dev")[lock == "dev" :]]
    return stamp in wanted and (venv / "bin" / "python").exists()


def make(venv: Path, lock: str) -> None:
    """Makes or updates the environment.

    Raises:
      SetupError: a step failed, or the directory is not one that this file made.
    """
    start = time.perf_counter()
    _remove_unusable(venv)
    before = _read_stamp(venv)
    venv.mkdir(parents=True, exist_ok=True)
    _write_stamp(venv, _stamp(lock, done=False))  # from here on a killed set-up is recognised
    if before is None:
        say(f"making {venv} with Python {'.'.join(map(str, sys.version_info[:3]))}")
        # The base interpreter: the running one may be inside the directory that is made again.
        base = getattr(sys, "_base_executable", sys.executable)
        if not _run([base, "-m", "venv", venv]):
            raise SetupError(
                f"'{base} -m venv' failed, see above; on Debian and Ubuntu the package "
                "python3-venv holds it"
            )
    say(f"installing requirements/lock-{lock}.txt")
    try:
        _install(venv / "bin" / "python", REQUIREMENTS / f"lock-{lock}.txt")
    except SetupError:
        # Both installers download everything before they change anything: what was there works.
        if before is not None:
            _write_stamp(venv, before)
        raise
    _write_stamp(venv, _stamp(lock, done=True))
    say(f"ready after {time.perf_counter() - start:.0f} s")


def _remove_unusable(venv: Path) -> None:
    """Deletes an environment that this file made and cannot update; refuses any other directory."""
    if not venv.exists() and not venv.is_symlink():
        return
    stamp = _read_stamp(venv)
    if stamp is None:
        if venv.is_dir() and not any(venv.iterdir()):
            venv.rmdir()
            return
        raise SetupError(
            f"{venv} was not made by this script and is left as it is; move it away, "
            "or name another directory: MHA_JAX_VENV=DIR"
        )
    current = _stamp("core", done=True)
    if not stamp.get("done"):
        reason = "its set-up was not finished"
    elif not (venv / "bin" / "python").exists():
        reason = "its Python is gone"
    elif stamp.get("python") != current["python"]:
        reason = f"it is for Python {stamp.get('python')}, this is {current['python']}"
    elif stamp.get("root") != current["root"]:
        reason = f"it was made for {stamp.get('root')}"
    else:
        return  # older locks: updated in place
    say(f"making {venv} again: {reason}")
    try:
        shutil.rmtree(venv)
    except OSError as error:
        raise SetupError(f"cannot delete {venv}: {error}") from None


def _install(python: Path, lock: Path) -> None:
    """Installs a lock and the project itself, by uv if it can be had, else by pip.

    What the user added to the environment stays: nothing is uninstalled but other versions.
    """
    quiet = [] if sys.stderr.isatty() else ["--quiet"]
    pip = [python, "-m", "pip", "install", *quiet, "--disable-pip-version-check"]
    # Without isolation: the build backend is in the lock, so nothing unpinned is fetched.
    project = ["--no-deps", "--no-build-isolation", "--editable", ROOT]
    if _run([*pip, "--require-hashes", "--requirement", REQUIREMENTS / "uv.txt"]):
        uv = [python.parent / "uv", "pip", "install", *quiet, "--python", python]
        locked = ["--require-hashes", "--compile-bytecode", "--requirement", lock]
        if _run([*uv, *locked]) and _run([*uv, *project]):
            return
    say("uv could not install it, see above; trying plain pip")
    locked = ["--require-hashes", "--requirement", lock]
    if not (_run([*pip, *locked]) and _run([*pip, *project])):
        raise SetupError("pip could not install it either, see above; is the network up?")


def _run(command: list) -> bool:
    """Runs a command and says whether it went well; on failure shows what was run."""
    command = [str(part) for part in command]
    # Packages that another environment offers must not pass for installed.
    elsewhere = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
    env = {key: value for key, value in os.environ.items() if key not in elsewhere}
    done = subprocess.run(
        command, cwd=ROOT, env=env, stdin=subprocess.DEVNULL, stdout=sys.stderr, close_fds=False
    )
    if done.returncode:
        say(f"exit code {done.returncode} from: {shlex.join(command)}")
    return done.returncode == 0


@contextlib.contextmanager
def _one_at_a_time() -> Iterator[None]:
    """Holds a lock on the requirements directory, so that two set-ups do not mix.

    Children inherit it: if this process is killed, an installer that lives on still holds it.
    """
    fd = os.open(REQUIREMENTS, os.O_RDONLY)
    os.set_inheritable(fd, True)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("waiting for another set-up of this directory")
            fcntl.flock(fd, fcntl.LOCK_EX)
        except OSError:  # a file system without locks
            pass
        yield
    finally:
        os.close(fd)


def _stamp(lock: str, done: bool) -> dict:
    """What the stamp of an environment for this Python, directory and lock says."""
    digest = hashlib.sha256()
    for name in (f"lock-{lock}.txt", "uv.txt"):
        digest.update((REQUIREMENTS / name).read_bytes())
    return {
        "done": done,
        "python": "{}.{}".format(*sys.version_info[:2]),
        "root": str(ROOT),
        "lock": lock,
        "sha256": digest.hexdigest(),
    }


def _read_stamp(venv: Path) -> dict | None:
    try:
        stamp = json.loads((venv / STAMP).read_text(encoding="utf-8"))
    except OSError:
        return None
    except ValueError:  # cut short
        return {}
    return stamp if isinstance(stamp, dict) else {}


def _write_stamp(venv: Path, stamp: dict) -> None:
    (venv / STAMP).write_text(json.dumps(stamp, indent=1) + "\n", encoding="utf-8")


def say(line: str) -> None:
    """One line of progress on stderr, where the output of the command itself does not go."""
    print(f"mha_jax: {line}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())

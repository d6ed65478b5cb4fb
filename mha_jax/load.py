"""A config file and the command line's overrides, read into a plain dict.

This is the only place that runs a user's Python. Whatever is wrong with the file, or happens in it,
becomes a `Problem` with file and line. Only KeyboardInterrupt passes. Imports no jax.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import importlib.machinery
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from mha_jax.keys import all_keys, find, put
from mha_jax.values import ABSENT, Problem, blame, nearest, parse, shorten

ROOT = Path(__file__).resolve().parent.parent  # holds `configs`, which config files import
Noted = dict[tuple[int, str], bool]  # id of a ConfigDict, key -> the bool that was set
_MODULE = "mha_jax_config_file"  # name the user's file gets while it runs


@dataclasses.dataclass
class LoadedConfig:
    """What a config file and the overrides say."""

    path: str
    arg: str | None
    config: dict[str, Any] | None  # nested, plain, not checked yet; None: get_config gave none
    sweep: Callable[..., Any] | None
    name: str  # of the experiment: `config.experiment`, or the name of the file
    source_sha: str  # SHA-256 of the file, hex; "" if it could not be read
    overrides: dict[str, Any]  # dotted key -> value, from the command line
    problems: list[Problem]


def load(path: str, arg: str | None = None, overrides: Sequence[str] = ()) -> LoadedConfig:
    """Reads a config file.

    Args:
      path: of a Python file that holds `get_config(arg)`, and perhaps `sweep(add)`.
      arg: what follows the colon of `--config=file.py:arg`; None: there is no colon.
      overrides: "model.n_heads=8", ...: read by the kind of the key, then set in the config.
    """
    loaded = LoadedConfig(path, arg, None, None, Path(path).stem, "", {}, [])
    with _noted_bools() as noted:
        try:
            source, module = _run_file(path)
        except Refused as refused:
            loaded.problems.append(refused.problem)
            return loaded
        loaded.source_sha = hashlib.sha256(source).hexdigest()
        loaded.problems += _get_config(loaded, module, noted)
    sweep = getattr(module, "sweep", None)
    if sweep is not None and not callable(sweep):
        wrong = f"in {shorten(path)} must be a function; write def sweep(add): ..."
        loaded.problems.append(Problem("sweep", sweep, wrong))
    elif sweep is not None:
        loaded.sweep = sweep
    if loaded.config is not None:
        _override(loaded, loaded.config, overrides)
        if loaded.config.get("experiment") == "":
            loaded.config["experiment"] = loaded.name
        elif isinstance(loaded.config.get("experiment"), str):
            loaded.name = loaded.config["experiment"]
    return loaded


class Refused(Exception):
    """Carries a problem out of the user's code."""

    def __init__(self, problem: Problem):
        super().__init__(str(problem))
        self.problem = problem


class _Source(importlib.machinery.SourceFileLoader):
    """Runs bytes that were read before, without a bytecode cache, which could be of older text."""

    def __init__(self, path: str, source: bytes):
        super().__init__(_MODULE, path)
        self.source = source

    def get_data(self, path: str) -> bytes:
        return self.source

    def path_stats(self, path: str) -> Any:
        raise OSError("no bytecode cache")


def _run_file(path: str) -> tuple[bytes, Any]:
    """The text of a config file and the module it makes."""
    fix = "give a config file, such as experiments/quickstart.py"
    if not path.endswith(".py"):
        raise Refused(Problem("--config", path, f"must be a Python file that ends with .py; {fix}"))
    try:
        if not Path(path).exists():
            raise Refused(Problem("--config", path, f"is not there; {fix}"))
        if not Path(path).is_file():  # reading a pipe could wait for ever
            raise Refused(Problem("--config", path, f"is not a regular file; {fix}"))
        source = Path(path).read_bytes()
    except (OSError, ValueError) as error:  # ValueError: a null byte in the path
        reason = getattr(error, "strerror", None) or error
        raise Refused(Problem("--config", path, f"cannot be read ({reason}); {fix}")) from None
    name = str(Path(path).resolve())
    for place in (str(Path(name).parent), str(ROOT)):  # modules beside it, and ours before them
        if place not in sys.path:
            sys.path.insert(0, place)
    spec = importlib.util.spec_from_file_location(_MODULE, name, loader=_Source(name, source))
    assert spec is not None and spec.loader is not None
    module = sys.modules[_MODULE] = importlib.util.module_from_spec(spec)
    with user_code("--config", path, name):
        spec.loader.exec_module(module)
    return source, module


@contextlib.contextmanager
def user_code(key: str, path: str, name: str) -> Iterator[None]:
    """Turns what the user's code raises into a problem; what it prints goes to stderr.

    Args:
      key: of the problem.
      path: value of the problem.
      name: the user's file, as frames of its code name it.

    Raises:
      Refused: with the problem.
    """
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    except (KeyboardInterrupt, Refused):
        raise
    except BaseException as error:  # SystemExit too: a config must not end the program
        raise Refused(Problem(key, path, f"failed; repair it: {blame(error, name)}")) from None


@contextlib.contextmanager
def _noted_bools() -> Iterator[Noted]:
    """Notes the bools that are set in a ConfigDict: it turns True on a float into a silent 1.0."""
    noted: Noted = {}
    plain = ConfigDict.__setitem__

    def noting(self: ConfigDict, key: str, value: Any) -> None:
        noted.pop((id(self), key), None)
        if isinstance(value, bool):
            noted[id(self), key] = value
        plain(self, key, value)

    ConfigDict.__setitem__ = noting
    try:
        yield noted
    finally:
        ConfigDict.__setitem__ = plain


def _as_given(config: ConfigDict, plain: dict[str, Any], noted: Noted) -> dict[str, Any]:
    """The plain dict of a ConfigDict, with the bools that had become floats."""
    for key, value in plain.items():
        if isinstance(value, dict):
            _as_given(config[key], value, noted)
        elif isinstance(value, float):
            plain[key] = noted.get((id(config), key), value)
    return plain


def _get_config(loaded: LoadedConfig, module: Any, noted: Noted) -> list[Problem]:
    """Calls the file's get_config and stores what it returns as a plain dict."""
    path = shorten(loaded.path)
    get_config = getattr(module, "get_config", None)
    if not callable(get_config):
        wrong = f"is missing in {path}; define get_config(arg=None) there"
        return [Problem("get_config", ABSENT, wrong)]
    try:
        with user_code("--config", loaded.path, module.__file__ or loaded.path):
            args: tuple[str | None, ...] = (loaded.arg,)
            try:
                inspect.signature(get_config).bind(*args)
            except TypeError:
                if loaded.arg is not None:
                    wrong = f"has an argument, but get_config in {path} takes none; drop it"
                    return [Problem("--config", f"{loaded.path}:{loaded.arg}", wrong)]
                args = ()
            config = get_config(*args)
            if isinstance(config, ConfigDict):
                loaded.config = _as_given(config, config.to_dict(), noted)
                return []
    except Refused as refused:
        return [refused.problem]
    wrong = f"in {path} must return a ConfigDict, not {type(config).__name__}"
    return [Problem("get_config", ABSENT, f"{wrong}; end it with `return config`")]


def _override(loaded: LoadedConfig, config: dict[str, Any], overrides: Sequence[str]) -> None:
    """Sets "key=value" texts in the config."""
    for text in overrides:
        key, equals, value = text.partition("=")
        flag = f"--config.{key}"
        spec = find(key)
        if spec is None:
            fix = nearest(key, all_keys()) or "; configs/base.py lists all keys"
            loaded.problems.append(
                Problem(flag, value if equals else ABSENT, f"is no config key{fix}")
            )
        elif not equals:
            loaded.problems.append(Problem(flag, ABSENT, f"has no value; write {flag}=<value>"))
        elif key in loaded.overrides:
            loaded.problems.append(Problem(flag, value, "is given twice; keep one"))
        else:
            loaded.overrides[key] = parse(spec, value)
            if not put(config, key, loaded.overrides[key]):
                wrong = "has no place in this config; start from base.get_config()"
                loaded.problems.append(Problem(flag, value, wrong))

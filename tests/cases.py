"""Configs for tests: the defaults of configs/base.py with a few dotted keys changed."""

from pathlib import Path
from typing import Any

from configs import base
from mha_jax import keys, schema
from mha_jax.config import Run


def config_of(overrides: dict[str, Any] | None = None) -> dict[str, Any]:
    """The nested default config with these dotted keys set, right or wrong."""
    config = base.get_config().to_dict()
    for key, value in (overrides or {}).items():
        assert keys.put(config, key, value), f"{key} has no place"
    return config


def run_of(overrides: dict[str, Any] | None = None) -> Run:
    """The run of a config that must have no problem."""
    run, problems = schema.resolve(config_of(overrides))
    assert run is not None, [str(problem) for problem in problems]
    return run


def write_config(path: Path, body: str = "", sweep: str = "", arg: str = "arg=None") -> Path:
    """A config file: `body` changes `c`, `sweep` is the body of `def sweep(add)`."""
    text = f"from configs import base\n\n\ndef get_config({arg}):\n    c = base.get_config()\n"
    text += "".join(f"    {line}\n" for line in body.splitlines()) + "    return c\n"
    if sweep:
        text += "\n\ndef sweep(add):\n" + "".join(f"    {line}\n" for line in sweep.splitlines())
    path.write_text(text, encoding="utf-8")
    return path

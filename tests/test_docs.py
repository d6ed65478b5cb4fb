"""The documents do what they say: the worked example and the README's code run."""

from __future__ import annotations

import csv
import os
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from cases import config_of
from flax import nnx

from mha_jax import Attention, cost, schema, values
from mha_jax.keys import KEYS

ROOT = Path(__file__).parents[1]
CACHE = ROOT / "docs" / "cache.md"


def _blocks(path: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", path.read_text(), re.DOTALL)


def test_add_a_task_works_as_written(tmp_path):
    for name in ("mha_jax", "configs", "scripts"):
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, tmp_path / name, ignore=ignore)
    module, name, defaults = _blocks(ROOT / "docs" / "add_a_task.md", "python")
    (tmp_path / "mha_jax" / "tasks" / "first.py").write_text(module)
    registry = tmp_path / "mha_jax" / "tasks" / "__init__.py"
    before, after = registry.read_text().split(")\nSPLITS", 1)  # where NAMES ends
    registry.write_text(before + name + ")\nSPLITS" + after)
    base = tmp_path / "configs" / "base.py"
    before, defaults = (
        "    config.model = model",
        textwrap.indent(textwrap.dedent(defaults), "    "),
    )
    base.write_text(base.read_text().replace(before, defaults + before, 1))
    command = _blocks(ROOT / "docs" / "add_a_task.md", "sh")[0].split()
    small = ("train.n_steps=200", "model.d_model=16", "model.n_heads=1", "optim.warmup_steps=20")
    done = subprocess.run(
        [sys.executable, *command[1:], *(f"--config.{text}" for text in small)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (row,) = csv.DictReader((tmp_path / "results/base/runs.csv").read_text().splitlines())
    assert (row["task"], row["status"]) == ("first", "done")
    assert float(row["test/accuracy"]) > 0.9  # one head that looks at position 0 is enough


def test_add_a_mixer_works_as_written(tmp_path):
    mixer, sweep = _blocks(ROOT / "docs" / "add_a_mixer.md", "python")
    (tmp_path / "gated_conv.py").write_text(mixer)
    (tmp_path / "conv_or_heads.py").write_text(sweep)
    command = _blocks(ROOT / "docs" / "add_a_mixer.md", "sh")[0].split()
    command[1] = str(ROOT / "scripts" / "sweep.py")
    small = ("train.n_steps=40", "model.d_model=16", "train.n_test=64", "optim.warmup_steps=10")
    done = subprocess.run(
        [sys.executable, *command[1:], *(f"--config.{text}" for text in small)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    root = tmp_path / "results" / "conv_or_heads"
    rows = list(csv.DictReader((root / "frontier.csv").read_text().splitlines()))
    by_variant = {(row["variant"], row["n_heads"]): row for row in rows}
    conv = by_variant["gated_conv", "4"]
    assert {row["status"] for row in rows} == {"unverified"} and len(rows) == 3
    # Two layers keep three positions of 16 float32 channels each; attention keeps k and v.
    assert (conv["kv_bytes_per_token"], conv["state_bytes"]) == ("0", str(2 * 3 * 16 * 4))
    assert by_variant["MHA", "4"]["kv_bytes_per_token"] == str(2 * 2 * 16 * 4)
    # A layer saves 4 * 16^2 - 3 * 16^2 - 4 * 16 = 192 parameters: 6 units of its MLP.
    assert (conv["d_ff"], conv["params_ratio"]) == ("70", "1")
    heads = list(csv.DictReader((root / "heads.csv").read_text().splitlines()))
    assert {row["variant"] for row in heads} == {"MHA"}


def test_the_readme_attention_is_the_layer():
    library, lines = (b for b in _blocks(ROOT / "README.md", "python") if "x_btd" in b or "wq" in b)
    x_btd = jax.random.normal(jax.random.key(1), (2, 5, 64))
    space = {"nnx": nnx, "jax": jax, "jnp": jnp, "Attention": Attention, "x_btd": x_btd}
    b, t, h, g, k = 2, 5, 8, 4, 2
    causal = np.tril(np.ones((t, t), bool))
    space |= {"x": x_btd, "b": b, "t": t, "h": h, "g": g, "k": k, "causal": causal}
    exec(library, space)
    exec(lines, space)
    assert len([line for line in lines.splitlines() if line.strip()]) == 6
    np.testing.assert_allclose(space["y_btd"], space["y"], atol=1e-5)


def _ways() -> list[tuple[str, str, str]]:
    """Way, config and bytes of each row of the table of docs/cache.md."""
    rows = re.findall(r"^\| ([^|]+) \| ([^|]*)\| [^|]+ \| ([\d.]+) \|", CACHE.read_text(), re.M)
    return [(way.strip(), switches.strip(" `"), told) for way, switches, told in rows]


def test_the_ways_to_shrink_the_cache_have_the_bytes_that_are_told():
    assert len(_ways()) == CACHE.read_text().count("\n| ") - 1  # all rows but the head
    for way, switches, told in _ways():
        model = {"n_layers": 2, "n_heads": 8, "d_model": 512, "cache_dtype": "bfloat16"}
        for switch in switches.split():
            name, _, text = switch.partition("=")
            model[name] = values.parse(KEYS[f"model.{name}"], text)
        rotates = "rope" if model.get("mixer") in ("mla", "gta") else "learned"
        changes = {f"model.{name}": value for name, value in model.items()}
        run, wrong = schema.resolve(
            config_of({"task.name": "copy", "model.positions": rotates, **changes})
        )
        assert run is not None, (way, [str(one) for one in wrong])
        assert cost.kv_bytes_per_token(run.static.model, 4096) == float(told), way

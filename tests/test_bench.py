"""Benchmarks run and say what they measured; how fast anything is, no test asks."""

import dataclasses
import importlib
import json
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mha_jax import config, cost
from mha_jax.bench import decode_growth
from tests.synthetic import static

ROOT = Path(__file__).parents[1]


def bench(*argv: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "scripts" / "bench.py"), *argv]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


def script() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "scripts" / "bench.py"))


def test_help_names_every_benchmark_and_flag_with_its_default() -> None:
    told = script()
    for name in told["BENCHES"]:
        flags = importlib.import_module(f"mha_jax.bench.{name}").FLAGS
        _, _, part = told["__doc__"].partition(f"\n  {name} ")
        for flag, (default, _) in flags.items():
            part = part.partition(f"\n                   {flag} ")[2]
            assert f"(default {default}" in " ".join(part.split("--")[0].split()), (name, flag)


def test_the_overhead_of_the_probe() -> None:
    done = bench("overhead", "--steps=4", "--every=2", "--json")
    told = json.loads(done.stdout)
    (row,) = told["rows"]
    assert told["machine"]["threads"] > 0 and told["versions"]["jax"]
    assert row["name"] == "probe_overhead" and row["must"] == 0.05 and row["every"] == 2
    assert row["ratio"] == pytest.approx(row["probe_s"] / row["chunk_s"])
    assert row["compile_s"] > 0 and done.returncode == int(row["ratio"] > 0.05)


def test_the_growth_of_a_decode_step() -> None:
    """Bytes by hand, the prediction from them, and the slope of two points."""
    model = {"positions": "rope", "d_model": 16}
    whole = static("text", 2, d_head=8, n_layers=2, length=8, model=model)
    own, borrowed = whole.model.layers[0], dataclasses.replace(whole.model.layers[1], kv_from=0)
    windowed = tuple(dataclasses.replace(own, window=4) for _ in range(2))
    statics = {"MHA": whole}
    for name, layers in (("CLA-2", (own, borrowed)), ("window", windowed)):
        changed = dataclasses.replace(whole.model, layers=layers)
        statics[name] = dataclasses.replace(whole, model=changed)
    told = decode_growth.decode_growth(statics, [32, 64], reps=2)
    assert [(row["variant"], row["context"]) for row in told["rows"]] == [
        (name, n) for name in statics for n in (32, 64)
    ]
    matrices = {"MHA": 8, "CLA-2": 6, "window": 8}  # of 16 x 16; CLA-2 has no second wk and wv
    for row in told["rows"]:
        slots = 4 if row["variant"] == "window" else row["context"]
        kept = 2 * 2 * 16 * slots  # layers that read, keys and values, k * h
        n_params = matrices[row["variant"]] * 16 * 16 + 16 * 256  # and the read-out
        assert row["bytes_read"] == 4 * (n_params + kept)
        predicted = row["bytes_read"] / told["memory_bytes_per_s"] * 1e3
        assert row["predicted_ms"] == pytest.approx(predicted)
        assert row["ratio"] == pytest.approx(row["ms"] / predicted) and row["ms"] > 0
    pairs = zip(told["rows"][::2], told["rows"][1::2], strict=True)
    for slope, (first, second) in zip(told["slopes"], pairs, strict=True):
        for key, ms in (("us_per_token", "ms"), ("predicted_us_per_token", "predicted_ms")):
            quotient = (second[ms] - first[ms]) / 32 * 1e3
            assert slope[key] == pytest.approx(quotient, abs=1e-9)
    lines = decode_growth.to_text(told).splitlines()
    assert len(lines) == 5 and "us a token" in lines[1] and "CLA-2" in lines[3]


def test_every_variant_of_the_benchmark_is_sound(monkeypatch: pytest.MonkeyPatch) -> None:
    """The configs that the script makes resolve, and are the variants that they are named for."""
    made: dict[str, config.StaticConfig] = {}

    def measure(statics: Any, *rest: Any) -> dict[str, Any]:
        made.update(statics)
        return {"rows": []}

    monkeypatch.setattr(decode_growth, "decode_growth", measure)
    decode_growth.measure({"contexts": [256, 512], "reps": 1}, script()["Configs"](), print)
    assert list(made) == list(decode_growth.VARIANTS)
    for name, of_variant in made.items():
        told = cost.variant(of_variant.model)
        windowed = "window" in name and of_variant.model.layers[1].window == 128
        assert name in told or windowed or (name, of_variant.model.share) == ("K=V", "kv")


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        ((), "takes one benchmark of train, "),
        (("overhead", "train"), "takes one benchmark of train, "),
        (("overheat",), "did you mean overhead"),
        (("overhead", "--every=3", "--steps=10"), "must divide --steps=10"),
        (("overhead", "--steps=0"), "--steps=0 must be a number"),
        (("overhead", "--speed"), "--speed is no flag"),
        (("overhead", "--reps=2"), "--reps is no flag"),
        (("decode_growth", "--contexts=256"), "must be two or more numbers from 256 to 65536"),
        (("decode_growth", "--contexts=256,12"), "--contexts=256,12 must be two or more"),
        (("decode_growth", "--reps=0"), "--reps=0 must be a number"),
    ],
)
def test_bad_input_is_one_line(argv: tuple[str, ...], says: str) -> None:
    done = bench(*argv)
    assert done.returncode == 2 and says in done.stderr and len(done.stderr.splitlines()) == 1

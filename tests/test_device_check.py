"""`scripts/device_check.py`: what it compares and computes; how fast anything is, no test asks."""

from __future__ import annotations

import dataclasses
import math
import runpy
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from mha_jax.accelerators import ACCELERATORS, BY_KIND
from mha_jax.bench import bandwidth, parity, peaks, rates
from mha_jax.config import StaticConfig
from tests.synthetic import static

SCRIPT = Path(__file__).parents[1] / "scripts" / "device_check.py"
PEAKS = {"flops_per_s": 1e9, "bytes_per_s": 1e8}


def small() -> StaticConfig:
    """MHA of two heads on sequences of 24 tokens, batches of 8."""
    spec = static("copy", 2, n_steps=20, model={"d_model": 16, "positions": "rope"}, d_head=8)
    return dataclasses.replace(spec, train=dataclasses.replace(spec.train, batch_size=8))


def test_forms_and_caches_agree() -> None:
    rows = parity.forms({"MHA": small()}, ["fast"]) + parity.decoding({"MHA": small()})
    names = ["MHA, fast, float32", "MHA, fast, bfloat16", "MHA, cached decode"]
    assert [row["name"] for row in rows] == names and all(row["ok"] for row in rows)
    exact, rounded, _ = (row["difference"] for row in rows)
    assert exact < 1e-5 < rounded  # products in bfloat16 are no products in float32


@pytest.mark.parametrize("wrong", [lambda x: x * 1.001, lambda x: x * np.nan])
def test_a_form_that_differs_is_found(monkeypatch: Any, wrong: Any) -> None:
    found = parity._found

    def broken(static: Any, kernel: str, *rest: Any) -> Any:
        outputs, grads = found(static, kernel, *rest)
        return (outputs, jax.tree.map(wrong, grads)) if kernel == "fast" else (outputs, grads)

    monkeypatch.setattr(parity, "_found", broken)
    row = parity.forms({"MHA": small()}, ["fast"])[0]
    assert not row["ok"] and (row["difference"] is None) is math.isnan(wrong(1.0))


def test_rates_are_shares_of_the_peaks() -> None:
    """Operations and bytes by hand."""
    spec = small()
    row = rates.training(spec, 2, PEAKS)
    # Four matrices of 16 x 16, the read-out, scores and weighted values of 24 keys.
    v, length = spec.task.spec.output_size, spec.task.spec.length
    flops = 2 * (4 * 16 * 16 + 16 * v) + 2 * 2 * 16 * length
    flops *= 3 * length * 8 * 2  # forward and backward, positions, sequences, lanes
    assert row["flops_per_s"] * row["step_ms"] / 1e3 == pytest.approx(flops)
    assert row["share_of_peak"] == pytest.approx(row["flops_per_s"] / 1e9)
    assert row["models_steps_per_s"] == pytest.approx(2 * row["steps_per_s"])
    one, two = rates.decoding(spec, 32, (1, 2), PEAKS)
    kept = 4 * 2 * 16 * 32  # float32, keys and values, k * h, slots
    assert one["bytes_read"] == 4 * (4 * 16 * 16 + 16 * v) + kept
    assert two["bytes_read"] == one["bytes_read"] + kept
    assert two["share_of_peak"] == pytest.approx(two["bytes_per_s"] / 1e8)
    assert two["tokens_per_s"] == pytest.approx(2e3 / two["step_ms"])


def test_peaks_are_the_makers_where_they_are_known(monkeypatch: Any) -> None:
    monkeypatch.setattr(peaks, "_N_ON_CPU", 64)
    monkeypatch.setattr(bandwidth, "_BYTES", 2**12)
    monkeypatch.setattr(peaks, "BY_KIND", {})
    told = peaks.peaks()
    assert told["bytes_per_s"] == told["measured"]["bytes_per_s"]
    assert told["flops_per_s"] >= told["measured"]["float32_flops_per_s"]
    monkeypatch.setattr(peaks, "BY_KIND", {jax.devices()[0].device_kind: "h200"})
    told = peaks.peaks()
    assert (told["flops_per_s"], told["bytes_per_s"]) == (989e12, 4.8e12)
    assert set(BY_KIND.values()) == set(ACCELERATORS)


@pytest.mark.parametrize("failed", [[], ["MHA, fast, float32"]])
def test_the_script_tells_and_exits(capsys: Any, failed: list[str]) -> None:
    row = {"name": "MHA, fast, float32", "difference": None if failed else 3e-7, "ok": not failed}
    speed = {"name": "train", "step_ms": 2.0, "models_steps_per_s": 4.0, "share_of_peak": 0.25}
    told = {
        "device": "cpu",
        "n_devices": 1,
        "environment": {"versions": {"jax": "0"}},
        "peaks": {**PEAKS, "source": "made up", "measured": PEAKS},
        "sweep": {"accuracy": [0.95], "must": 0.9, "seconds": 1.0},
        "parity": [row],
        "train": [speed],
        "decode": [],
        "lanes_gain": 2.0,
        "failed": failed,
        "seconds": 5.0,
    }
    main = runpy.run_path(str(SCRIPT))["main"]
    main.__globals__["_checked"] = lambda: told
    assert main([]) == int(bool(failed))
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == ("FAILED: MHA, fast, float32" if failed else "fine, in 5 s")
    assert any("25.0%" in line and "4 steps" in line for line in lines)
    assert main(["--jsn"]) == 2
    assert capsys.readouterr().err == "device_check.py: --jsn is no flag; did you mean --json?\n"

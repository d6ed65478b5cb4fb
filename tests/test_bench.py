"""Benchmarks run and say what they measured; how fast anything is, no test asks."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def bench(*argv: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "scripts" / "bench.py"), *argv]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


def test_the_overhead_of_the_probe() -> None:
    done = bench("overhead", "--steps=4", "--every=2", "--json")
    row = json.loads(done.stdout)
    assert row["name"] == "probe_overhead" and row["must"] == 0.05 and row["every"] == 2
    assert row["ratio"] == pytest.approx(row["probe_s"] / row["chunk_s"])
    assert row["compile_s"] > 0 and done.returncode == int(row["ratio"] > 0.05)


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        ((), "takes one benchmark of overhead"),
        (("overheat",), "did you mean overhead"),
        (("overhead", "--every=3", "--steps=10"), "must divide --steps=10"),
        (("overhead", "--steps=0"), "--steps=0 must be a number"),
        (("overhead", "--speed"), "--speed is no flag"),
    ],
)
def test_bad_input_is_one_line(argv: tuple[str, ...], says: str) -> None:
    done = bench(*argv)
    assert done.returncode == 2 and says in done.stderr and len(done.stderr.splitlines()) == 1

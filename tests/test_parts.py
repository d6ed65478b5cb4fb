"""Several launchers at one sweep: who trains what, and who is kept out."""

from __future__ import annotations

import subprocess
import sys

import pytest
from launched import ROOT, finish, start, tables, write

from mha_jax.parts import Part, at_work, held, locked

SCRIPT = str(ROOT / "scripts" / "sweep.slurm")


@pytest.fixture(scope="module")
def sweep(tmp_path_factory):
    """The config file, and the tables of its launch as a whole."""
    directory = tmp_path_factory.mktemp("parts")
    config = write(directory)
    finish(start(config, directory / "whole", "--workers=2"))
    return config, tables(directory / "whole")


def _task(config, workdir, number):
    """One of the tasks 3 and 5 of a SLURM array."""
    env = {"SLURM_SUBMIT_DIR": str(ROOT), "PYTHON": sys.executable}
    array = {"ID": number, "MIN": 3, "STEP": 2, "COUNT": 2}
    env |= {f"SLURM_ARRAY_TASK_{name}": str(value) for name, value in array.items()}
    return start(config, workdir, "--workers=2", command=SCRIPT, **env)


def test_tasks_of_an_array_go_through_all_stages_together(sweep):
    config, expected = sweep
    workdir = config.parent / "array"
    said = [finish(task)[0] for task in [_task(config, workdir, 3), _task(config, workdir, 5)]]
    assert tables(workdir) == expected
    done = [sum(" taps " in line for line in out.splitlines() if line[0:1] == "[") for out in said]
    assert sum(done) == 8 and min(done) > 0  # no run twice, and none of them idle
    assert sum("makes the tables" in out for out in said) == 1


def test_parts_that_run_one_after_another_leave_what_is_not_theirs(sweep):
    config, expected = sweep
    workdir = config.parent / "serial"
    first, _ = finish(start(config, workdir, "--part=1/2", "--workers=2"))
    assert "of 2/2 are not, and nobody is at work on them" in first
    assert not (workdir / "small" / "runs.csv").exists()
    second, _ = finish(start(config, workdir, "--part=2/2", "--workers=2"))
    assert "4 more runs with twice the steps" in second and "of 1/2 are not" in second
    finish(start(config, workdir, "--workers=2"))
    assert tables(workdir) == expected


def test_the_array_script_is_sound():
    subprocess.run(["bash", "-n", SCRIPT], check=True)


def test_every_run_is_of_one_part():
    hashes = [f"{i * 0x9E3779B97F:010x}"[-10:] for i in range(50)]
    parts = [Part(i, 3) for i in (1, 2, 3)]
    for run_hash in hashes:
        assert sum(part.has(run_hash) for part in parts) == 1
        assert Part().has(run_hash)
    assert all(any(part.has(run_hash) for run_hash in hashes) for part in parts)


@pytest.mark.parametrize(
    ("first", "second", "fits"),
    [
        (Part(), Part(), False),
        (Part(), Part(1, 2), False),
        (Part(1, 2), Part(), False),
        (Part(1, 2), Part(1, 2), False),
        (Part(1, 2), Part(2, 2), True),
        (Part(1, 2), Part(3, 3), False),
    ],
    ids=str,
)
def test_who_is_kept_out(tmp_path, first, second, fits):
    with locked(tmp_path, first):
        if fits:
            with locked(tmp_path, second):
                assert at_work(tmp_path) == [first, second]
        else:
            with pytest.raises(ValueError, match="at work"), locked(tmp_path, second):
                pass
    with locked(tmp_path, second):  # nobody is any more, whatever files are left
        pass


def test_a_refused_launch_is_told_which_parts_are_at_work(tmp_path):
    with (
        locked(tmp_path, Part(2, 3)),
        pytest.raises(ValueError, match="part 2/3: host .*, pid "),
        locked(tmp_path),
    ):
        pass


HOLDER = """
import sys
from pathlib import Path
from mha_jax.parts import held
with held(Path(sys.argv[1]), ["000000000b"], print):
    print("held", flush=True)
    sys.stdin.readline()
"""


def test_a_worker_waits_for_another_that_is_still_at_a_run(tmp_path):
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    other = subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert other.stdin and other.stdout and other.stdout.readline() == "held\n"
    waited: list[str] = []

    def wait(run_hash: str) -> None:
        waited.append(run_hash)
        other.kill()  # the lock goes with its process

    with held(tmp_path, ["000000000c", "000000000b", "000000000a"], wait):
        assert waited == ["000000000b"]
    other.communicate()
    with held(tmp_path, ["000000000b"], waited.append):
        assert len(waited) == 1

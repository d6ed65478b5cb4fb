"""R14: the machine is not what was asked for: no such device, a read-only directory, a locale
without Unicode, odd names, no inodes, no temporary directory, a clock that jumps. A clear line, or
the results all the same.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

from tests.faults import results, small
from tests.faults.r06_disk_full import mounted
from tests.faults.tally import Tally, draws, needs, say

_PLAIN = {"LC_ALL": "C", "LANG": "C"}
_ASCII = {**_PLAIN, "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}  # Python's own remedy is off


def run(seed: int, quick: bool, directory: Path) -> list[dict[str, Any]]:
    """The rows of R14."""
    del quick  # each is tried once
    draw = draws(seed, "R14")
    rows = []
    for name, case in {
        "R14 no such device": _no_device,
        "R14 read-only directory": _read_only,
        "R14 no inodes": _no_inodes,
        "R14 locale C, names in Unicode": _plain_locale,
        "R14 odd names": _odd_names,
        "R14 no temporary directory": _no_temporary,
        "R14 clock jumps": _clock,
    }.items():
        tally = Tally(name)
        try:
            case(tally, directory, draw)
            rows.append(tally.row())
        except PermissionError:
            rows.append(needs(name, "the right to mount a tmpfs"))
        say(f"{name}: {tally.passed} of {tally.tried}")
    return rows


def _no_device(tally: Tally, directory: Path, draw: Any) -> None:
    for wanted in ("cuda", "tpu", draw.choice(("gpux", "cpux", "rocm"))):
        home = directory / f"device_{wanted}"
        env = {"JAX_PLATFORMS": wanted}
        ended = small.launch(small.write(home), home / "out", env=env)
        wrong = ended.wrong(1, 2)
        if len(ended.err.splitlines()) != 1:
            wrong.append(f"{len(ended.err.splitlines())} lines on stderr")
        if wanted not in ended.err and wanted.upper() not in ended.err:
            wrong.append(f"it does not name {wanted}: {ended.err[:200]}")
        if list(home.glob("out/*/*/summary.json")):
            wrong.append("a run is blamed")
        tally.add(wrong, f"JAX_PLATFORMS={wanted}")


def _read_only(tally: Tally, directory: Path, draw: Any) -> None:
    whole, _ = small.unbroken(directory.parent)
    for there in ("nothing", "a sweep that is over", "a sweep that was killed"):
        home = directory / f"read_only_{there.split()[-1]}"
        config = small.write(home)
        with mounted(home / "disk", "size=16m") as disk:
            if "over" in there:
                shutil.copytree(whole, disk / small.NAME)
            elif "killed" in there:
                small.broken_off(directory.parent, disk)
            before = results.contents(disk)
            subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
            ended = small.launch(config, disk)
            wrong = ended.wrong(2)
            if len(ended.err.splitlines()) > 2:
                wrong.append(f"{len(ended.err.splitlines())} lines on stderr")
            if results.contents(disk) != before:
                wrong.append("something was written")
            tally.add(wrong, f"{there} in it")


def _no_inodes(tally: Tally, directory: Path, draw: Any) -> None:
    whole, _ = small.unbroken(directory.parent)
    config = small.write(directory / "inodes")
    with mounted(directory / "inodes" / "disk", f"nr_inodes={draw.randrange(20, 90)}") as disk:
        ended = small.launch(config, disk)
        wrong = ended.wrong(1, 2)
        subprocess.run(["mount", "-o", "remount,nr_inodes=100000", str(disk)], check=True)
        again = small.again(config, disk)
        tally.add(wrong + (again.wrong(0) or results.differences(disk / small.NAME, whole)))


def _plain_locale(tally: Tally, directory: Path, draw: Any) -> None:
    whole, _ = small.unbroken(directory.parent)
    word = draw.choice(
        ("\u00fcn\u00efcode", "\u65e5\u672c\u8a9e", "\u0627\u0644\u0639", "\U0001f600")
    )
    home = directory / word
    config, out = small.write(home), home / f"out {word}"
    ended = small.launch(config, out, env=_PLAIN)
    tally.add(ended.wrong(0) or results.differences(out / small.NAME, whole), ascii(word))
    small.broken_off(directory.parent, home / "resumed")
    ended = small.launch(config, home / "resumed", env=_PLAIN)
    tally.add(
        ended.wrong(0) or results.differences(home / "resumed" / small.NAME, whole), "resumed"
    )
    ended = small.launch(config, home / "ascii", env=_ASCII)
    tally.add(ended.wrong(0, 1, 2), "without UTF-8 in Python")


def _odd_names(tally: Tally, directory: Path, draw: Any) -> None:
    whole, _ = small.unbroken(directory.parent)
    words = (
        "a b",
        "100%",
        "it's",
        'a"b',
        "$HOME;ls",
        "<b>&amp;",
        "new\nline",
        "=x",
        "[1]*?",
        "x" * 200,
    )
    word = draw.choice(words)
    home = directory / word
    config, out = small.write(home), home / f"out {word}"
    ended = small.launch(config, out)
    tally.add(ended.wrong(0) or results.differences(out / small.NAME, whole), ascii(word))


def _no_temporary(tally: Tally, directory: Path, draw: Any) -> None:
    """Neither a home, nor a place for temporary files, nor one for compiled programs."""
    whole, _ = small.unbroken(directory.parent)
    home = directory / "no_temporary"
    nowhere = {name: "/proc/nowhere" for name in ("HOME", "TMPDIR", "JAX_COMPILATION_CACHE_DIR")}
    ended = small.launch(small.write(home), home / "out", env=nowhere)
    tally.add(ended.wrong(0) or results.differences(home / "out" / small.NAME, whole))


def _clock(tally: Tally, directory: Path, draw: Any) -> None:
    whole, _ = small.unbroken(directory.parent)
    for by_s in (-86400.0 * 400, 86400.0 * 400):
        home = directory / f"clock_{by_s:+.0f}"
        config, at = small.write(home), draw.randrange(1, 40)
        root = small.broken_off(directory.parent, home / "out")
        fault = {"name": "clock", "at": at, "by_s": by_s}
        ended = small.launch(config, home / "out", faults=[fault])
        tally.add(ended.wrong(0) or results.differences(root, whole), f"{by_s:+.0f} s")

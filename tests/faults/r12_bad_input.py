"""R12: bad configs, overrides and names, drawn over all keys. Each ends with exit code 2 and a line
that names the key, without a traceback, and nothing is written.
"""

from __future__ import annotations

import contextlib
import io
import re
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mha_jax import cli, keys
from tests.faults import bad_values, small
from tests.faults.bad_values import Bad
from tests.faults.tally import Tally, draws, say

OF_EACH_KEY = (5, 50)  # quick, full
TOGETHER, NAMES, BY_SCRIPT = (100, 1000), (100, 1000), (4, 20)
_FILE = "from configs import base\n\n\ndef get_config(arg=None):\n    c = base.get_config()\n"


def run(seed: int, quick: bool, directory: Path) -> list[dict[str, Any]]:
    """The rows of R12."""
    draw = draws(seed, "R12")
    many = [
        bad_values.of_key(name, draw)
        for name in keys.all_keys()
        for _ in range(OF_EACH_KEY[not quick])
    ]
    many += [bad_values.together(draw) for _ in range(TOGETHER[not quick])]
    many += [bad_values.of_name(draw) for _ in range(NAMES[not quick])]
    tally, place = Tally("R12 bad configs, overrides, names"), directory / "here"
    place.mkdir()
    with _nothing_starts() as started:
        for bad in many:
            tally.add(_refused(bad, place, started), _told(bad))
    say(f"R12: {tally.passed} of {tally.tried} in one process")
    by_script = Tally("R12 by the scripts")
    given = [bad for bad in many if not any("\0" in word for word in bad.flags)]
    for i, bad in enumerate(draw.sample(given, BY_SCRIPT[not quick])):
        script = ("sweep.py", "train.py")[i % 2]
        by_script.add(_refused_by(script, bad, place), f"{script} {_told(bad)}")
    return [tally.row(), by_script.row()]


def _told(bad: Bad) -> str:
    return ascii(" ".join([bad.kind, *bad.flags, *bad.body.splitlines()]))[:200]


def _write(bad: Bad, place: Path) -> list[str]:
    """Puts the config file there; returns the command line."""
    body = "".join(f"    {line}\n" for line in bad.body.splitlines())
    text = f"{_FILE}{body}    return c\n"
    (place / "bad.py").write_bytes(text.encode("utf-8", "backslashreplace"))
    (place / "file.txt").write_text("in the way")
    mine = any(word.startswith("--workdir") for word in bad.flags)
    return ["--config=bad.py", *([] if mine else ["--workdir=out"]), *bad.flags]


@contextlib.contextmanager
def _nothing_starts() -> Iterator[list[Any]]:
    """A launch, if one should come about, only notes that it did."""
    started: list[Any] = []

    def launch(*args: object, **kwargs: object) -> int:
        started.append(args)
        return 0

    name = "mha_jax.launch"
    before = sys.modules.get(name)
    sys.modules[name] = types.SimpleNamespace(launch=launch)  # type: ignore[assignment]
    try:
        yield started
    finally:
        del sys.modules[name]
        if before is not None:
            sys.modules[name] = before


def _refused(bad: Bad, place: Path, started: list[Any]) -> list[str]:
    argv, out, err = _write(bad, place), io.StringIO(), io.StringIO()
    started.clear()
    with contextlib.chdir(place), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = cli.main(argv)
        except BaseException as error:  # SystemExit too: `main` returns its code
            return [f"raised {type(error).__name__}: {str(error)[:100]}"]
    if started:
        return ["ACCEPTED"]
    return _wrong(code, out.getvalue(), err.getvalue(), bad, place)


def _refused_by(script: str, bad: Bad, place: Path) -> list[str]:
    command = [sys.executable, str(small.ROOT / "scripts" / script), *_write(bad, place)]
    done = subprocess.run(command, cwd=place, capture_output=True, text=True, errors="replace")
    return _wrong(done.returncode, done.stdout, done.stderr, bad, place)


def _wrong(code: int, out: str, err: str, bad: Bad, place: Path) -> list[str]:
    if code != 2:
        return [f"exit code {code}: {err[:100]}"]
    lines, wrong = err.splitlines(), []
    if "Traceback" in err + out:
        wrong.append("a traceback")
    if out:
        wrong.append("something on stdout")
    if not lines or not re.fullmatch(r"\d+ problems?; nothing was started", lines[0]):
        wrong.append("no headline")
    elif len(lines) - 1 != min(41, int(lines[0].split()[0])):
        wrong.append(f"{len(lines) - 1} lines for {lines[0].split()[0]} problems")
    if not err.isascii() or any(ord(c) < 32 and c != "\n" for c in err):
        wrong.append("it prints what a terminal may obey")
    names = tuple(f"  {ascii(key)[1:-1]}" for key in bad.keys)
    if not any(line.startswith(names) for line in lines):
        wrong.append(f"the key is not named: {lines[1:2]}")
    there = sorted(path.name for path in place.iterdir())
    if there != ["bad.py", "file.txt"]:
        wrong.append(f"it wrote {there}")
    return wrong

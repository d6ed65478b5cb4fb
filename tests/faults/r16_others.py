"""R16: what else happens to directories: one vanishes, is a link, is a copy, was edited by hand;
checkpoints of another run, another step, another version; records that do not fit.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.faults import results, small
from tests.faults.r03_flips import flipped
from tests.faults.tally import Tally, draws, say


def run(seed: int, quick: bool, directory: Path) -> list[dict[str, Any]]:
    """The rows of R16: one for each fault."""
    draw, rows = draws(seed, "R16"), []
    for case in _CASES:
        tally = Tally(f"R16 {case.__name__.strip('_').replace('_', ' ')}")
        for i in range(1 if quick else 3):
            home = directory / f"{case.__name__.strip('_')}_{i}"
            tally.add(case(home, small.write(home), home / "out", draw))
        rows.append(tally.row())
        say(f"{tally.name}: {tally.passed} of {tally.tried}")
    return rows


def _whole(home: Path) -> Path:
    return small.unbroken(home.parents[1])[0]


def _killed(home: Path, out: Path) -> Path:
    """A sweep that was killed, in the work directory of a case."""
    return small.broken_off(home.parents[1], out)


def _run_directory_vanishes(home: Path, config: Path, out: Path, draw: Any) -> list[str]:
    whole = _whole(home)
    gone, other = draw.sample([path.name for path in results.runs(whole)], 2)
    ended = _vanishes(config, out, out / small.NAME / gone, draw)
    wrong = ended.wrong(1, 2)
    wrong += results.run_differences(out / small.NAME / other, whole / other)
    wrong += [] if gone in ended.out + ended.err else ["the directory is not named"]
    again = small.again(config, out)
    return wrong + (again.wrong(0) or results.differences(out / small.NAME, whole))


def _experiment_vanishes(home: Path, config: Path, out: Path, draw: Any) -> list[str]:
    ended = _vanishes(config, out, out / small.NAME, draw)
    again = small.again(config, out)
    wrong = again.wrong(0) or results.differences(out / small.NAME, _whole(home))
    return ended.wrong(1, 2) + wrong


def _vanishes(config: Path, out: Path, what: Path, draw: Any) -> small.Ended:
    fault = {"name": "vanish", "at": draw.randrange(5, 40), "path": str(what)}
    fault["marker"] = str(config.parent / "gone")
    return small.launch(config, out, faults=[fault])


def _link_out_of_the_work_directory(home: Path, config: Path, out: Path, draw: Any) -> list[str]:
    root, outside = _killed(home, out), home / "outside"
    what = draw.choice(("experiment", "run", "checkpoints", "metrics.jsonl"))
    run = draw.choice(results.runs(root))
    linked = {"experiment": root, "run": run}.get(what, run / what)
    outside.mkdir()
    linked.rename(outside / linked.name)
    linked.symlink_to(outside / linked.name)
    before = results.contents(outside)
    ended = small.launch(config, out)
    wrong = [f"{what} is a link: {one}" for one in ended.wrong(1, 2)]
    if results.contents(outside) != before:
        wrong.append(f"{what} is a link out of the work directory, and files there were changed")
    return wrong


def _copy_of_a_run_directory(home: Path, config: Path, out: Path, draw: Any) -> list[str]:
    root = _killed(home, out)
    run = draw.choice(results.runs(root))
    shutil.copytree(run, root / f"{draw.choice(('a', 'z'))}-{run.name[-10:]}")
    ended = small.launch(config, out)
    if ended.code == 2:  # refused in a line
        return ended.wrong(2) + ([] if run.name[-10:] in ended.err else ["it does not name them"])
    wrong = ended.wrong(0)
    if "copy" not in ended.out + ended.err:
        wrong.append("nothing is told of the copy")
    whole = _whole(home)
    for table in ("frontier.csv", "comparisons.csv", "order.txt"):
        if not wrong and (root / table).read_bytes() != (whole / table).read_bytes():
            wrong.append(f"{table} differs")
    return wrong


def _config_json_edited(home: Path, config: Path, out: Path, draw: Any) -> list[str]:
    root = _killed(home, out)
    run = draw.choice(results.runs(root))
    path = run / "config.json"
    told = json.loads(path.read_bytes())
    section, key = draw.choice((("hypers", "lr"), ("hypers", "data_seed"), ("hypers", "seed")))
    told[section][key] = told[section][key] * 2 + 1
    if draw.random() < 0.5:
        path.write_text(json.dumps(told, indent=1))
    else:
        path.write_bytes(path.read_bytes()[: draw.randrange(path.stat().st_size)])
    before = results.contents(run)
    ended = small.launch(config, out)
    wrong = ended.wrong(2) + ([] if "config.json" in ended.err else ["config.json is not named"])
    return wrong + ([] if results.contents(run) == before else ["files of the run were changed"])


def _checkpoint_of_another_run(home: Path, config: Path, out: Path, draw: Any) -> list[str]:
    root = _killed(home, out)
    mine, other = draw.sample(results.runs(root), 2)
    newest, step = results.saved(root)[mine.name], results.saved(root)[other.name]
    there = mine / "checkpoints" / str(max(newest, step) + small.SAVE_EVERY * draw.choice((0, 1)))
    shutil.rmtree(there, ignore_errors=True)
    shutil.copytree(other / "checkpoints" / str(step), there)
    return _skipped(config, out, root, there, _whole(home))


def _checkpoint_of_another_step(home: Path, config: Path, out: Path, draw: Any) -> list[str]:
    root = _killed(home, out)
    run = draw.choice(results.runs(root))
    newest = results.saved(root)[run.name]
    there = run / "checkpoints" / str(newest + small.SAVE_EVERY)
    shutil.copytree(run / "checkpoints" / str(newest), there)
    return _skipped(config, out, root, there, _whole(home))


def _checkpoint_of_another_format(home: Path, config: Path, out: Path, draw: Any) -> list[str]:
    root = _killed(home, out)
    run = draw.choice(results.runs(root))
    there = run / "checkpoints" / str(results.saved(root)[run.name])
    _resigned(there / "manifest.json", format=draw.choice((0, 2, 99)))
    return _skipped(config, out, root, there, _whole(home))


def _checkpoint_of_another_version(home: Path, config: Path, out: Path, draw: Any) -> list[str]:
    """The same format: it may be taken, exactly, or left with a reason."""
    root = _killed(home, out)
    run = draw.choice(results.runs(root))
    there = run / "checkpoints" / str(results.saved(root)[run.name])
    _resigned(there / "manifest.json", code="0.0.0")
    ended = small.launch(config, out)
    return ended.wrong(0) or results.differences(root, _whole(home))


def _resigned(path: Path, **changes: Any) -> None:
    """Changes a manifest as code that may would have written it."""
    told = json.loads(path.read_bytes()) | changes
    del told["sha256"]
    text = json.dumps(told, sort_keys=True, separators=(",", ":"))
    told["sha256"] = hashlib.sha256(text.encode()).hexdigest()
    path.write_text(json.dumps(told))


def _skipped(config: Path, out: Path, root: Path, there: Path, whole: Path) -> list[str]:
    """What must come of a checkpoint that is not the run's own: an older one is taken."""
    ended = small.launch(config, out)
    wrong = ended.wrong(0) or results.differences(root, whole)
    if f"checkpoint {there.name} skipped" not in ended.out + ended.err:
        wrong.append("nothing is told of it")
    return wrong


def _records_shorter_than_the_checkpoint(
    home: Path, config: Path, out: Path, draw: Any
) -> list[str]:
    """An older checkpoint may fit them, else the run must not go on."""
    root = _killed(home, out)
    path = draw.choice(results.runs(root)) / "metrics.jsonl"
    good = path.read_bytes()
    path.write_bytes(good[: draw.randrange(1, len(good) // 2)])
    ended = small.launch(config, out)
    if ended.code == 0:
        return ended.wrong(0) + results.differences(root, _whole(home))
    return ended.wrong(1, 3) + ([] if "metrics.jsonl" in ended.out + ended.err else ["not named"])


def _records_edited(home: Path, config: Path, out: Path, draw: Any) -> list[str]:
    """A digit of a record from before the checkpoint is another one."""
    root = _killed(home, out)
    path = draw.choice(results.runs(root)) / "metrics.jsonl"
    good = bytearray(path.read_bytes())
    at = draw.choice([i for i, c in enumerate(good[: len(good) // 2]) if chr(c) in "1234567"])
    good[at] += 1
    path.write_bytes(good)
    ended = small.launch(config, out)
    if "metrics.jsonl" in ended.out + ended.err:
        return ended.wrong(0, 1, 3)
    return ended.wrong(0) or [f"SILENT: {one}" for one in results.differences(root, _whole(home))]


def _summary_damaged(home: Path, config: Path, out: Path, draw: Any) -> list[str]:
    """Of a run that is over: it goes on from its last checkpoint, and ends as before."""
    root = out / small.NAME
    shutil.copytree(_whole(home), root)
    path = draw.choice(results.runs(root)) / "summary.json"
    good = path.read_bytes()
    path.write_bytes(draw.choice((b"", good[: len(good) // 2], b"[]", b"\0" * len(good))))
    ended = small.launch(config, out)
    return ended.wrong(0) or results.differences(root, _whole(home))


def _compiled_programs_damaged(home: Path, config: Path, out: Path, draw: Any) -> list[str]:
    """A bit of every program in the compile cache is flipped."""
    env = {"JAX_COMPILATION_CACHE_DIR": str(home / "programs")}
    ended = small.launch(config, home / "first", env=env)
    for path in (home / "programs").iterdir():
        if path.is_file() and path.stat().st_size:
            path.write_bytes(flipped(path.read_bytes(), draw.randrange(8 * path.stat().st_size)))
    wrong = ended.wrong(0)
    ended = small.launch(config, out, env=env)
    if ended.code == 1:  # told, and nothing wrong is in the tables
        return wrong + ended.wrong(1)
    return wrong + (ended.wrong(0) or results.differences(out / small.NAME, _whole(home)))


def _files_in_the_way(home: Path, config: Path, out: Path, draw: Any) -> list[str]:
    """Rubbish among the checkpoints: files and directories with names like theirs."""
    root = _killed(home, out)
    run = draw.choice(results.runs(root))
    place, step = run / "checkpoints", results.saved(root)[run.name] + 3
    for name in ("x", "-1", "1e3", f"{step}.tmp", "\u0664"):
        (place / name).mkdir()
    (place / f"{step}").write_text("a file")
    (place / "notes.txt").write_text("mine")
    ended = small.launch(config, out)
    wrong = ended.wrong(0) or [
        one for one in results.differences(root, _whole(home)) if not one.endswith("left over")
    ]
    return wrong + ([] if (place / "notes.txt").exists() else ["it removed a file of the user's"])


_CASES: tuple[Callable[[Path, Path, Path, Any], list[str]], ...]
_CASES = (
    _run_directory_vanishes,
    _experiment_vanishes,
    _link_out_of_the_work_directory,
    _copy_of_a_run_directory,
    _config_json_edited,
    _checkpoint_of_another_run,
    _checkpoint_of_another_step,
    _checkpoint_of_another_format,
    _checkpoint_of_another_version,
    _records_shorter_than_the_checkpoint,
    _records_edited,
    _summary_damaged,
    _compiled_programs_damaged,
    _files_in_the_way,
)

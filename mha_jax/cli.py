"""The command line of `scripts/sweep.py` and `scripts/train.py`.

Exit codes: 0 fine, 1 a run failed, 2 bad input (told on stderr, nothing was started), 3 a run has
checkpoints and none can be used, 128 + n stopped by signal n. `--help` and `--dry_run` import no
jax, and what each need not import it does not: help is there at once.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mha_jax import signals
from mha_jax.engines import options
from mha_jax.engines.base import WorkerError
from mha_jax.terminal import leave
from mha_jax.values import ABSENT, Problem, nearest

if TYPE_CHECKING:
    from mha_jax.sweep import Sweep

_SWEEP = """Runs what is not finished of a config file's sweep, its function sweep(add), and writes
tables and figures. Without that function it is a sweep of one."""
_TRAIN = "Trains the one model that get_config describes; a sweep in the file is not looked at."
_HELP = """
usage: python scripts/{script} --config=FILE.py[:ARG] --workdir=DIR [--config.KEY=VALUE ...]

{purpose}

  --config=FILE.py[:ARG]   a Python file with get_config(arg); ARG is handed to it
  --config.KEY=VALUE       changes one key, such as --config.optim.lr=0.001; configs/base.py lists
                           them all. Values: 8, 0.001, true, none, text, one entry a layer: 4,4,2
  --workdir=DIR            results go to DIR/<experiment>/<run>/; launching again continues there
  --dry_run                print every run with its costs and the time it may take, and stop
  --json                   with --dry_run: print it as JSON
  --workers=N              worker processes (default: one a core on a CPU, one on an accelerator)
  --engine=local|ray       processes of this machine (default), or tasks of a Ray cluster
  --ray_address=ADDRESS    of the cluster (default: the one ray.init finds, else a new one here)
  --part=i/n               trains the i-th of n parts; n launchers share a directory
  --hosts=auto             one process a host, joined by jax.distributed; without a cluster that
                           tells it: HOST:PORT,INDEX,COUNT, the address being that of the first
  --stuck_after=SECONDS    a worker that tells nothing for so long is ended, and its run tried once
                           more (default 1800)
  --help                   this text

examples:
  python scripts/{script} --config=experiments/quickstart.py --workdir=results
  python scripts/{script} --config=experiments/head_count.py:quick --dry_run
  python scripts/{script} --config=my_config.py --workdir=results --config.train.n_steps=500

SIGINT (Ctrl-C) and SIGTERM have the workers save their runs within 5 s; the same command continues.

exit codes: 0 fine, 1 a run failed, 2 bad input, 3 a run has checkpoints and none can be used,
130 and 143 stopped by SIGINT and SIGTERM
"""
_VALUED = ("--config", "--workdir", *options.FLAGS)
_SWITCHES = ("--dry_run", "--json", "--help")
_MOST_TOLD = 40  # problems printed; a thousand lines help nobody


@dataclasses.dataclass
class Arguments:
    """A parsed command line."""

    flags: dict[str, str] = dataclasses.field(
        default_factory=dict
    )  # flag -> value, "" for a switch
    overrides: list[str] = dataclasses.field(default_factory=list)  # "model.n_heads=8"
    problems: list[Problem] = dataclasses.field(default_factory=list)

    @property
    def config(self) -> tuple[str, str | None]:
        """Path and argument of --config."""
        path, colon, arg = self.flags.get("--config", "").partition(".py:")
        return (f"{path}.py", arg) if colon else (path, None)


def parse_args(argv: Sequence[str]) -> Arguments:
    """Reads a command line; what is wrong with it is in `problems`, all of it."""
    args = Arguments()
    rest = list(argv)
    while rest:
        word = rest.pop(0)
        flag, equals, value = word.partition("=")
        flag = {"-h": "--help", "--dry-run": "--dry_run"}.get(flag, flag)
        if flag.startswith("--config."):
            args.overrides.append(word.removeprefix("--config."))
        elif flag in args.flags:
            args.problems.append(
                Problem(flag, value if equals else ABSENT, "is given twice; keep one")
            )
        elif flag in _SWITCHES:
            args.flags[flag] = ""
            if equals:
                args.problems.append(
                    Problem(flag, value, f"is a switch and takes no value; write {flag}")
                )
        elif flag in _VALUED:
            if not equals and rest and not rest[0].startswith("-"):
                value = rest.pop(0)
            args.flags[flag] = value
            if not value:
                args.problems.append(Problem(flag, ABSENT, f"has no value; write {flag}=<value>"))
        else:
            fix = nearest(flag, [*_VALUED, *_SWITCHES]) or "; --help lists the flags"
            args.problems.append(Problem(flag, value if equals else ABSENT, f"is no flag{fix}"))
    if "--help" not in args.flags:
        args.problems += _missing(args)
    return args


def _missing(args: Arguments) -> list[Problem]:
    """Flags that are absent, contradict each other or hold something unusable."""
    problems = []
    flags = args.flags
    if "--config" not in flags:
        wrong = "is missing; write --config=experiments/quickstart.py"
        problems.append(Problem("--config", ABSENT, wrong))
    elif args.config[1] == "":
        wrong = "has a colon and no argument; write one after it, or drop the colon"
        problems.append(Problem("--config", flags["--config"], wrong))
    if "--json" in flags and "--dry_run" not in flags:
        problems.append(Problem("--json", ABSENT, "prints a dry run; add --dry_run"))
    if "--workdir" not in flags and "--dry_run" not in flags:
        problems.append(
            Problem("--workdir", ABSENT, "is missing; write --workdir=results, or --dry_run")
        )
    elif flags.get("--workdir"):
        problems += _unusable(flags["--workdir"])
    problems += options.read(flags)[1]
    return problems


def _unusable(workdir: str) -> list[Problem]:
    """Why results cannot be written to a directory that may not exist yet."""
    reason = ""
    try:
        place = Path(workdir).absolute()
        while not os.path.lexists(place):
            place = place.parent
        if "\0" in workdir:
            reason = "it holds a null byte"
        elif not place.is_dir():
            reason = f"{place} is a file"
        elif not os.access(place, os.W_OK | os.X_OK):
            reason = f"{place} is not writable"
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
    return (
        [Problem("--workdir", workdir, f"cannot be used ({reason}); name another")]
        if reason
        else []
    )


def plan(args: Arguments, *, single: bool) -> Sweep | None:
    """The sweep a command line describes, with every problem; None if it names no config."""
    from mha_jax.load import load
    from mha_jax.sweep import expand

    path, arg = args.config
    if not path:
        return None
    loaded = load(path, arg, args.overrides)
    if single:
        loaded.sweep = None
    sweep = expand(loaded)
    sweep.problems[:0] = args.problems
    return sweep


def main(argv: Sequence[str] | None = None, *, single: bool = False) -> int:
    """Runs a sweep, or with `single` the run get_config describes; returns the exit code."""
    args = parse_args(sys.argv[1:] if argv is None else argv)
    if "--help" in args.flags:
        script, purpose = ("train.py", _TRAIN) if single else ("sweep.py", _SWEEP)
        print(_HELP.format(script=script, purpose=purpose).strip())
        return 0
    try:
        with signals.handled(signals.stop):
            return _carry_out(args, single)
    except signals.Stopped as stopped:
        print(stopped, file=sys.stderr)
        return stopped.code


def _carry_out(args: Arguments, single: bool) -> int:
    sweep = plan(args, single=single)
    problems = args.problems if sweep is None else sweep.problems
    if problems or sweep is None:
        tell(problems)
        return 2
    if "--dry_run" in args.flags:
        from mha_jax.plan import dry_run_json, dry_run_table

        print(
            json.dumps(dry_run_json(sweep), indent=2)
            if "--json" in args.flags
            else dry_run_table(sweep)
        )
        return 0
    from mha_jax.launch import launch

    try:
        return launch(sweep, Path(args.flags["--workdir"]), options.read(args.flags)[0])
    except WorkerError as error:
        print(error, file=sys.stderr)
        return 1
    except (ValueError, OSError) as error:
        print(error, file=sys.stderr)
        return 2


def tell(problems: Sequence[Problem]) -> None:
    """Prints problems on stderr."""
    lines = list(dict.fromkeys(map(str, problems)))
    print(
        f"{len(lines)} problem{'' if len(lines) == 1 else 's'}; nothing was started",
        file=sys.stderr,
    )
    for line in lines[:_MOST_TOLD]:
        print(f"  {line}", file=sys.stderr)
    if len(lines) > _MOST_TOLD:
        print(f"  and {len(lines) - _MOST_TOLD} more", file=sys.stderr)


def script(*, single: bool) -> None:
    """`main` as a script."""
    leave(lambda: main(single=single), "interrupted; launch again to continue")

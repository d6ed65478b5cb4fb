"""Compiles every program of a sweep ahead of time, for devices that need not be there, and tells
what each takes and whether it fits. Trains nothing.

usage: python scripts/compile.py --config=FILE.py[:ARG] --topology=NAME [--config.KEY=VALUE ...]
                                 [--lanes=N] [--json]

  --config      as scripts/sweep.py reads it
  --topology    v5e:2x2, v6e:2x2, v4:2x2x1, v5p:2x2x1 or another slice of such TPUs, compiled for by
                libtpu without one (pip install -e '.[tpu]'); or cpu, gpu, tpu: what is here
  --lanes       runs of a group that are trained together (default: all of them, as far as they
                fit); on a CPU always one a device
  --json        print JSON
  --help        this text

For each group of runs that share their programs: init, a chunk of training steps, evaluation, the
loss of each document, what the heads are examined with, and decoding; as scripts/sweep.py would run
them on one host of that kind, with the lanes spread over its devices. Bytes of arguments,
temporaries and outputs on each device, their peak, operations, bytes accessed, seconds of the
compiler. Exit codes: 0 everything compiles and fits, 1 something does not (told in one line each),
2 bad input.

example:
  python scripts/compile.py --config=experiments/head_count.py:quick --topology=v5e:2x2
"""

import json
import os
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

# The path above makes these importable without an install; none of them imports jax, which must
# find the settings that `topology.prepare` makes.
from mha_jax import cli, fits, topology  # noqa: E402
from mha_jax.flags import read, value  # noqa: E402
from mha_jax.load import load  # noqa: E402
from mha_jax.planned import PlannedRun, groups  # noqa: E402
from mha_jax.sweep import expand  # noqa: E402
from mha_jax.terminal import Status, leave  # noqa: E402
from mha_jax.values import Key  # noqa: E402

_LANES = Key("int", 1, 4096)


def main(argv: list[str]) -> int:
    """The exit code."""
    if "--help" in argv or "-h" in argv:
        print(__doc__)
        return 0
    changes = [word.removeprefix("--config.") for word in argv if word.startswith("--config.")]
    rest = [word for word in argv if not word.startswith("--config.")]
    try:
        valued = ("--config", "--topology", "--lanes")
        words = "flags alone, such as --config=experiments/quickstart.py --topology=v5e:2x2"
        _, flags = read(rest, 0, words, valued=valued, switches=("--json",))
        for flag, example in (("--config", "experiments/quickstart.py"), ("--topology", "v5e:2x2")):
            if flag not in flags:
                raise ValueError(f"{flag} is missing; write {flag}={example}")
        lanes = value(flags, "--lanes", _LANES, None)
        path, arg = cli.Arguments(flags).config
        sweep = expand(load(path, arg, changes))
        if sweep.problems:
            cli.tell(sweep.problems)
            return 2
        topology.prepare(flags["--topology"], os.environ)
        where = topology.find(flags["--topology"])
        if lanes and where.lane_mode == "sequential":
            raise ValueError("--lanes is for accelerators: a CPU carries one lane a device")
        done = _compiled(list(groups(sweep.runs).values()), where, lanes)
    except (ValueError, OSError) as error:
        print(f"compile.py: {error}", file=sys.stderr)
        return 2
    told = _json(done, where) if "--json" in flags else _text(done, where)
    print(told)
    return int(bool(fits.problems(done, where.memory_bytes)))


def _compiled(
    found: list[list[PlannedRun]], where: topology.Topology, lanes: int | None
) -> list[fits.GroupPrograms]:
    # Imports jax.
    from mha_jax import aot

    status, compiler, done = Status(), aot.Compiler(), []
    for i, planned in enumerate(found, 1):
        about, run = planned[0].about, planned[0].run
        name = f"group {i}  {run.group_hash}  {about['task']} {about['variant']}"
        spread = aot.spread(run.static, lanes or len(planned), where)
        compiled = []
        for program, lower in aot.lowerings(run.static, spread):
            status(f"group {i} of {len(found)}, {program}")
            compiled.append(compiler(program, lower))
        n_devices = len(spread.devices)
        one = fits.GroupPrograms(
            name, len(planned), spread.lanes, n_devices, spread.kernel, compiled
        )
        done.append(one)
    status.clear()
    return done


def _json(done: list[fits.GroupPrograms], where: topology.Topology) -> str:
    told = {
        "topology": where.name,
        "n_devices": len(where.devices),
        "device": where.devices[0].device_kind,
        "memory_bytes": where.memory_bytes,
        "versions": {name: _version(name) for name in ("jax", "jaxlib", "libtpu")},
        "groups": fits.to_json(done, where.memory_bytes),
        "problems": fits.problems(done, where.memory_bytes),
    }
    return json.dumps(told, indent=2)


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def _text(done: list[fits.GroupPrograms], where: topology.Topology) -> str:
    kind = where.devices[0].device_kind
    return f"{where.name}: {len(where.devices)} x {kind}\n{fits.to_text(done, where.memory_bytes)}"


if __name__ == "__main__":
    leave(lambda: main(sys.argv[1:]))

"""How many heads a trained run can lose: held-out quality against heads and cache bytes that stay.

usage: python scripts/prune.py RUN [flags]

  RUN            a run, <workdir>/<experiment>/<label>-<hash>
  --at           which checkpoint: last, best or a step (default: last)
  --by           importance that heads are ordered by: gradient, zero, mean, resample
                 (default: zero)
  --random       random orders, the control (default: 5)
  --lambdas      prices of an open head, in the unit of the loss, for the L0 gates: 0.01,0.1
                 (default: .03, .1, .3 and 1 times what a head is worth on average)
  --gate_steps   updates of the gates at each lambda (default: 500)
  --gate_lr      their peak learning rate (default: 0.1)
  --frozen       train the gates alone, not the model's parameters beside them
  --seed         of the gates, and of the first random order (default: 0)
  --remove       kv heads to take out of the model for good, to see that it then computes the same
                 as with masks (default: half of them); no run is written
  --overwrite    replace pruning.csv and pruning.png where they exist
  --json         print JSON
  --help         this text

Heads are ordered one-shot, iteratively and at random, and by L0 gates trained from the run;
importance is measured on validation data, gates are trained on training data, and all points are
measured on test data. Writes RUN/pruning.csv and RUN/pruning.png and prints a short table.
Exit codes: 0 fine, 2 bad input (told in one line, nothing was written).
"""

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from mha_jax.flags import run_and_checkpoint  # noqa: E402
from mha_jax.host import restart  # noqa: E402
from mha_jax.terminal import Status, answer, leave  # noqa: E402
from mha_jax.values import Key, Problem, parse, read  # noqa: E402

_SWITCHES = ("--frozen", "--overwrite")
_VALUES = {
    "--by": Key("str", choices=("gradient", "zero", "mean", "resample")),
    "--random": Key("int", 0, 1000),
    "--lambdas": Key("str"),
    "--gate_steps": Key("int", 1, 10**9),
    "--gate_lr": Key("float", 0, 100, above=True),
    "--seed": Key("int", 0, 2**31 - 1),
    "--remove": Key("int", 1, 10**6),
}
_PRICE = Key("float", 0, 1e9)
_FILES = ("pruning.csv", "pruning.png")


def main(argv: list[str]) -> int:
    """The exit code."""
    return answer("prune.py", __doc__, argv, lambda: _told(argv))


def _told(argv: list[str]) -> str:
    word, at, flags = run_and_checkpoint(argv, valued=tuple(_VALUES), switches=_SWITCHES)
    given = {flag: _value(flag, text) for flag, text in flags.items() if flag in _VALUES}
    directory = Path(word)
    if "--overwrite" not in flags:
        _check_free(directory)
    return _prune(directory, at, given, frozen="--frozen" in flags, as_json="--json" in flags)


def _prune(
    directory: Path, at: str | int, given: dict[str, Any], *, frozen: bool, as_json: bool
) -> str:
    """Writes the files; what is printed."""
    # Slow to import, so after what can be answered without.
    from mha_jax import prune, prune_text
    from mha_jax.checkpoint import CheckpointError
    from mha_jax.files import write_atomic
    from mha_jax.report import pruning, tables
    from mha_jax.run import load_run

    fields = {"--random": "n_random"}
    plan = prune.Plan(
        frozen=frozen,
        **{fields.get(flag, flag[2:]): value for flag, value in given.items()},
    )
    status = Status()
    try:
        run = load_run(directory)
        pruned = prune.prune(run, plan, at, status)
    except CheckpointError as error:
        raise ValueError(error) from None
    finally:
        status.clear()
    rows = prune_text.rows(run, plan, pruned)
    title = f"{directory.resolve().name}, step {pruned.step}: what pruning costs"
    write_atomic(directory / "pruning.csv", tables.to_csv(rows, prune_text.COLUMNS))
    write_atomic(directory / "pruning.png", pruning.figure(rows, run.spec, title))
    if as_json:
        return json.dumps(prune_text.to_json(run, plan, pruned), indent=2)
    wrote = [f"wrote {directory / name}" for name in _FILES]
    return "\n".join([prune_text.to_text(run, plan, pruned), *wrote])


def _value(flag: str, text: str) -> Any:
    """What a flag's text stands for.

    Raises:
      ValueError: it cannot be that.
    """
    if flag == "--lambdas":
        if not all(part.strip() for part in text.split(",")):
            raise ValueError(f"--lambdas={text} must be numbers with commas between: 0.01,0.1")
        return tuple(_read(flag, _PRICE, part.strip()) for part in text.split(","))
    return _read(flag, _VALUES[flag], text)


def _read(flag: str, key: Key, text: str) -> Any:
    value, message = read(key, parse(key, text))
    if message:
        raise ValueError(str(Problem(flag, text, message)))
    return value


def _check_free(directory: Path) -> None:
    """Raises:
    ValueError: a file that would be written exists.
    """
    there = [name for name in _FILES if (directory / name).exists()]
    if there:
        raise ValueError(f"{directory / there[0]} exists; --overwrite replaces it")


if __name__ == "__main__":
    restart()
    leave(lambda: main(sys.argv[1:]))

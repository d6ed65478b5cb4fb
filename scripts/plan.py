"""What decoding costs, by arithmetic alone, and what fits on an accelerator. Needs no jax.

usage: python scripts/plan.py --preset=NAME,NAME,... [--context=4096] [--batch=1] [--dtype=bfloat16]
                              [--accelerator=NAME] [--devices=1] [--json]
       python scripts/plan.py --config=FILE.py[:ARG] [--config.KEY=VALUE ...] [the same]

  --preset       published models; all, or some of
                 NAMES
  --config       a model of ours, as scripts/train.py reads it; beside presets or alone
  --context      tokens of each sequence (default 4096)
  --batch        sequences that are decoded together (default 1)
  --dtype        of parameters and cache, bfloat16 (default) or float32
  --accelerator  ACCELERATORS
  --devices      how many of them share out the heads (default 1)
  --json         print JSON
  --help         this text

Prints parameters, bytes of the cache for each token and against MHA with the same heads, bytes that
a decode step reads, operations of the whole context as a prompt and of a step, and operations for
each byte; with an accelerator, what fits and the least time that its speeds allow. Exit codes: 0
fine, 2 bad input (told in one line).
"""

import json
import sys
import textwrap
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

# The path above makes these importable without an install.
from mha_jax import budget, schema  # noqa: E402
from mha_jax.accelerators import ACCELERATORS  # noqa: E402
from mha_jax.cli import Arguments  # noqa: E402
from mha_jax.decode_cost import LanguageModel  # noqa: E402
from mha_jax.flags import read, value  # noqa: E402
from mha_jax.load import load  # noqa: E402
from mha_jax.presets import PRESETS  # noqa: E402
from mha_jax.terminal import answer, leave  # noqa: E402
from mha_jax.values import Key, Problem, nearest, shorten  # noqa: E402

_KEYS = {
    "--context": (Key("int", 1, 10**9), 4096),
    "--batch": (Key("int", 1, 10**6), 1),
    "--dtype": (Key("str", choices=("bfloat16", "float32")), "bfloat16"),
    "--accelerator": (Key("str", choices=tuple(ACCELERATORS)), None),
    "--devices": (Key("int", 1, 4096), 1),
}
_Named = tuple[str, str, LanguageModel]  # name, source


def main(argv: list[str]) -> int:
    """The exit code."""
    return answer("plan.py", _help(), argv, lambda: _told(argv))


def _help() -> str:
    text = str(__doc__)
    for word, names in (("NAMES", PRESETS), ("ACCELERATORS", ACCELERATORS)):
        lines = textwrap.wrap(", ".join(names), 83, break_on_hyphens=False)
        text = text.replace(f" {word}\n", f" {f'{chr(10)}{17 * chr(32)}'.join(lines)}\n")
    return text


def _told(argv: list[str]) -> str:
    changes = [word for word in argv if word.startswith("--config.")]
    rest = [word for word in argv if word not in changes]
    valued = ("--preset", "--config", *_KEYS)
    _, flags = read(
        rest, 0, "flags alone, such as --preset=llama-3-8b", valued=valued, switches=("--json",)
    )
    if changes and "--config" not in flags:
        raise ValueError(
            f"{changes[0]} changes a config, and there is none; write --config=FILE.py"
        )
    models = [*_presets(flags), *_ours(flags, changes)]
    if not models:
        raise ValueError(
            "names no model; write --preset=llama-3-8b, --preset=all or --config=FILE.py"
        )
    asked = {flag: value(flags, flag, *how) for flag, how in _KEYS.items()}
    name, n_devices = asked["--accelerator"], asked["--devices"]
    if name is None and n_devices > 1:
        raise ValueError(f"--devices={n_devices} says how many accelerators; add --accelerator")
    wanted = budget.Load(
        context=asked["--context"],
        batch=asked["--batch"],
        dtype=asked["--dtype"],
        n_devices=n_devices,
        accelerator=None if name is None else (name, ACCELERATORS[name]),
    )
    rows, left_out = [], []
    for one in models:
        try:
            rows.append(budget.row(*one, wanted))
        except ValueError as error:  # heads that so many devices cannot share out
            left_out.append(str(error))
    if not rows:
        raise ValueError(left_out[0])
    if "--json" in flags:
        told = {**budget.to_json(rows, wanted), "left_out": left_out}
        return json.dumps(told, indent=2)
    return "\n".join([budget.to_text(rows, wanted), *(f"left out: {line}" for line in left_out)])


def _presets(flags: dict[str, str]) -> list[_Named]:
    names = [name for name in flags.get("--preset", "").split(",") if name]
    if names == ["all"]:
        names = list(PRESETS)
    for name in names:
        if name not in PRESETS:
            fix = nearest(name, PRESETS) or "; --help lists them"
            raise ValueError(str(Problem("--preset", name, f"is no preset{fix}")))
    return [(name, PRESETS[name].source, PRESETS[name].one) for name in dict.fromkeys(names)]


def _ours(flags: dict[str, str], changes: list[str]) -> list[_Named]:
    path, arg = Arguments(flags).config
    if not path:
        return []
    loaded = load(path, arg, [word.removeprefix("--config.") for word in changes])
    run, problems = None, loaded.problems
    if not problems:
        run, problems = schema.resolve(loaded.config)
    if run is None or problems:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise ValueError(f"{problems[0]}{more}")
    task = run.static.task
    if not task.spec.autoregressive:
        raise ValueError(f"the task {task.name!r} of {path} does not predict its next token")
    one = LanguageModel(run.static.model, task.spec)
    return [(loaded.name, shorten(path), one)]


if __name__ == "__main__":
    leave(lambda: main(sys.argv[1:]))

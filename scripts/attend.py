"""Shows the attention of trained runs, and computes with it, in one HTML file.

usage: python scripts/attend.py --run=DIR [--run=DIR ...] [--text=TEXT | --sequence=I] [--step=N]
                                --out=page.html [--force]
       python scripts/attend.py --demo [--run=DIR ...] --out=page.html [--force]

  --run       a run, <workdir>/<experiment>/<label>-<hash>; several are flipped by buttons
  --text      what they read, if their task reads text (english: words, text: UTF-8 bytes)
  --sequence  which sequence of the probe draw they read (default: 0)
  --step      one checkpoint: a step, last or best (default: a slider over all that are kept, if the
              page stays under 1 MB with them, else the last)
  --demo      the demonstration: a constructed model, models of english, a model of text. Trains
              five small runs, which takes minutes and leaves nothing, or shows the runs of english
              and of text that --run names
  --out       the file to write
  --force     write over a file that is no attention page
  --help      this text

The page needs no server and no network: open the file. Exit codes: 0 fine, 1 a run of the
demonstration failed, 2 bad input (told in one line).
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from mha_jax.engines.base import WorkerError  # noqa: E402
from mha_jax.flags import checkpoint, read, value  # noqa: E402
from mha_jax.host import restart  # noqa: E402
from mha_jax.terminal import leave  # noqa: E402
from mha_jax.values import Key  # noqa: E402

_SEQUENCE = Key("int", 0, 10**6)


def main(argv: list[str]) -> int:
    """The exit code."""
    if "--help" in argv or "-h" in argv:
        print(__doc__)
        return 0
    try:
        directories = [word.removeprefix("--run=") for word in argv if word.startswith("--run=")]
        rest = [word for word in argv if not word.startswith("--run=")]
        print(_written(directories, _flags(rest, directories)))
    except (ValueError, OSError) as error:
        print(f"attend.py: {error}", file=sys.stderr)
        return 2
    except WorkerError as error:
        print(f"attend.py: {error}", file=sys.stderr)
        return 1
    return 0


def _flags(argv: list[str], directories: list[str]) -> dict[str, str]:
    """The other flags, checked as far as that needs no run."""
    valued = ("--text", "--sequence", "--step", "--out")
    words = "flags alone, such as --run=DIR --out=page.html"
    _, flags = read(argv, 0, words, valued=valued, switches=("--demo", "--force"))
    if "--out" not in flags:
        raise ValueError("--out is missing; write --out=page.html")
    if "--demo" in flags and (found := {"--text", "--sequence", "--step"} & flags.keys()):
        raise ValueError(f"--demo has a sentence of its own and takes no {min(found)}; drop one")
    if "--demo" not in flags and not directories:
        raise ValueError("--run is missing; write --run=<workdir>/<experiment>/<run>, or --demo")
    if "--text" in flags and "--sequence" in flags:
        raise ValueError("--text and --sequence both say what is read; drop one")
    if "" in directories:
        raise ValueError("--run has no value; write --run=<workdir>/<experiment>/<run>")
    return flags


def _written(directories: list[str], flags: dict[str, str]) -> str:
    """What is told of the page that was written."""
    out = Path(flags["--out"])
    index = value(flags, "--sequence", _SEQUENCE, 0)
    at = checkpoint(flags["--step"], "--step") if "--step" in flags else None
    # Slow to import, so after what can be answered without.
    from mha_jax.checkpoint import CheckpointError
    from mha_jax.page import demo, html, runs
    from mha_jax.page.shown import Shown, check_free
    from mha_jax.run import load_run

    check_free(out, force="--force" in flags)
    loaded = [load_run(directory) for directory in directories]
    left_out = ""
    try:
        if "--demo" in flags:
            tabs = demo.tabs(loaded)
        else:
            one, left_out = runs.tab("Runs", loaded, text=flags.get("--text"), index=index, at=at)
            tabs = [one]
    except CheckpointError as error:
        raise ValueError(error) from None
    page = Shown(html.page("Attention", tabs))
    page.save(out, force="--force" in flags)
    told = f"{out}: {len(page.html) / 1e6:.2f} MB"
    return f"{told}; {left_out}" if left_out else told


if __name__ == "__main__":
    restart()
    leave(lambda: main(sys.argv[1:]))

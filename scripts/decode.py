"""Goes on with a prompt, token by token, and tells what the key/value cache cost.

usage: python scripts/decode.py RUN --prompt=TEXT [--n_new=200] [--temperature=0.8] [--top_k=0]
                                [--top_p=1] [--seed=0] [--stop=TEXT] [--at=last|best|STEP] [--json]

  RUN            a run of a task that predicts its next token: text, copy, induction, ...
  --prompt       what to go on with; for other tasks than text words: "3 1 2 |"
  --n_new        tokens at most (default 200)
  --temperature  of the draw (default 0.8); 0: the likeliest token
  --top_k        draw from the likeliest k tokens only (default 0: all)
  --top_p        draw from the fewest tokens with this probability (default 1: all)
  --seed         of the draws (default 0)
  --stop         end at this byte or word
  --at           which checkpoint (default: last)
  --json         print JSON, with the text in it, and stream nothing
  --help         this text

Streams the text to stdout; tokens a second, bytes of the cache and bytes read a step go to stderr,
with the share of the speed at which this machine reads memory, measured in the same process. Exit
codes: 0 fine, 2 bad input (told in one line).
"""

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

# The path above makes these importable without an install.
from mha_jax.flags import run_and_checkpoint, value  # noqa: E402
from mha_jax.host import restart  # noqa: E402
from mha_jax.terminal import leave  # noqa: E402
from mha_jax.values import Key  # noqa: E402

_NUMBERS = {
    "--n_new": (Key("int", 1, 10**6), 200),
    "--temperature": (Key("float", 0, 1000), 0.8),
    "--top_k": (Key("int", 0, 10**6), 0),
    "--top_p": (Key("float", 0, 1, above=True), 1.0),
    "--seed": (Key("int", 0, 2**31 - 1), 0),
}


def main(argv: list[str]) -> int:
    """The exit code."""
    if "--help" in argv or "-h" in argv:
        print(__doc__)
        return 0
    try:
        valued = ("--prompt", "--stop", *_NUMBERS)
        directory, at, flags = run_and_checkpoint(argv, valued=valued)
        if "--prompt" not in flags:
            raise ValueError("--prompt is missing; write --prompt='some text'")
        numbers = {flag: value(flags, flag, *how) for flag, how in _NUMBERS.items()}
        told = _decode(directory, at, flags, numbers)
    except (ValueError, OSError) as error:
        print(f"decode.py: {error}", file=sys.stderr)
        return 2
    if "--json" in flags:
        print(json.dumps(told, indent=2))
    else:
        print(_text(told), file=sys.stderr)
    return 0


def _decode(
    directory: str, at: str | int, flags: dict[str, str], numbers: dict[str, Any]
) -> dict[str, Any]:
    # Slow to import, so after what can be answered without.
    from mha_jax import stream
    from mha_jax.checkpoint import CheckpointError
    from mha_jax.run import load_run
    from mha_jax.sampling import Sampling

    sampling = Sampling(numbers["--temperature"], numbers["--top_k"], numbers["--top_p"])
    show = (lambda text: None) if "--json" in flags else _show
    try:
        return stream.go_on(
            load_run(directory),
            flags["--prompt"],
            at=at,
            n_new=numbers["--n_new"],
            sampling=sampling,
            seed=numbers["--seed"],
            stop=flags.get("--stop"),
            show=show,
        )
    except CheckpointError as error:
        raise ValueError(error) from None


def _show(text: str) -> None:
    print(text, end="", flush=True)


def _text(told: dict[str, Any]) -> str:
    lines = [
        f"\n{told['n_prompt']} tokens read, {told['n_new']} made; a cache for {told['capacity']}: "
        f"{told['cache_bytes']:,} bytes; {told['bytes_read_per_step']:,} bytes read a step",
    ]
    if told["tokens_per_s"] is None:
        return "\n".join(
            [*lines, "too few tokens to tell the speed: each size of the cache needs 32"]
        )
    share, limit = told["share_of_memory_speed"], told["memory_bytes_per_s"]
    speed = f"{told['tokens_per_s']:,.0f} tokens/s, {share:.1%} of what reading memory at "
    held = ": the processor's own cache holds it" if share > 1 else ""
    return "\n".join([*lines, f"{speed}{limit / 1e9:.1f} GB/s allows{held}"])


if __name__ == "__main__":
    restart()
    leave(lambda: main(sys.argv[1:]))

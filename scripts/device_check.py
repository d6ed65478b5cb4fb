"""Checks a device in one short run: does everything compute the same here, does a small sweep
learn, how fast are training and decoding, and what share of the device is that.

usage: python scripts/device_check.py [--json]

  --json   print JSON
  --help   this text

One command on a bare machine, after `pip install -e '.[cuda]'` or `'.[tpu]'`; under four minutes on
one GPU, longer on a CPU. It takes the first device that jax finds.

  sweep    four runs of the task `relations`, started as scripts/sweep.py starts them, in a
           temporary directory; each must answer nine of ten, as on a CPU (there .999 and more)
  parity   every form of attention against the reference, outputs and gradients, in float32 and
           bfloat16; a cache against whole sequences
  train    width 256, two layers of four heads, MLP of 1024, windows of 256 bytes in batches of 16:
           one run, and eight in one dispatch
  decode   width 512, two layers of eight heads and two kv heads, 1024 tokens of context, one
           sequence and 64, beside the bytes that a step must read

Shares are of the peaks that the maker tells, or of a product and a read measured here where the
device is not in the table of scripts/plan.py. Exit codes: 0 fine, 1 a parity check failed or the
sweep did not learn, 2 bad input (told in one line).
"""

import contextlib
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

# The path above makes these importable without an install. None of them imports jax: the sweep's
# worker must find the device free.
from configs import text  # noqa: E402
from mha_jax import cli, host, schema, store  # noqa: E402
from mha_jax.flags import read  # noqa: E402
from mha_jax.terminal import Status, leave, si, table  # noqa: E402

_SWEEP = """
from configs import base


def get_config(arg=None):
    config = base.get_config()
    config.train.n_steps = 1000
    config.optim.lr = 4e-3
    return config


def sweep(add):
    for seed in range(4):
        add({"train.seed": seed, "train.data_seed": seed})
"""
_MUST = 0.9  # accuracy of each run
_CONTEXT, _BATCHES, _LANES = 1024, (1, 64), (1, 8)
_SMALL = {"n_layers": 1}
_FORMS = {
    "MHA": _SMALL,
    "GQA-2": {**_SMALL, "n_kv_heads": 2},
    "4 + window 16": {**_SMALL, "window": 16, "n_sinks": 4},
}
_MLA = {"mixer": "mla", "n_kv_heads": 1, "d_latent": 32, "d_rope": 8}
_CACHES = {**_FORMS, "MLA": {**_SMALL, **_MLA}}
_TRAINED = {"d_model": 256, "n_heads": 4, "d_ff": 1024}
_DECODED = {"d_model": 512, "n_heads": 8, "n_kv_heads": 2, "d_ff": 0}


def main(argv: list[str]) -> int:
    """The exit code."""
    if "--help" in argv or "-h" in argv:
        print(__doc__)
        return 0
    try:
        _, flags = read(argv, 0, "no words", switches=("--json",))
    except ValueError as error:
        print(f"device_check.py: {error}", file=sys.stderr)
        return 2
    told = _checked()
    print(json.dumps(told, indent=2) if "--json" in flags else _text(told))
    return int(bool(told["failed"]))


def _checked() -> dict[str, Any]:
    start, status = time.perf_counter(), Status()
    swept = _sweep()  # before jax takes the device
    host.prepare(None)
    import jax

    from mha_jax import kernel_choice
    from mha_jax.bench import parity, peaks, rates

    def told(what: str, found: Callable[[], Any]) -> Any:
        status(what)
        return found()

    fused = kernel_choice.OF_PLATFORM.get(jax.default_backend())
    kernels = ["fast", *([fused] if fused else [])]
    compared = told("parity of attention", lambda: parity.forms(_statics(_FORMS, 128), kernels))
    compared += told("parity of caches", lambda: parity.decoding(_statics(_CACHES, 64)))
    best = told("peaks", peaks.peaks)
    trained = _static(_TRAINED, 256, batch_size=16)
    training = [
        told(f"training, {lanes} at once", lambda n=lanes: rates.training(trained, n, best))
        for lanes in _LANES
    ]
    decoded = _static(_DECODED, 256)
    decoding = told("decoding", lambda: rates.decoding(decoded, _CONTEXT, _BATCHES, best))
    status.clear()
    failed = [row["name"] for row in compared if not row.get("ok", True)]
    failed += [] if swept["ok"] else ["sweep"]
    device = jax.devices()[0].device_kind
    return {
        "device": device,
        "n_devices": jax.local_device_count(),
        "environment": host.describe(device, {}),
        "peaks": best,
        "sweep": swept,
        "parity": compared,
        "train": training,
        "lanes_gain": training[-1]["models_steps_per_s"] / training[0]["models_steps_per_s"],
        "decode": decoding,
        "failed": failed,
        "seconds": time.perf_counter() - start,
    }


def _sweep() -> dict[str, Any]:
    """Four runs by a worker process, which has left the device when this returns."""
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "device_check.py"
        config.write_text(_SWEEP)
        with contextlib.redirect_stdout(sys.stderr):
            code = cli.main([f"--config={config}", f"--workdir={folder}", "--workers=1"])
        runs = store.read_sweep(Path(folder) / "device_check")[0] if code in (0, 1) else []
        done = [run.summary for run in runs if run.status == "done"]
        accuracy = [summary["final"]["test/accuracy"] for summary in done]
        timing = [summary["timing"]["steps_per_s"] for summary in done]
    return {
        "name": "sweep",
        "accuracy": accuracy,
        "must": _MUST,
        "ok": code == 0 and min(accuracy, default=0) >= _MUST,
        "steps_per_s": timing,
        "seconds": time.perf_counter() - start,
    }


def _statics(models: dict[str, dict[str, Any]], length: int) -> dict[str, Any]:
    return {name: _static(model, length) for name, model in models.items()}


def _static(model: dict[str, Any], length: int, **train: Any) -> Any:
    config = text.get_config()
    config.task.text.length = length
    config.model.update(model)
    config.train.update(train)
    run, problems = schema.resolve(config.to_dict())
    assert run is not None, problems
    return run.static


def _text(told: dict[str, Any]) -> str:
    best, swept = told["peaks"], told["sweep"]
    accuracy = ", ".join(f"{x:.3f}" for x in swept["accuracy"])
    measured = ", ".join(f"{si(x)} {name}" for name, x in best["measured"].items())
    lines = [
        f"{told['n_devices']} x {told['device']}, jax {told['environment']['versions']['jax']}",
        f"peaks: {si(best['flops_per_s'])}FLOP/s, {si(best['bytes_per_s'])}B/s ({best['source']})",
        f"measured: {measured}",
        f"sweep: accuracy {accuracy or '-'} (must be at least {swept['must']}), "
        f"{swept['seconds']:.0f} s from command to tables",
        "",
    ]
    body = [
        (row["name"], "skipped", row["skipped"])
        if "skipped" in row
        else (row["name"], "ok" if row["ok"] else "FAILED", _number(row["difference"]))
        for row in told["parity"]
    ]
    lines += [*table(("parity", "", "difference"), body), ""]
    body = [
        (row["name"], f"{row['step_ms']:.3g}", _per_s(row), f"{row['share_of_peak']:.1%}")
        for row in (*told["train"], *told["decode"])
    ]
    lines += [*table(("speed", "ms a step", "a second", "of the peak"), body), ""]
    lines.append(f"{_LANES[-1]} lanes do {told['lanes_gain']:.2f} times the work of one")
    failed = ", ".join(told["failed"])
    return "\n".join(
        [*lines, f"FAILED: {failed}" if failed else f"fine, in {told['seconds']:.0f} s"]
    )


def _number(value: float | None) -> str:
    return "not a number" if value is None else f"{value:.1e}"


def _per_s(row: dict[str, Any]) -> str:
    if "tokens_per_s" in row:
        return f"{row['tokens_per_s']:,.0f} tokens"
    return f"{row['models_steps_per_s']:.3g} steps"


if __name__ == "__main__":
    leave(lambda: main(sys.argv[1:]))

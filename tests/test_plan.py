"""Published models as their authors count them, and what scripts/plan.py says of them."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from mha_jax import budget, cost, decode_cost
from mha_jax.accelerators import ACCELERATORS, Accelerator
from mha_jax.presets import PRESETS

ROOT = Path(__file__).resolve().parent.parent


def plan(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of scripts/plan.py."""
    spec = importlib.util.spec_from_file_location("plan_script", ROOT / "scripts" / "plan.py")
    assert spec is not None and spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    code = script.main(list(argv))
    out, err = capsys.readouterr()
    return code, out, err


@pytest.mark.parametrize("name", PRESETS)
def test_shapes_give_the_published_number_of_parameters(name: str) -> None:
    assert decode_cost.n_params(PRESETS[name].one) == PRESETS[name].published


# In billions, as their authors write them in papers and model cards.
ROUNDED = {
    "llama-2-7b": 6.74,
    "llama-2-70b": 68.98,
    "llama-3-8b": 8.03,
    "llama-3-70b": 70.55,
    "mistral-7b-v0.1": 7.24,
    "qwen2.5-7b": 7.62,
    "qwen2.5-72b": 72.7,
    "qwen3-8b": 8.19,
    "gemma-2-9b": 9.24,
}


@pytest.mark.parametrize(("name", "billions"), ROUNDED.items())
def test_parameters_in_billions(name: str, billions: float) -> None:
    digits = len(str(billions).partition(".")[2])
    assert round(decode_cost.n_params(PRESETS[name].one) / 1e9, digits) == billions


# In billions: all parameters, and those that a token passes, with or without the table of tokens;
# authors do either, and cut or round.
@pytest.mark.parametrize(
    ("name", "total", "active", "digits"),
    [
        ("mixtral-8x7b", 46.7, 12.9, 1),
        ("deepseek-v2", 236, 21, 0),
        ("deepseek-v2-lite", 15.7, 2.4, 1),
        ("deepseek-v3", 671, 37, 0),
    ],
)
def test_experts_add_up_to_what_is_stated(
    name: str, total: float, active: float, digits: int
) -> None:
    one = PRESETS[name].one
    assert round(decode_cost.n_params(one) / 1e9, digits) == total
    passed = decode_cost.n_params_active(one)
    table = one.spec.input_sizes[0] * one.model.d_model
    assert min(abs(active - x / 1e9) for x in (passed, passed - table)) < 10**-digits


# 2 x layers x kv heads x d_head x 2 bytes; with MLA layers x (512 + 64) x 2.
BYTES = {
    "llama-2-7b": 524288,
    "llama-2-13b": 819200,
    "llama-2-70b": 327680,
    "llama-3-8b": 131072,
    "llama-3.1-405b": 516096,
    "llama-3.2-1b": 32768,
    "mistral-7b-v0.3": 131072,
    "qwen2.5-7b": 57344,
    "qwen3-32b": 262144,
    "gemma-2b": 18432,
    "gemma-7b": 458752,
    "deepseek-v2": 69120,
    "deepseek-v2-lite": 31104,
    "deepseek-v3": 70272,
}


@pytest.mark.parametrize(("name", "size"), BYTES.items())
def test_bytes_a_token(name: str, size: int) -> None:
    model = PRESETS[name].one.model
    assert cost.kv_bytes_per_token(model, 4096) == cost.kv_bytes_per_token(model, 512) == size


def test_windows_stop_a_cache_from_growing() -> None:
    def resident(name: str, context: int) -> int:
        return cost.kv_bytes_resident(PRESETS[name].one.model, context)

    assert resident("mistral-7b-v0.1", 4096) == resident("mistral-7b-v0.1", 32768) == 131072 * 4096
    windows = {name: [x.window for x in PRESETS[name].one.model.layers] for name in PRESETS}
    assert windows["gemma-2-9b"] == [4096, 0] * 21
    assert [i for i, window in enumerate(windows["gemma-3-1b"], 1) if not window] == [6, 12, 18, 24]
    # Half of the 42 layers have a window of 4096; 8 kv heads of 256.
    assert resident("gemma-2-9b", 8192) == 21 * (4096 + 8192) * 2 * 8 * 256 * 2
    # 4 of 26 layers see everything, the others 512 tokens; one kv head of 256.
    assert resident("gemma-3-1b", 8192) == (22 * 512 + 4 * 8192) * 2 * 256 * 2


def test_the_ratio_to_mha_of_published_models() -> None:
    got = {name: decode_cost.ratio_to_mha(PRESETS[name].one.model, 4096) for name in PRESETS}
    assert (got["llama-2-7b"], got["llama-2-70b"], got["llama-3-8b"]) == (1, 1 / 8, 1 / 4)
    assert got["gemma-2b"] == 1 / 8
    assert got["deepseek-v2"] == (512 + 64) / (2 * 128 * 128)


def load(**changes: Any) -> budget.Load:
    chip = ("chip", Accelerator(100 * 10**9, 1e12, 4e12, "made up"))
    plain = {"context": 1000, "batch": 2, "dtype": "bfloat16", "n_devices": 1, "accelerator": chip}
    return budget.Load(**{**plain, **changes})


def test_what_fits_by_hand() -> None:
    """Llama-3-8B: 16 GB of weights, of which a step reads 15 GB, and 131 MB of cache a sequence."""
    weights, cache = 2 * 8_030_261_248, 1000 * 131072
    told = budget.row("x", "s", PRESETS["llama-3-8b"].one, load())
    assert told["bytes_on_device"] == weights + 2 * cache
    assert told["largest_batch"] == (100 * 10**9 - weights) // cache == 640
    read = weights - 2 * 128256 * 4096 + 2 * cache
    assert told["bytes_read_per_step"] == read
    assert told["step_s"] == pytest.approx(read / 1e12) and told["step_bound"] == "memory"
    assert told["tokens_per_s"] == pytest.approx(2 / (read / 1e12))
    assert told["prefill_s"] == pytest.approx(told["prefill_flops"] / 4e12)
    assert told["fits"]
    for batch, fits in ((640, True), (641, False)):
        full = budget.row("x", "s", PRESETS["llama-3-8b"].one, load(batch=batch))
        assert full["fits"] is fits
        assert full["step_s"] == pytest.approx(full["decode_flops"] / 4e12)
        assert full["step_bound"] == "compute"


def test_in_float32_all_is_twice_as_large_and_no_speed_is_known() -> None:
    half, whole = (
        budget.row("x", "s", PRESETS["gemma-2b"].one, load(dtype=dtype))
        for dtype in ("bfloat16", "float32")
    )
    for key in ("weight_bytes", "kv_bytes_resident", "kv_bytes_per_token", "bytes_read_per_step"):
        assert whole[key] == 2 * half[key]
    assert whole["ratio_to_mha"] == half["ratio_to_mha"]
    assert whole["prefill_s"] is None and whole["step_bound"] == "memory"


def test_devices_share_weights_and_copy_the_last_kv_head() -> None:
    """Llama-2-70B on 4 devices: 2 of 8 kv heads each. DeepSeek-V2: the latent on each."""
    weights = 2 * 68_976_648_192 / 4
    told = budget.row("x", "s", PRESETS["llama-2-70b"].one, load(n_devices=4))
    cache = 2 * 1000 * 327680 / 4
    assert told["bytes_on_device"] == weights + cache
    assert told["step_s"] == pytest.approx((weights - 2 * 32000 * 8192 / 4 + cache) / 1e12)
    alone, four = (
        budget.row("x", "s", PRESETS["deepseek-v2"].one, load(n_devices=n)) for n in (1, 4)
    )
    cache = 2 * 1000 * 69120
    assert four["bytes_on_device"] - cache == (alone["bytes_on_device"] - cache) / 4
    read = (alone["bytes_read_per_step"] - cache) / 4 + cache
    assert four["step_s"] == pytest.approx(read / 1e12)


def test_accelerators_are_written_in_plain_units() -> None:
    for name, chip in ACCELERATORS.items():
        assert 10**10 < chip.memory_bytes < 2 * 10**11, name
        assert 5e11 < chip.bytes_per_s < 1e13 and 1e14 < chip.flops_per_s < 1e15, name


def test_the_table_names_every_model_and_its_source(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = plan(capsys, "--preset=all", "--context=8192", "--accelerator=h200")
    assert (code, err) == (0, "")
    for name, preset in PRESETS.items():
        assert out.count(f" {name} ") == 2 and f"  {name}: {preset.source}\n" in f"{out}\n"
    lines = {line.split()[0]: line for line in out.split("h200:")[0].splitlines() if line.strip()}
    assert lines["llama-3-8b"].split()[1:6] == ["GQA-8", "8.03", "G", "131,072", "25.0%"]
    assert "235.7 G (21.38 G)" in lines["deepseek-v2"] and "(): parameters" in out
    assert "made for: llama-2-7b, llama-2-13b, llama-2-70b." in out


def test_a_model_that_so_many_devices_cannot_share_is_left_out(
    capsys: pytest.CaptureFixture[str],
) -> None:
    flags = ("--devices=8", "--accelerator=h200")
    code, out, _ = plan(capsys, "--preset=llama-3-8b,qwen2.5-7b", *flags)
    assert code == 0 and out.rstrip().splitlines()[-1].startswith("left out: qwen2.5-7b: 8 devices")
    assert "llama-3-8b" in out
    code, out, err = plan(capsys, "--preset=qwen2.5-7b", *flags)
    assert code == 2 and not out and err.startswith("plan.py: qwen2.5-7b: 8 devices cannot")


def test_json_has_the_exact_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ("--preset=llama-2-70b,deepseek-v2,llama-2-70b", "--batch=8", "--dtype=float32")
    code, out, _ = plan(capsys, *flags, "--accelerator=h200", "--devices=8", "--json")
    told = json.loads(out)
    assert code == 0 and [row["model"] for row in told["models"]] == ["llama-2-70b", "deepseek-v2"]
    assert told["accelerator"]["memory_bytes"] == 141 * 10**9
    assert (told["context"], told["batch"], told["n_devices"]) == (4096, 8, 8)
    first, second = told["models"]
    assert first["kv_bytes_resident"] == 8 * 4096 * 2 * 327680
    assert first["n_params"] == first["n_params_active"] > second["n_params_active"]


def test_a_model_of_ours(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ("--config=configs/text.py", "--config.model.n_heads=8", "--config.model.n_kv_heads=2")
    code, out, _ = plan(capsys, *flags, "--dtype=float32", "--context=100", "--json")
    (row,) = json.loads(out)["models"]
    assert code == 0 and (row["model"], row["variant"]) == ("text", "GQA-2")
    n_layers = row["kv_bytes_per_token"] / (2 * 2 * 8 * 4)
    assert n_layers.is_integer() and row["weight_bytes"] == 4 * row["n_params"]


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        ("", "names no model; write --preset=llama-3-8b"),
        ("--preset=", "--preset has no value"),
        ("--preset=lama-3-8b", "did you mean llama-3-8b"),
        ("--preset=nothing", "is no preset; --help lists them"),
        ("--preset=gemma-2b --accelerator=h100", "did you mean h200 or h100-80gb?"),
        ("--preset=gemma-2b --batch=0", "--batch='0' must be an integer from 1"),
        ("--preset=gemma-2b --context=1e3", "must be an integer"),
        ("--preset=gemma-2b --dtype=int8", "must be one of 'bfloat16', 'float32'"),
        ("--preset=gemma-2b --devices=2", "add --accelerator"),
        ("--preset=gemma-2b --devices=3 --accelerator=h200", "gemma-2b: 3 devices cannot share"),
        ("--preset=gemma-2b --contxt=3", "did you mean --context"),
        ("gemma-2b", "takes flags alone"),
        ("--config.model.n_heads=2", "there is none; write --config=FILE.py"),
        ("--config=nothing.py", "is not there"),
        ("--config=configs/text.py --config.model.n_head=3", "did you mean model.n_heads"),
        ("--config=configs/text.py --config.model.n_heads=5", "model.n_heads"),
        ("--config=configs/attr.py", "does not predict its next token"),
        (
            "--config=configs/text.py --config.model.positions=learned",
            "a context of 4096, but text has learned 128 positions",
        ),
    ],
)
def test_bad_input_is_one_line(argv: str, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = plan(capsys, *argv.split())
    assert (code, out) == (2, "") and err.startswith("plan.py: ") and err.count("\n") == 1
    assert says in err


def test_help_lists_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = plan(capsys, "--help")
    assert code == 0 and max(map(len, out.splitlines())) <= 100
    words = out.replace(",", " ").split()
    assert {*PRESETS, *ACCELERATORS} <= set(words)

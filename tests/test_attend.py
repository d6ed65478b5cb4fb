"""The attention page: what it holds is the model's, what it computes is right, and no string of a
run is more than text."""

import base64
import dataclasses
import hashlib
import html as markup
import json
import re
import runpy
import shutil
import subprocess
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mha_jax import layer_cost
from mha_jax.attention.core import Mask
from mha_jax.config import StaticConfig
from mha_jax.page import arithmetic, badges, constructed, demo, html, meter, runs, tabs
from mha_jax.page.shown import Shown
from mha_jax.page.view import view
from mha_jax.run import LoadedRun
from mha_jax.tasks import english
from tests.page import HOSTILE, array, data_of, fixed, invented
from tests.saved import program_and_state, saved, with_states
from tests.synthetic import static

ROOT = Path(__file__).resolve().parent.parent
FILES = ROOT / "mha_jax" / "page" / "files"
NODE = shutil.which("node")
TEXT = "the cat sat ."
# Two query heads read a kv head, behind a window with a sink.
GQA = static(
    "text",
    4,
    2,
    n_layers=2,
    length=16,
    model={"positions": "rope", "norm": "rms", "residual": True, "window": 6, "n_sinks": 1},
)
SWITCHES: tuple[dict[str, Any], ...] = (
    {},
    {"scale": False},
    {"temperature": 0.5},
    {"merged": True},
    {"off": [False, True, False, False]},
    {"wo": False},
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> LoadedRun:
    return saved(tmp_path_factory.mktemp("page"), GQA, steps=(10, 20))


@pytest.fixture(scope="module")
def page(run: LoadedRun) -> dict[str, Any]:
    return data_of(html.page("t", [runs.tab("t", [run], text=TEXT, at=20)[0]]))


@pytest.fixture(scope="module")
def computed(page: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What the page's own arithmetic says, for each layer and each of SWITCHES."""
    return in_node(tmp_path_factory.mktemp("node"), page, SWITCHES)["layers"]


def in_node(place: Path, data: Any, switches: Any, cache: Any = ()) -> dict[str, Any]:
    if NODE is None:
        pytest.skip("node is not installed")
    given = place / "given.json"
    given.write_text(json.dumps({"data": data, "switches": switches, "cache": cache}))
    harness = Path(__file__).parent / "attend_harness.js"
    command = [NODE, str(harness), str(FILES), str(given)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def attend(*argv: str) -> int:
    return runpy.run_path(str(ROOT / "scripts" / "attend.py"))["main"](list(argv))


# --- what the page holds ------------------------------------------------------------------------


def test_the_page_holds_the_numbers_of_the_model(run: LoadedRun, page: dict[str, Any]) -> None:
    inputs = run.run.static.task.encode(TEXT)[None]
    _, found = run.apply(inputs, 20, want=["q", "k", "v"])
    told, t = page["tabs"][0]["models"][0], inputs.shape[1]
    assert told["tokens"] == list(TEXT) and [one["step"] for one in told["views"]] == [20]
    params = run.params(20)["layers"]
    for i, layer in enumerate(told["views"][0]["layers"]):
        assert (layer["n"], layer["k"], layer["kv"]) == (4, 2, [0, 0, 1, 1])
        for name, stop, heads in (("query", "q", 4), ("key", "k", 2), ("value", "v", 2)):
            np.testing.assert_array_equal(
                array(page, layer[name], t, heads, 16), found[stop][i][0], err_msg=name
            )
        wo = params[str(i)]["mixer"]["wo"]
        np.testing.assert_array_equal(array(page, layer["wo"], 64, 64), wo)
        assert layer["mask"] == {"kind": "causal", "n_context": 0, "window": 6, "n_sinks": 1}


def test_checkpoints_are_on_the_slider_where_there_is_room(run: LoadedRun) -> None:
    whole, nothing = runs.tab("t", [run], text=TEXT)
    assert [one["step"] for one in whole["models"][0]["views"]] == [10, 20] and nothing == ""
    tight, told = runs.tab("t", [run], text=TEXT, room=1000)
    assert [one["step"] for one in tight["models"][0]["views"]] == [20]
    assert "has the last one of each run" in told


def test_the_largest_page_of_the_promise_is_under_one_megabyte() -> None:
    """4 layers, 8 heads, 64 tokens."""
    spec = static("text", 8, n_layers=4, length=64)
    tab = tabs.tab("t", [tabs.model("t", [invented(spec, 64)])])
    assert tab["models"][0]["views"][0]["layers"][0]["why"] == ""
    assert len(html.page("t", [tab])) < 1_000_000


def test_models_that_share_arrays_share_their_bytes() -> None:
    one = tabs.model("t", [invented(static("text", 8, length=64), 64)])
    single, double = (len(html.page("t", [tabs.tab("t", [one] * n)])) for n in (1, 2))
    assert double - single < 0.2 * single


# --- what the page computes ---------------------------------------------------------------------


def test_every_number_shown_is_the_models(
    run: LoadedRun, page: dict[str, Any], computed: Any
) -> None:
    """To the last digit that is shown."""
    inputs = run.run.static.task.encode(TEXT)[None]
    _, found = run.apply(inputs, 20, want=["scores", "weights", "z", "head_out"])
    visible_ts = Mask("causal", 0, 6, 1).table(inputs.shape[1])
    shown_as = np.vectorize(fixed)
    for i, (plain, *_) in enumerate(computed):
        want = {name: shown_as(found[name][i][0]) for name in found}
        want["scores"] = np.where(visible_ts, want["scores"], "hidden")
        for name, key in (("scores",) * 2, ("weights",) * 2, ("z",) * 2, ("head_out", "out")):
            np.testing.assert_array_equal(np.array(plain[key]), want[name], err_msg=name)
        assert plain["change"] == 0


def test_biases_sink_logits_and_normed_queries(tmp_path: Path) -> None:
    """Of a model that does not divide by sqrt(d_head)."""
    switched = {"bias": True, "sink_logit": True, "qk_norm": True, "scale": False}
    spec = static("text", 4, 2, length=16, model=switched)
    state = program_and_state(spec, 20)[1]
    rng = np.random.default_rng(0)
    params = jax.tree.map(  # biases and sinks are zero at first
        lambda x: x if x.any() else jnp.asarray(rng.standard_normal(x.shape), x.dtype), state.params
    )
    run = with_states(tmp_path, spec, {20: state._replace(params=params)})
    page = data_of(html.page("t", [runs.tab("t", [run], text=TEXT)[0]]))
    ((plain, scaled),) = in_node(tmp_path, page, [{}, {"scale": True}])["layers"]
    inputs = run.run.static.task.encode(TEXT)[None]
    _, found = run.apply(inputs, want=["weights", "z", "head_out"])
    shown_as = np.vectorize(fixed)
    for name, key in (("weights", "weights"), ("z", "z"), ("head_out", "out")):
        np.testing.assert_array_equal(plain[key], shown_as(found[name][0][0]), err_msg=name)
    bias = params["layers"]["0"]["mixer"]["bo"]
    output_td = found["head_out"][0][0].sum(1) + np.asarray(bias)
    np.testing.assert_allclose(plain["output"], output_td, atol=1e-5)
    assert scaled["change"] > 0.01
    assert (np.sum(plain["maps"], -1) < len(TEXT) - 1e-3).all()  # the sink has the rest


def test_a_digit_that_rounds_otherwise_is_the_models_own() -> None:
    """Two numbers on the two sides of half a digit, and a half, which goes up on either side."""
    models = np.array([0.12345001, 0.2, -0.12345001, 0.03125], np.float32)
    ours = np.array([0.12344999, 0.2 + 1e-7, -0.12344999, 0.03125 + 1e-9])
    found = arithmetic.patches({"z": ours}, {"z": models})["z"]
    assert found["at"] == [0, 2]
    np.testing.assert_array_equal(np.float32(found["value"]), models[[0, 2]])
    assert arithmetic.patches({"z": ours[1:2]}, {"z": models[1:2]}) == {}


def test_switches_compute_what_they_say(page: dict[str, Any], computed: Any) -> None:
    """Against numpy, from the q, k, v and W_O of the page."""
    for layer, by_switch in zip(
        page["tabs"][0]["models"][0]["views"][0]["layers"], computed, strict=True
    ):
        for switch, got in zip(SWITCHES, by_switch, strict=True):
            maps, output = reference(page, layer, **switch)
            np.testing.assert_allclose(got["maps"], maps.reshape(len(maps), -1), atol=1e-12)
            np.testing.assert_allclose(got["output"], output, atol=1e-10)
            before = reference(page, layer, wo=switch.get("wo", True))[1]
            change = np.linalg.norm(output - before) / np.linalg.norm(before)
            np.testing.assert_allclose(got["change"], change, atol=1e-12)
            assert (change > 0.01) == (switch not in ({}, {"wo": False}))


def reference(
    data: dict[str, Any],
    layer: dict[str, Any],
    scale: bool = True,
    temperature: float = 1,
    merged: bool = False,
    off: tuple[bool, ...] = (False,) * 4,
    wo: bool = True,
) -> tuple[np.ndarray, np.ndarray]:
    """Maps [unit, t, s] and the output [t, d] of a layer of GQA, in other words than the page's."""
    t, n, h = len(TEXT), 4, 16
    q_tnh = array(data, layer["query"], t, n, h).astype(np.float64)
    k_snh, v_snh = (
        np.repeat(array(data, layer[name], t, 2, h).astype(np.float64), 2, axis=1)
        for name in ("key", "value")
    )
    scores_nts = np.einsum("tnh,snh->nts", q_tnh, k_snh)
    if merged:
        scores_nts = q_tnh.reshape(1, t, n * h) @ k_snh.reshape(1, t, n * h).transpose(0, 2, 1)
    width = n * h if merged else h
    scores_nts = scores_nts / (np.sqrt(width) if scale else 1) / temperature
    seen = [[s <= i and (i - s < 6 or s < 1) for s in range(t)] for i in range(t)]
    exp_nts = np.exp(scores_nts) * np.array(seen)
    maps_nts = exp_nts / exp_nts.sum(-1, keepdims=True)
    per_head_nts = np.broadcast_to(maps_nts, (n, t, t))
    z_tnh = np.einsum("nts,snh->tnh", per_head_nts, v_snh) * ~np.array(off)[:, None]
    rows = z_tnh.reshape(t, n * h)
    return maps_nts, rows @ array(data, layer["wo"], n * h, 64).astype(np.float64) if wo else rows


def cached(**model: Any) -> StaticConfig:
    return static("text", 8, 2, n_layers=2, length=64, model=model)


def test_the_cache_meter_counts_as_the_cost_does(page: dict[str, Any], tmp_path: Path) -> None:
    models = [
        cached().model,
        cached(window=16, n_sinks=2).model,
        cached(kv_quant="int4", kv_group=8, kv_tail=16).model,
        cached(share="kv").model,
        cached(mixer="mla", d_latent=16, d_rope=8).model,
    ]
    asked, want = [], []
    for model in models:
        for context in (1, 8, 30, 1000):
            for dtype, size in layer_cost.DTYPE_BYTES.items():
                asked.append((meter.meter(model)["models"]["this model"], context, size))
                sized = dataclasses.replace(model, cache_dtype=dtype)
                kept = [layer_cost.cache_bytes(one, sized, context) for one in sized.layers]
                want.append(sum(kept))
    assert in_node(tmp_path, page, [], asked)["bytes"] == want
    of = meter.meter(models[0])["models"]
    assert [of[name][0]["per_token"] for name in ("MHA", "this model", "MQA")] == [128, 32, 16]


# --- what it does not compute -------------------------------------------------------------------


def test_attention_of_another_kind_is_shown_and_not_computed() -> None:
    looked = invented(static("text", 2, length=8), 8)
    wrong = dict(looked.layers[0], weights_bkgts=looked.layers[0]["weights_bkgts"][:, ::-1])
    (told,) = view(looked._replace(layers=[wrong]))["layers"]
    assert "in another way" in told["why"] and "query" not in told
    np.testing.assert_array_equal(told["weights"], wrong["weights_bkgts"].reshape(2, 8, 8))


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        ({"compute_dtype": "bfloat16"}, "the model computes in bfloat16"),
        ({"kv_quant": "int8"}, "stored as int8"),
    ],
)
def test_why_it_is_not_computed(model: dict[str, Any], reason: str) -> None:
    looked = invented(static("text", 2, length=8, model=model), 8)
    wrong = dict(looked.layers[0], z_btkgh=looked.layers[0]["z_btkgh"] * 1.001)
    (told,) = view(looked._replace(layers=[wrong]))["layers"]
    assert reason in told["why"]


def test_a_gate_ends_the_arithmetic_at_z() -> None:
    (told,) = view(invented(static("text", 2, length=8, model={"gate": True}), 8))["layers"]
    assert told["why"] == "" and "gate" in told["output_why"] and told["wo"] is None


def test_heads_that_are_changed_before_wo_end_it_there_too() -> None:
    looked = invented(static("text", 2, length=8), 8)
    layer = dict(looked.layers[0], head_out_btnd=looked.layers[0]["head_out_btnd"] * 1.01)
    (told,) = view(looked._replace(layers=[layer]))["layers"]
    assert told["why"] == "" and "the page stops at z" in told["output_why"]


def test_too_many_tokens_are_refused() -> None:
    looked = invented(static("text", 1, length=8), 8)._replace(tokens=["x"] * 513)
    with pytest.raises(ValueError, match="513 tokens: the page shows 512"):
        view(looked)


# --- badges -------------------------------------------------------------------------------------


def test_badges() -> None:
    numbers = {"value": 0.5, "baseline": 0.1, "corrected": 0.4, "low": 0.3, "high": 0.5}
    rows = [
        {"layer": 1, "of": "n", "head": 0, "role": role, "score": name, **numbers, "corrected": x}
        for role, name, x in (
            ("word", "role/prev", 0.6),
            ("word", "role/word", 0.5),
            ("word", "entropy", 0.9),
            ("word", "offset/-1", float("nan")),
        )
    ]
    (badge,) = badges.of_rows(rows, 1, 1)
    assert badge["role"] == "word"
    assert [one["name"] for one in badge["scores"]] == ["word", "prev"]
    assert badge["scores"][0]["low"] == 0.3
    assert badges.of_rows(rows, 0, 1) == [] and badges.of_rows(rows, 1, 2) == []
    record = {"heads/l0.n1/role/prev": 0.7, "heads/l0.n1/entropy": 0.1, "eval/loss": 2.0}
    none, some = badges.of_record(record, 0, 2)
    assert none["scores"] == [] and some == {
        "role": "",
        "scores": [{"name": "prev", "corrected": 0.7}],
    }


# --- safety -------------------------------------------------------------------------------------


def test_hostile_strings_are_text() -> None:
    looked = invented(static("text", 1, length=16), len(HOSTILE))._replace(tokens=list(HOSTILE))
    models = [tabs.model(text, [looked]) for text in HOSTILE]
    tab = tabs.tab(HOSTILE[0], models, text=HOSTILE, numbers_of=HOSTILE[1], roles=HOSTILE)
    page = html.page(HOSTILE[0], [tab])
    data = data_of(page)
    assert data["title"] == data["tabs"][0]["name"] == HOSTILE[0]
    assert data["tabs"][0]["models"][3]["tokens"] == list(HOSTILE)
    assert [one["label"] for one in data["tabs"][0]["models"]] == list(HOSTILE)
    # Two script elements, and nothing of the strings outside of the JSON.
    assert len(re.findall("</script", page)) == len(re.findall("<script", page)) == 2
    (block,) = re.findall(r'application/json">(.*?)</script>', page, re.S)
    assert block.isascii() and not set(block) & set("<>&")
    assert "alert(1)" not in page.replace(block, "")


def test_the_policy_allows_what_is_in_the_page_and_nothing_else() -> None:
    page = html.page("t", [])
    (policy,) = re.findall(r'Content-Security-Policy" content="(.*?)"', page)
    assert policy.startswith("default-src 'none'; ")
    for tag, pattern in (("script", r"<script>(.*?)</script>"), ("style", r"<style>(.*?)</style>")):
        (text,) = re.findall(pattern, page, re.S)
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy
    assert not re.search(r"\b(https?:|//[a-z]|src=|href=|@import|url\()", page)
    assert "innerHTML" not in page and "eval(" not in page


# --- files, notebooks, the command line -----------------------------------------------------------


def test_a_notebook_shows_it_in_a_frame(run: LoadedRun, tmp_path: Path) -> None:
    shown = run.attention(TEXT).show()
    frame = shown._repr_html_()
    (inside,) = re.findall(r'^<iframe sandbox="allow-scripts" srcdoc="([^"]*)"', frame)
    assert markup.unescape(inside) == shown.html
    saved_at = shown.save(tmp_path / "page.html")
    assert saved_at.read_text() == shown.html
    assert data_of(shown.html)["tabs"][0]["models"][0]["views"][0]["step"] == 20


def test_a_file_that_is_no_page_is_not_written_over(tmp_path: Path) -> None:
    page = Shown(html.page("t", []))
    path = tmp_path / "page.html"
    page.save(path)
    page.save(path)  # its own it may
    path.write_text("mine")
    with pytest.raises(ValueError, match="is no attention page; name another, or --force"):
        page.save(path)
    assert path.read_text() == "mine"
    page.save(path, force=True)
    assert path.read_text() == page.html
    with pytest.raises(ValueError, match="is a directory"):
        page.save(tmp_path)
    with pytest.raises(ValueError, match="no such directory"):
        page.save(tmp_path / "a" / "page.html")


def test_the_script_writes_a_page(run: LoadedRun, tmp_path: Path, capsys: Any) -> None:
    out = tmp_path / "page.html"
    given = (f"--run={run.directory}", f"--text={TEXT}", f"--out={out}")
    assert attend(*given, "--step=10") == 0
    assert capsys.readouterr().out == f"{out}: {out.stat().st_size / 1e6:.2f} MB\n"
    (model,) = data_of(out.read_text())["tabs"][0]["models"]
    assert model["label"] == "run" and [one["step"] for one in model["views"]] == [10]


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--run=RUN"], "--out is missing"),
        (["--out=OUT"], "--run is missing"),
        (["--run=", "--out=OUT"], "--run has no value"),
        (["--run=nowhere", "--out=OUT"], "not a run directory"),
        (["--run=RUN", "--out=OUT", "--step=x"], "--step=x must be last, best or a step"),
        (["--run=RUN", "--out=OUT", "--text=a", "--step=15"], "15"),
        (["--run=RUN", "--out=OUT", "--text=a", "--sequence=1"], "drop one"),
        (["--run=RUN", "--out=OUT", "--sequence=-1"], "--sequence"),
        (["--run=RUN", "--out=OUT", "--sequence=0"], "corpus of task 'text' has changed"),
        (["--run=RUN", "--out=OUT", "--txt=a"], "did you mean --text"),
        (["--demo", "--text=a", "--out=OUT"], "--demo has a sentence of its own"),
        (["--demo", "--run=RUN", "--out=OUT"], "--demo shows runs of english and of text"),
    ],
)
def test_bad_input_is_told_in_one_line(
    run: LoadedRun, tmp_path: Path, capsys: Any, argv: list[str], message: str
) -> None:
    out = tmp_path / "page.html"
    names = {"RUN": str(run.directory), "OUT": str(out)}
    words = [re.sub("RUN|OUT", lambda found: names[found[0]], word) for word in argv]
    assert attend(*words) == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1 and message in told and told.startswith("attend.py: ")
    assert not out.exists()


# --- the demonstration --------------------------------------------------------------------------


def test_the_constructed_tab_shows_what_is_left_of_each_role() -> None:
    tab = constructed.tab(demo.SENTENCE)
    assert [one["label"] for one in tab["models"]] == ["4 heads", "2 heads", "1 head"]
    assert tab["models"][0]["tokens"] == demo.SENTENCE.split()
    four, two, one = (model["views"][0]["numbers"] for model in tab["models"])
    # Each head has one role; its keys are one of 8 words, the delimiter is a key of itself.
    assert tab["chance"] == pytest.approx(dict.fromkeys(four, 1 / 8))
    assert four == pytest.approx(dict.fromkeys(constructed_roles(), 1.0), abs=1e-4)
    # Two roles share a softmax where both have a key: 3 of 7 neighbours, all words of a class.
    assert two == pytest.approx(
        {"prev": 11 / 14, "class_or_copy": 5 / 8, "word": 1 / 2, "delimiter": 7 / 8}, abs=2e-3
    )
    assert all(one[role] < four[role] for role in four)
    names = [[badge["role"] for badge in model["views"][0]["badges"][0]] for model in tab["models"]]
    assert names == [list(constructed_roles()), ["mixed"] * 2, ["mixed"]]
    layers = [model["views"][0]["layers"][0] for model in tab["models"]]
    assert [layer["why"] for layer in layers] == [""] * 3
    for layer in layers[1:]:  # the same weights
        np.testing.assert_array_equal(layer["query"].ravel(), layers[0]["query"].ravel())
        np.testing.assert_array_equal(layer["wo"], layers[0]["wo"])


def constructed_roles() -> tuple[str, ...]:
    return "prev", "class_or_copy", "word", "delimiter"


def test_the_demonstration_takes_runs_that_are_there(run: LoadedRun, tmp_path: Path) -> None:
    of_english = saved(tmp_path, static("english", 2), steps=(10,))
    words = demo.SENTENCE.split()
    assert set(words) <= set(english.VOCAB)
    first, second, third = demo.tabs([of_english, run])
    assert [tab["name"] for tab in (first, second, third)] == ["Constructed", "Trained", "Text"]
    assert second["models"][0]["label"] == "2 heads" and second["models"][0]["tokens"] == words
    assert third["models"][0]["tokens"] == list(demo.SENTENCE)

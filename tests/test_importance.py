"""`scripts/heads.py`: importance, redundancy, and what it prints."""

import json
import re
import runpy
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import run_of

from mha_jax import examine, heads_text, importance, loss, redundancy
from mha_jax.analysis import sharing
from mha_jax.run import LoadedRun
from tests.saved import saved
from tests.solved import solved_run
from tests.synthetic import make_run, static

ROOT = Path(__file__).resolve().parent.parent
SCRIPT, DOCS = ROOT / "scripts" / "heads.py", ROOT / "docs" / "add_a_mixer.md"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> LoadedRun:
    """Four query heads that share two kv heads."""
    return saved(tmp_path_factory.mktemp("heads"), static("relations", 4, 2), steps=(10,))


@pytest.fixture(scope="module")
def told(run: LoadedRun) -> heads_text.Told:
    return heads_text.examine(run)


def draw(run: LoadedRun) -> Any:
    """The whole probe draw as one batch."""
    parts = [
        examine.probe_batch(run.program, run.probe_constants(), i)
        for i in range(examine.n_batches(run.program))
    ]
    return jax.tree.map(lambda *x: np.concatenate(x), *parts)


def mean_loss(run: LoadedRun, params: Any = None, **changes: Any) -> float:
    batch = draw(run)
    outputs, _ = run.program.model.apply(
        run.params() if params is None else params, batch.inputs, **changes
    )
    return float(loss.mean_loss(loss.sums(outputs, batch, run.spec)))


def test_every_head_is_there_once(told: heads_text.Told) -> None:
    assert [head.address for head in told.heads] == [
        *("l0.n0", "l0.n1", "l0.n2", "l0.n3", "l0.k0", "l0.k1")
    ]


def test_zero_is_the_rise_without_the_head(run: LoadedRun, told: heads_text.Told) -> None:
    whole = mean_loss(run)
    for one in told.heads:
        group = [one.head] if one.kind == "n" else [2 * one.head, 2 * one.head + 1]
        mask = jnp.ones(4).at[jnp.array(group)].set(0)
        value, low, high = one.measures["zero"]
        assert value == pytest.approx(mean_loss(run, head_mask=[mask]) - whole, abs=2e-5)
        assert low <= value <= high


def test_the_gradient_of_a_layer_has_length_one(told: heads_text.Told) -> None:
    for kind in importance.KINDS:
        chosen = [head for head in told.heads if head.kind == kind]
        assert sum(head.gradient_per_layer**2 for head in chosen) == pytest.approx(1, abs=1e-5)
        assert all(head.measures["gradient"][0] >= 0 for head in chosen)


def test_rank_correlations() -> None:
    def head(i: int, *values: float) -> importance.Head:
        pairs = zip(importance.MEASURES, values, strict=True)
        return importance.Head(0, "n", i, {m: (v, v, v) for m, v in pairs}, 0.0)

    heads = [head(0, 1, 10, 3, 0), head(1, 2, 20, 2, 0), head(2, 3, 90, 1, 0)]
    rho = importance.rank_correlations(heads, "n")
    assert rho["zero", "mean"] == pytest.approx(1) and rho["zero", "resample"] == pytest.approx(-1)
    assert np.isnan(rho["zero", "gradient"])  # the same for all
    assert all(np.isnan(x) for x in importance.rank_correlations(heads[:2], "n").values())


def test_pooling_is_measured_on_the_tied_model(run: LoadedRun, told: heads_text.Told) -> None:
    params = run.params()
    layer = params["layers"]["0"]
    tied = {**layer, "mixer": sharing.tie_heads(layer["mixer"], 2, [[0, 1]])}
    rise = mean_loss(run, {**params, "layers": {"0": tied}}) - mean_loss(run)
    assert told.redundancy.pooled == {1: pytest.approx(rise, abs=2e-5)}
    (layer_told,) = told.redundancy.layers
    assert list(layer_told.sharing) == [1]
    assert 0 < layer_told.sharing[1][0] < 1


def test_equal_heads_are_found_redundant(tmp_path: Path) -> None:
    """Two kv heads with one set of weights, read by equal queries: nothing tells them apart."""
    run = saved(tmp_path, static("relations", 4, 2), steps=(10,))
    mixer = run.params()["layers"]["0"]["mixer"]
    for name, n in (("wq", 4), ("wk", 2), ("wv", 2)):
        w = np.asarray(mixer[name]).reshape(64, n, 16)
        mixer[name] = jnp.asarray(np.repeat(w[:, :1], n, axis=1).reshape(64, -1))
    found = redundancy.redundancy(run)
    (layer,) = found.layers
    np.testing.assert_allclose(layer.js_nn, 0, atol=1e-6)
    np.testing.assert_allclose(layer.key_cka_kk, 1, atol=1e-5)
    np.testing.assert_allclose(layer.value_cka_kk, 1, atol=1e-5)
    assert found.pooled[1] == pytest.approx(0, abs=1e-6)
    assert layer.sharing[1] == pytest.approx((0, 0), abs=1e-12)


def test_a_language_model_has_copying_and_two_layers_composition(tmp_path: Path) -> None:
    spec = static("copy", 2, n_layers=2, model={"residual": True, "positions": "rope"})
    found = redundancy.redundancy(saved(tmp_path, spec, steps=(10,)))
    first, second = found.layers
    assert first.copying_n is not None and first.copying_n.shape == (2,)
    assert np.isfinite(first.output_cka_nn).all() and np.isfinite(second.key_cka_kk).all()
    assert {name: m.shape for name, m in found.composition[0, 1].items()} == {
        name: (2, 2) for name in "qkv"
    }


def test_a_layer_without_wo_is_told_without_composition(tmp_path: Path) -> None:
    spec = static("relations", 2, model={"use_wo": False})
    found = redundancy.redundancy(saved(tmp_path, spec, steps=(10,)))
    assert not found.composition and found.layers[0].copying_n is None


def test_a_model_with_a_mixer_of_the_users(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    """Only the layer with attention has heads; without one there is nothing to tell."""
    monkeypatch.chdir(tmp_path)
    (block,) = re.findall(r"```python\n(.*?)```", DOCS.read_text(), re.DOTALL)[:1]
    Path("gated_conv.py").write_text(block)
    changes = {"task.name": "copy", "model.residual": True, "train.n_probe": 8}
    for mixers, heads in (("gated_conv.py,grouped", ["l1.n0", "l1.n1"]), ("gated_conv.py", [])):
        n_layers = mixers.count(",") + 1
        model = {"model.mixer": mixers, "model.n_layers": n_layers, "model.n_heads": 2}
        with jax.numpy_rank_promotion("allow"):
            run = saved(tmp_path / str(n_layers), run_of({**changes, **model}).static, steps=(10,))
        if heads:
            with jax.numpy_rank_promotion("allow"):  # the example is for users, who have no rule
                found = [head.address for head in importance.importance(run)]
            assert found == [*heads, "l1.k0", "l1.k1"]
        else:
            with jax.numpy_rank_promotion("allow"):
                assert script(str(run.directory)) == 2
            assert "no layer of the model has attention heads" in capsys.readouterr().err


def test_a_diverged_run_is_refused(tmp_path: Path, capsys: Any) -> None:
    directory = make_run(tmp_path, static("relations", 4), 0.5, status="diverged")
    assert script(str(directory)) == 2 and "diverged" in capsys.readouterr().err


def test_heads_of_an_earlier_checkpoint_have_no_role(run: LoadedRun) -> None:
    run.summary["step"] = 20
    run.summary["heads"] = {"layers": {"l0": {"names": ["prev"] * 4}}}
    assert run.step("last") == 10 and heads_text.examine(run).roles == {}
    run.summary["step"] = 10
    assert heads_text.examine(run).roles["l0.n3"] == "prev"
    del run.summary["heads"]


def script(*argv: str) -> int:
    module = runpy.run_path(str(SCRIPT))
    return module["main"](list(argv))


def test_the_script_prints_tables(run: LoadedRun, capsys: Any) -> None:
    assert script(str(run.directory)) == 0
    text = capsys.readouterr().out
    for told in ("l0.n3", "l0.k1", "resample", "rank correlation", "weight-sharing", "pooled"):
        assert told in text, told
    assert max(map(len, text.splitlines()[1:])) < 220


def test_the_script_prints_json(run: LoadedRun, capsys: Any) -> None:
    assert script(str(run.directory), "--json", "--at=10") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["step"] == 10 and len(told["heads"]) == 6 and told["unit"] == "nats"
    assert np.shape(told["layers"][0]["js_nn"]) == (4, 4)


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        ((), "takes one run"),
        (("a", "b"), "takes one run"),
        (("a", "--jsn"), "did you mean --json"),
        (("a", "--at"), "--at has no value"),
        (("a", "--at=first"), "must be last, best or a step"),
        (("nowhere",), "nowhere"),
    ],
)
def test_bad_input_is_one_line(argv: tuple[str, ...], says: str, capsys: Any) -> None:
    assert script(*argv) == 2
    error = capsys.readouterr().err
    assert says in error and error.count("\n") == 1


def test_a_run_without_checkpoints_is_one_line(tmp_path: Path, capsys: Any) -> None:
    directory = make_run(tmp_path, static("relations", 4), 0.5)
    assert script(str(directory)) == 2 and "no checkpoint yet" in capsys.readouterr().err
    run = saved(tmp_path / "saved", static("relations", 4), steps=(10,))
    assert script(str(run.directory), "--at=7") == 2
    error = capsys.readouterr().err
    assert "7" in error and error.count("\n") == 1


def test_help_needs_no_run(capsys: Any) -> None:
    assert script("--help") == 0 and "usage" in capsys.readouterr().out


def test_gates_are_one_more_importance(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    """Head 2 writes nothing that is read: its gate closes first, and its rise is 0."""
    monkeypatch.setattr(importance, "_GATE_STEPS", 100)
    directory = solved_run(tmp_path, None, (2,)).directory
    assert script(str(directory), "--gates", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    gate = {row["head"]: row["gate"] for row in told["heads"]}
    assert list(gate) == [f"l0.{kind}{head}" for kind in "nk" for head in range(4)]
    assert min(gate, key=lambda head: gate[head]) == "l0.n2" and gate["l0.n2"] < 0.5
    assert all(gate[f"l0.k{head}"] == gate[f"l0.n{head}"] for head in range(4))  # none is shared
    assert {row["gate_low"] for row in told["heads"]} == {None}
    assert "zero/gate" in told["rank_correlations"]["query head"]


def test_without_gates_there_is_no_such_column(told: heads_text.Told) -> None:
    assert "gate" not in heads_text.to_text(told)
    gated = [
        one._replace(measures=one.measures | {"gate": (0.5, np.nan, np.nan)}) for one in told.heads
    ]
    text = heads_text.to_text(told._replace(heads=gated))
    assert "gate: P(open), mean over lambdas" in text and "0.5" in text

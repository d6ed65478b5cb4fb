"""`scripts/prune.py`: every point against the model itself, what is written, what is refused."""

import csv
import json
import runpy
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mha_jax import importance, prune, prune_text, rng
from mha_jax.analysis import pruning
from mha_jax.config import LayerSpec
from mha_jax.group import Group
from mha_jax.report import pruning as figure
from mha_jax.run import LoadedRun
from tests.solved import program_of, solved, solved_run
from tests.synthetic import make_run, static

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = ROOT / "scripts" / "prune.py"
# Nothing reads head 2. Heads 0 and 1 share kv head 0, 2 and 3 the other one.
USELESS = (2,)
PLAN = prune.Plan(n_random=2, lambdas=(0.01, 100.0), gate_steps=3)
FLAGS = ("--random=2", "--lambdas=0.01,100", "--gate_steps=3")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> LoadedRun:
    return solved_run(tmp_path_factory.mktemp("prune"), 2, USELESS)


@pytest.fixture(scope="module")
def pruned(run: LoadedRun) -> prune.Pruned:
    return prune.prune(run, PLAN)


def curve(pruned: prune.Pruned, of: str, method: str, seed: int | None = None) -> list[prune.Point]:
    return [p for p in pruned.points if (p.of, p.method, p.seed) == (of, method, seed)]


def script(*argv: str) -> int:
    module = runpy.run_path(str(SCRIPT))
    return module["main"](list(argv))


def test_with_all_heads_it_is_the_evaluation_of_the_run(
    run: LoadedRun, pruned: prune.Pruned
) -> None:
    group = Group(run.run.static)
    state = group.init(group.hypers([run.run.hypers]))
    state = state._replace(params=jax.tree.map(lambda x: x[None], run.params()))
    (want,) = group.evaluate(state, "test")
    whole = [point for point in pruned.points if point.n_heads == 4 and not point.gone]
    assert {(p.of, p.method) for p in whole} >= {
        (of, method) for of in "nk" for method in ("one-shot", "iterative", "random", "L0 mask")
    }
    for point in whole:
        if point.method != "L0":  # whose parameters were trained
            assert point.loss == pytest.approx(want["loss"], rel=1e-6)
            assert point.value == pytest.approx(want["accuracy"], abs=1e-9)


def test_every_point_of_a_curve_is_the_model_without_its_heads(
    run: LoadedRun, pruned: prune.Pruned
) -> None:
    """On the test draw, with kv masks where kv heads went."""
    program = run.program
    draw = rng.stream(program.static.task.seed, "test")
    batch = program.sample(jax.random.fold_in(draw, 0), {}, 128)
    apply = jax.jit(
        lambda params, inputs, n, k: program.model.apply(
            params, inputs, head_mask=[n], kv_mask=[k]
        )[0]
    )
    for point in [*curve(pruned, "n", "iterative"), *curve(pruned, "k", "random", 1)]:
        gone = [int(name[4:]) for name in point.gone]
        assert {name[:4] for name in point.gone} <= {f"l0.{point.of}"}
        count = {"n": 4, "k": 2}[point.of]
        mask = np.isin(np.arange(count), gone, invert=True).astype(np.float32)
        masks = {"n": np.ones(4, np.float32), "k": np.ones(2, np.float32)} | {point.of: mask}
        outputs = np.asarray(apply(run.params(), batch.inputs, masks["n"], masks["k"]))
        right = outputs.argmax(-1) == np.asarray(batch.targets)
        asked = np.asarray(batch.loss_mask) > 0
        assert point.value == pytest.approx(right[asked].mean(), abs=1e-6)


def test_a_query_head_frees_no_cache_unless_its_group_goes(pruned: prune.Pruned) -> None:
    one = 2 * solved(2)[0].model.layers[0].d_head * 4
    for of, kv_of in (("n", lambda head: head // 2), ("k", lambda head: head)):
        for point in curve(pruned, of, "one-shot") + curve(pruned, of, "random", 0):
            heads = {int(name[4:]) for name in point.gone}
            if of == "n":
                kept = {kv_of(head) for head in range(4) if head not in heads}
                assert point.n_heads == 4 - len(heads)
            else:
                kept = set(range(2)) - heads
                assert point.n_heads == 2 * len(kept)
            assert point.n_kv_heads == len(kept)
            assert point.kv_bytes_per_token == one * len(kept)


def test_the_useless_head_goes_first_and_its_group_before_the_other(
    pruned: prune.Pruned,
) -> None:
    for method in ("one-shot", "iterative"):
        points = curve(pruned, "n", method)
        assert points[1].gone == ("l0.n2",) and len(points[-1].gone) == 4
        assert points[1].value == points[0].value > points[2].value
        assert curve(pruned, "k", method)[1].gone == ("l0.k1",)


@pytest.mark.parametrize("by", ["gradient", "zero", "mean"])
def test_importance_is_measured_on_the_validation_draw(run: LoadedRun, by: str) -> None:
    """Two batches of it, one sequence after the other; the mean ablation only as to its zeros."""
    program, params = program_of(2, USELESS)
    gone = [np.float32([0, 1, 1, 1])]
    (found,) = importance.under_masks(program, params, {}, "n", by)(gone)
    assert found[0] == 0 and found[2] == pytest.approx(0, abs=1e-6)
    # What costs much when it goes may have no gradient: the model is sure of its answers.
    assert by == "gradient" or (found[[1, 3]] > 0.1).all()
    if by == "mean":
        return
    draw = rng.stream(program.static.task.seed, "validation")
    total, answers = np.zeros(4), 0.0
    for i in range(2):
        batch = program.sample(jax.random.fold_in(draw, i), {}, 16)
        answers += float(batch.loss_mask.sum())

        def losses(mask: Any, batch: Any = batch) -> Any:
            outputs, _ = program.model.apply(params, batch.inputs, head_mask=[mask])
            logp = jax.nn.log_softmax(outputs)
            picked = jnp.take_along_axis(logp, batch.targets[..., None], -1)[..., 0]
            return -(picked * batch.loss_mask).sum((1, 2))

        if by == "zero":
            whole = losses(gone[0])
            for head in range(4):
                total[head] += float((losses(gone[0] * (np.arange(4) != head)) - whole).sum())
        else:
            jacobian = jax.jacobian(losses)(jnp.asarray(gone[0]))
            total += np.abs(np.asarray(jacobian) * gone[0]).sum(0)
    want = total / answers
    want = want / np.linalg.norm(want) if by == "gradient" else want
    np.testing.assert_allclose(found, want, atol=1e-4)


def test_random_orders_are_those_of_their_seeds(pruned: prune.Pruned) -> None:
    for seed in (0, 1):
        want = pruning.random_order([4], seed)
        assert curve(pruned, "n", "random", seed)[-1].gone == tuple(map(str, want))
    assert not curve(pruned, "n", "random", 2)


def test_the_same_plan_gives_the_same_points(run: LoadedRun, pruned: prune.Pruned) -> None:
    assert prune.prune(run, PLAN).points == pruned.points


def test_gates_are_points_of_their_lambda(pruned: prune.Pruned) -> None:
    for of in "nk":
        points = [p for p in pruned.points if p.of == of and p.method == "L0"]
        assert [p.lam for p in points] == [0.01, 100.0]
        for point, gated in zip(points, pruned.gated[of], strict=True):
            assert point.value == gated.metrics["accuracy"]
            assert len(point.gone) == (4 if of == "n" else 2) - gated.n_open


def test_the_removed_model_equals_the_masked_one(pruned: prune.Pruned) -> None:
    removed = pruned.removed
    assert not isinstance(removed, str)
    assert removed.gone == ("l0.k1",) and removed.keep == [[0, 1]]
    assert removed.n_params[1] < removed.n_params[0]
    assert removed.kv_bytes_per_token[1] * 2 == removed.kv_bytes_per_token[0]
    # Sums of float32 in another order, of outputs of this size.
    assert removed.difference <= 1e-5 * removed.largest and removed.largest > 1


def test_where_no_head_is_shared_there_is_one_curve() -> None:
    def layer(n: int, k: int) -> LayerSpec:
        return LayerSpec("grouped", n, k, 4, 0, 0, 0, None)

    assert prune.kinds([layer(4, 4), layer(2, 2)]) == ("n",)
    assert prune.kinds([layer(4, 4), layer(2, 1)]) == ("n", "k")


def test_a_long_curve_has_points_evenly(run: LoadedRun, monkeypatch: Any) -> None:
    monkeypatch.setattr(prune, "_POINTS", 2)
    order = pruning.random_order([4], 0)
    seen = list(
        prune._curves(
            [("random", 0, order)], run, None, lambda p, m: {"loss": 0, "accuracy": 0}, print
        )
    )
    assert [point.n_heads for point in seen] == [4, 2, 0]


def test_the_script_writes_its_files_once(
    run: LoadedRun, pruned: prune.Pruned, capsys: Any
) -> None:
    directory = str(run.directory)
    assert script(directory, *FLAGS) == 0
    text = capsys.readouterr().out
    for told in ("one-shot", "test sequences", "validation sequences", "L0 gates", "differ by"):
        assert told in text, told
    assert max(map(len, text.splitlines())) < 220
    with open(run.directory / "pruning.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert tuple(rows[0]) == prune_text.COLUMNS and len(rows) == len(pruned.points)
    assert {(row["method"], row["chosen_on"]) for row in rows} == {
        *(("one-shot", "validation"), ("iterative", "validation"), ("random", "")),
        *(("L0", "train"), ("L0 mask", "train")),
    }
    assert {row["measured_on"] for row in rows} == {"test"}
    assert float(rows[0]["value"]) == pytest.approx(pruned.points[0].value, rel=1e-5)
    png = (run.directory / "pruning.png").read_bytes()
    assert png.startswith(b"\x89PNG")
    assert png == figure.figure(
        prune_text.rows(run, PLAN, pruned),
        run.spec,
        f"{run.directory.name}, step 100: what pruning costs",
    )

    (run.directory / "pruning.csv").write_text("mine")
    assert script(directory, *FLAGS) == 2
    error = capsys.readouterr().err
    assert "pruning.csv exists; --overwrite" in error and error.count("\n") == 1
    assert (run.directory / "pruning.csv").read_text() == "mine"
    assert script(directory, *FLAGS, "--overwrite", "--json", "--frozen") == 0
    told = json.loads(capsys.readouterr().out)
    assert len(told["points"]) == len(pruned.points) and told["removed"]["gone"] == ["l0.k1"]
    assert np.shape(told["gates"]["query heads"][0]["open_probability"]) == (1, 4)
    assert (run.directory / "pruning.csv").read_text() != "mine"


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        ((), "takes one run"),
        (("a", "b"), "takes one run"),
        (("a", "--jsn"), "did you mean --json"),
        (("a", "--seed"), "--seed has no value"),
        (("a", "--json=1"), "takes no value"),
        (("a", "--at=first"), "must be last, best or a step"),
        (("a", "--by=weight"), "must be one of 'gradient'"),
        (("a", "--random=-1"), "from 0 to 1000"),
        (("a", "--lambdas=0.1,x"), "--lambdas='x' must be a finite number"),
        (("a", "--gate_lr=0"), "above 0"),
        (("nowhere",), "nowhere"),
    ],
)
def test_bad_input_is_one_line(argv: tuple[str, ...], says: str, capsys: Any) -> None:
    assert script(*argv) == 2
    error = capsys.readouterr().err
    assert says in error and error.count("\n") == 1


def test_what_cannot_be_pruned_is_refused_before_the_work(tmp_path: Path, capsys: Any) -> None:
    diverged = make_run(tmp_path / "a", static("relations", 4), 0.5, status="diverged")
    bare = make_run(tmp_path / "b", static("relations", 4), 0.5)
    mqa = solved_run(tmp_path / "c", 1).directory
    for directory, flags, says in (
        (diverged, (), "diverged"),
        (bare, (), "no checkpoint yet"),
        (mqa, ("--at=7",), "7"),
        (mqa, ("--remove=1",), "remove=1: at most 0 kv heads can go"),
    ):
        assert script(str(directory), *flags) == 2
        error = capsys.readouterr().err
        assert says in error and error.count("\n") == 1
        assert not (directory / "pruning.csv").exists()


def test_help_needs_no_run(capsys: Any) -> None:
    assert script("--help") == 0 and "usage" in capsys.readouterr().out

"""From parameters to `heads.csv`: every score of a run against slow loops over its attention."""

import csv
import dataclasses
import functools
import io
import json
import math
from typing import Any

import jax
import numpy as np
import pytest

from mha_jax import examine, heads, loss, outcome, rng
from mha_jax.analysis import bootstrap, catalogue, naming
from mha_jax.config import Hypers
from mha_jax.group import Group
from mha_jax.report import cells, head_columns, maps, tables
from mha_jax.store import read_heads, read_sweep
from tests.synthetic import make_run, static

RUN = Hypers(seed=3, data_seed=3, lr=4e-3, weight_decay=0.0)


def small(task: str, n_heads: int, n_kv_heads: int | None = None, **fields: Any) -> Any:
    spec = static(task, n_heads, n_kv_heads, **fields)
    return dataclasses.replace(spec, train=dataclasses.replace(spec.train, n_probe=40))


@functools.cache
def examined(task: str, n_heads: int, n_kv_heads: int | None = None) -> tuple[Group, Any, Any]:
    """A trained model of `relations`, or one that is sharper than a fresh one, and what is found
    of it.
    """
    group = Group(small(task, n_heads, n_kv_heads))
    hypers = group.hypers([RUN])
    state = group.init(hypers)
    if task == "relations":
        state = group.train_chunk(state, hypers, 600)
    else:
        mixer = state.params["layers"]["0"]["mixer"]
        mixer["wq"] = 6 * mixer["wq"]
    return group, state, group.examine(state)[0]


@functools.cache
def attention(task: str, n_heads: int, n_kv_heads: int | None = None) -> tuple[Any, Any, Any]:
    """The whole probe draw of the same model: batch, outputs and weights [b, n, t, s], float64."""
    group, state, _ = examined(task, n_heads, n_kv_heads)
    program = group.program
    params = jax.tree.map(lambda x: x[0], state.params)
    assert examine.n_batches(program) == 2 and examine.probe_size(program) == 32
    batches = [
        examine.probe_batch(program, group.constants["test"], i)
        for i in range(examine.n_batches(program))
    ]
    batch = jax.tree.map(lambda *x: np.concatenate(x), *batches)
    outputs, layers = program.model.apply(params, batch.inputs, probe=lambda stops: stops)
    weights = np.asarray(layers[0]["weights_bkgts"], np.float64)
    return (
        batch,
        np.asarray(outputs, np.float64),
        weights.reshape(len(weights), -1, *weights.shape[3:]),
    )


def slow(name: str, batch: Any, outputs: np.ndarray, weights: np.ndarray, spec: Any) -> Any:
    """Value, baseline and rows of a score, by loops over sequences, queries and keys."""
    kind, _, which = name.partition("/")
    n_heads, length = weights.shape[1:3]
    value, uniform, n_rows = np.zeros(n_heads), 0.0, 0
    for b in range(len(weights)):
        ids = [int(x) for x in batch.inputs[b, :, 0]]
        pointers = {role: [int(x) for x in batch.pointers[role][b]] for role in spec.roles}
        for t in range(length):
            keys: set[int] = set()
            if kind in ("role", "dependency", "retrieval"):
                keys = {pointers[which][t]} - {-1}
            elif kind == "alignment":
                keys = {pointers[role][t] for role in spec.roles} - {-1}
            elif kind in ("offset", "argmax"):
                keys = {t + int(which)} & set(range(length))
            elif name == "sink/first":
                keys = {0}
            elif name == "sink/delimiter":
                keys = {s for s in range(length) if spec.vocab[ids[s]] == "|"}
            elif name == "same_token":
                keys = {s for s in range(length) if ids[s] == ids[t] and s != t}
            elif name == "same_class":
                word = spec.vocab[ids[t]]
                family = word.split(".")[0]
                keys = {
                    s
                    for s in range(length)
                    if spec.vocab[ids[s]].split(".")[0] == family and spec.vocab[ids[s]] != word
                }
            elif name == "induction":
                keys = {s for s in range(1, t) if ids[s - 1] == ids[t]}
            if not keys:
                continue
            n_rows += 1
            right = True
            if kind == "retrieval":
                o = spec.outputs.index(which)
                right = outputs[b, t, o].argmax() == batch.targets[b, t, o]
            uniform += right * len(keys) / length
            for n in range(n_heads):
                row = weights[b, n, t]
                if kind in ("dependency", "argmax", "retrieval"):
                    value[n] += right * (int(row.argmax()) in keys)
                else:
                    value[n] += sum(row[s] for s in keys)
    return value / n_rows, uniform / n_rows, n_rows


NAMES = tuple(
    name
    for name in catalogue.names(np.ones((13, 13), bool), static("relations").task.spec)
    if name not in ("entropy", "normalised_entropy", "confidence", "distance", "score_variance")
)


def test_the_model_is_trained() -> None:
    group, state, _ = examined("relations", 4, 2)
    assert group.evaluate(state, "validation")[0]["accuracy"] > 0.5  # chance is 1/16


def test_the_scores_of_a_task_with_everything() -> None:
    kinds = {name.partition("/")[0] for name in NAMES}
    assert kinds == {
        *("role", "alignment", "dependency", "retrieval", "offset", "argmax", "sink"),
        *("same_token", "same_class", "induction"),
    }
    assert len(NAMES) == 4 + 1 + 4 + 4 + 6 + 6 + 2 + 3


@pytest.mark.parametrize("name", NAMES)
def test_every_score_against_loops(name: str) -> None:
    group, _, found = examined("relations", 4, 2)
    batch, outputs, weights = attention("relations", 4, 2)
    (names,) = examine.score_names(group.static)
    score = heads.layer_scores(found[0], names)[name]
    value, uniform, n_rows = slow(name, batch, outputs, weights, group.spec)
    np.testing.assert_allclose(score.value, value, atol=1e-5)
    assert score.n_rows == n_rows
    if name.startswith("dependency/"):
        fixed = max(slow_offset(name.partition("/")[2], k, batch) for k in range(-3, 3))
        assert score.baseline == pytest.approx(fixed, abs=1e-6)
        uniform = fixed
    else:
        assert score.baseline == pytest.approx(uniform, abs=1e-5)
    if uniform == 1:  # a fixed offset is always right
        assert name == "dependency/prev" and np.isnan(score.corrected).all()
    else:
        np.testing.assert_allclose(score.corrected, (value - uniform) / (1 - uniform), atol=2e-5)


def test_score_variance_of_a_run_is_that_of_scaled_q_and_k() -> None:
    """And the baseline of the record at step 0, where it is followed from."""
    group, state, found = examined("relations", 4, 2)
    batch, _, _ = attention("relations", 4, 2)
    params = jax.tree.map(lambda x: x[0], state.params)
    _, (stops,) = group.program.model.apply(params, batch.inputs, probe=lambda stops: stops)
    q_btnh = np.asarray(stops["q_btkgh"], np.float64).reshape(len(batch.inputs), 13, 4, -1)
    k_bsnh = np.repeat(np.asarray(stops["k_bskh"], np.float64), 2, axis=2)
    scores_bnts = np.einsum("btnh,bsnh->bnts", q_btnh, k_bsnh) / q_btnh.shape[-1] ** 0.5
    want = scores_bnts.var(-1, ddof=1).mean((0, 2))
    (names,) = examine.score_names(group.static)
    score = heads.layer_scores(found[0], names)["score_variance"]
    np.testing.assert_allclose(score.value, want, rtol=1e-4)
    np.testing.assert_array_equal(score.corrected, score.value)
    assert score.share == 1


def test_a_mixer_with_weights_and_no_scores_has_no_variance_of_them() -> None:
    group, _, _ = examined("relations", 4, 2)
    batch, outputs, weights = attention("relations", 4, 2)
    (table,), (names,) = examine.visible(group.static), examine.score_names(group.static)
    sums = catalogue.layer_sums(weights, None, table, batch, outputs, group.spec)
    variance = bootstrap.finish(type(sums)(*(x[..., names.index("score_variance")] for x in sums)))
    assert np.isnan(variance.value).all() and variance.n_rows == 0


def slow_offset(role: str, k: int, batch: Any) -> float:
    pointer = batch.pointers[role]
    rows = [(b, t) for b, t in np.ndindex(pointer.shape) if pointer[b, t] >= 0]
    return float(np.mean([pointer[b, t] == t + k for b, t in rows]))


def test_the_rise_of_the_loss_is_that_of_a_model_without_the_head() -> None:
    group, state, found = examined("relations", 4, 2)
    batch, _, _ = attention("relations", 4, 2)
    params = jax.tree.map(lambda x: x[0], state.params)

    def mean_loss(mask: Any) -> float:
        outputs, _ = group.program.model.apply(params, batch.inputs, head_mask=[mask])
        return float(loss.mean_loss(loss.sums(outputs, batch, group.spec)))

    whole = mean_loss(np.ones(4, np.float32))
    (names,) = examine.score_names(group.static)
    rise = heads.layer_scores(found[0], names)["loss_rise"]
    for head in range(4):
        without = mean_loss(1 - np.eye(4, dtype=np.float32)[head])
        assert rise.value[head] == pytest.approx(without - whole, abs=2e-5)
    assert (rise.low < rise.value).all() and (rise.value < rise.high).all()


def test_the_table_has_a_row_for_every_head_and_score(tmp_path: Any) -> None:
    group, _, found = examined("relations", 4, 2)
    told = outcome.write_heads(tmp_path, found, group.static, with_indices=True)
    both, problems = read_heads(tmp_path / "heads.csv")
    rows = [row for row in both if row["of"] == "n"]
    assert not problems and len(rows) == 4 * (len(NAMES) + 5 + 4 + 1)
    assert [row["kv_head"] for row in rows[:: len(rows) // 4]] == [0, 0, 1, 1]
    by_head = {row["head"]: row["role"] for row in rows}
    assert list(by_head.values()) == told["layers"]["l0"]["names"]
    text = csv.DictReader(io.StringIO((tmp_path / "heads.csv").read_text()))
    assert tuple(text.fieldnames or ()) == heads.COLUMNS
    assert "nan" not in (tmp_path / "heads.csv").read_text()
    assert json.loads((tmp_path / "indices.json").read_text()).keys() == set(head_columns.INDICES)


def test_a_kv_head_is_the_mean_of_the_heads_that_read_it() -> None:
    group, _, found = examined("relations", 4, 2)
    rows = heads.table(heads.read(found, group.static), group.static)
    by_name: dict[Any, Any] = {}
    for row in rows:
        by_name.setdefault((row["of"], row["score"]), []).append(row)
    names = {name for of, name in by_name if of == "n"} - {"loss_rise"}
    assert {name for of, name in by_name if of == "k"} == names
    for name in names:
        of_heads, of_groups = by_name["n", name], by_name["k", name]
        assert [row["head"] for row in of_groups] == [row["kv_head"] for row in of_groups] == [0, 1]
        # A mixture's weights are clipped head by head, and a best offset is that of each head.
        if not name.startswith(("weight/", "dependency/")):
            for key in ("value", "corrected"):
                pairs = np.reshape([row[key] for row in of_heads], (2, 2)).mean(1)
                assert pairs == pytest.approx([row[key] for row in of_groups], rel=1e-5, abs=1e-6)
        assert {row["n_rows"] for row in of_heads} == {row["n_rows"] for row in of_groups}
    mha, _, plain = examined("relations", 4)
    assert {row["of"] for row in heads.table(heads.read(plain, mha.static), mha.static)} == {"n"}


def test_a_run_that_is_not_reported_has_no_resamples(tmp_path: Any) -> None:
    group, _, found = examined("relations", 4, 2)
    outcome.write_heads(tmp_path, found, group.static, with_indices=False)
    assert [path.name for path in tmp_path.iterdir()] == ["heads.csv"]


def test_tasks_that_lack_something_have_fewer_scores() -> None:
    vectors = examine.score_names(small("d_retrieval", 2))[0]
    assert "same_token" not in vectors and "role/max0" not in vectors[:0]
    assert not [name for name in vectors if name.startswith("retrieval")]
    causal = examine.score_names(small("copy", 2))[0]
    assert "offset/+1" not in causal and "offset/+0" in causal and "retrieval/source" in causal
    assert "same_class" not in causal and "sink/delimiter" in causal
    no_roles = examine.score_names(small("histogram", 2))[0]
    assert not [name for name in no_roles if name.startswith(("role", "alignment", "dependency"))]


def test_repeated_tokens_are_scored_where_a_task_reads_tokens_in_order() -> None:
    """Against the definition: the weight on what followed the earlier occurrences."""
    group, state, found = examined("copy", 2)
    assert set(examine.repeated_forms(group.spec)) == {
        *("repeated/induction", "repeated/prefix_matching")
    }
    assert not examine.repeated_forms(small("relations", 2).task.spec)
    assert not examine.repeated_forms(small("histogram", 2).task.spec)  # its mask is full
    assert not examine.repeated_forms(small("copy", 2, length=2).task.spec)  # no room
    (names,) = examine.score_names(group.static)
    scores = heads.layer_scores(found[0], names)
    length, vocab = group.spec.length, group.spec.input_sizes[0]
    for name, n_repeats in (("repeated/induction", 2), ("repeated/prefix_matching", 4)):
        period = min((length - 1) // n_repeats, vocab - 1)
        key = rng.stream(group.static.task.seed, name)
        start, *others = examine._start_first(group.spec)
        assert group.spec.vocab[start] == "|"
        tokens = examine.repeats.tokens(key, 32, length, period, others, start)
        params = jax.tree.map(lambda x: x[0], state.params)
        _, layers = group.program.model.apply(params, tokens, probe=lambda stops: stops)
        weights = np.asarray(layers[0]["weights_bkgts"], np.float64)[:, :, 0]
        total, n_rows = np.zeros(2), 0
        for b, t in np.ndindex(32, length):
            ids = [int(x) for x in tokens[b]]
            keys = [s for s in range(2, t + 1) if ids[s - 1] == ids[t] and s - 1 < t]
            keys = keys[-1:] if n_repeats == 2 else keys
            if keys and t > period:
                total += weights[b, :, t][:, keys].sum(-1)
                n_rows += 1
        np.testing.assert_allclose(scores[name].value, total / n_rows, atol=1e-5)
        assert scores[name].n_rows == n_rows


def test_without_roles_a_head_is_named_by_scores_that_need_none(tmp_path: Any) -> None:
    group, _, found = examined("histogram", 2)
    (layer,) = heads.read(found, group.static)
    assert set(layer.names) <= {"mixed", *heads.GENERAL.values()}
    score = layer.scores["same_token"]
    layer.scores["same_token"] = score._replace(corrected=np.array([0.9, 0.1]))
    assert heads.head_names(layer.found, layer.scores) == ["same token", "mixed"]
    told = outcome.write_heads(tmp_path, found, group.static, with_indices=True)
    assert math.isnan(told["specialization"]) and told["offset_specialization"] < 1


def test_the_cell_of_a_frontier_tells_of_its_heads(tmp_path: Any) -> None:
    """Means over reported seeds, and the interval of the nested resamples."""
    group, _, found = examined("relations", 4, 2)
    told = {}
    for seed in range(3):
        directory = make_run(tmp_path / "s", group.static, 0.9, seed=seed)
        told = outcome.write_heads(directory, found, group.static, with_indices=True)
        summary = json.loads((directory / "summary.json").read_text())
        summary["heads"] = told | {"js": told["js"] + seed}
        (directory / "summary.json").write_text(json.dumps(summary))
    runs, problems = read_sweep(tmp_path / "s")
    assert not problems
    (cell,) = cells.gather(runs)
    row = head_columns.of_cell(cell)
    assert tuple(row) == head_columns.COLUMNS and set(row) <= set(tables.FRONTIER_COLUMNS)
    assert row["js"] == pytest.approx(told["js"] + 1)
    assert row["specialization"] == pytest.approx(told["specialization"])
    assert row["specialization_low"] < row["specialization"] < row["specialization_high"]
    assert row["head_roles"] == ", ".join(told["layers"]["l0"]["names"])
    assert row["roles_covered_at_0.5"] == naming.covered(told["layers"]["l0"]["names"])
    (one,), _ = maps.head_maps([cell], tables.head_rows(runs)[0])
    assert one.has_index and one.title.startswith("4 heads\nGQA-2\ns .") and " to ." in one.title
    assert one.roles == group.spec.roles


def test_a_cell_without_heads_leaves_blanks(tmp_path: Any) -> None:
    directory = make_run(tmp_path / "s", small("relations", 4), 0.9)
    (directory / "indices.json").write_text('{"specialization": {"index_d"')
    (cell,) = cells.gather(read_sweep(tmp_path / "s")[0])
    assert set(head_columns.of_cell(cell).values()) == {None}


def test_what_is_followed_is_what_the_end_tells() -> None:
    """On the first batch of the probe draw, with the names of the curves."""
    group, state, _ = examined("relations", 4, 2)
    (followed,) = group.follow(state)
    assert len(followed) == 4 * (4 + 6)
    batch, outputs, weights = attention("relations", 4, 2)
    first = jax.tree.map(lambda x: x[:32], batch)
    value, uniform, _ = slow("role/word", first, outputs[:32], weights[:32], group.spec)
    corrected = (value - uniform) / (1 - uniform)
    for head in range(4):
        assert followed[f"heads/l0.n{head}/role/word"] == pytest.approx(corrected[head], abs=1e-5)


def test_the_probe_draw_is_that_of_the_task_and_not_of_the_run() -> None:
    group, _, _ = examined("relations", 4, 2)
    key = rng.stream(group.static.task.seed, "probe", 0)
    batch = group.program.sample(key, group.constants["test"], 32)
    first = examine.probe_batch(group.program, group.constants["test"])
    np.testing.assert_array_equal(batch.inputs, first.inputs)


def test_long_sequences_are_probed_a_few_at_a_time() -> None:
    spec = small("copy", 8, length=256)
    assert examine.probe_size(Group(spec).program) == 2**24 // (8 * 512**2)

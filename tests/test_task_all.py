"""What every task promises, checked on several sizes of each."""

import dataclasses
import importlib
import subprocess
import sys

import jax
import numpy as np
import pytest

from configs.base import get_config
from mha_jax import rng, tasks

CASES = [
    ("relations", {}),
    ("relations", dict(n_classes=2, words_per_class=2, classes_per_sentence=2, n_values=3)),
    ("relations", dict(relations="rhyme,class_last,word", causal=True, n_distractors=3)),
    ("relations", dict(relations="next,rhyme_last,delimiter,prev,class")),
    ("english", {}),
    ("english", dict(length=7, n_values=3)),
    ("taps", {}),
    ("taps", dict(length=7, n_taps=6, n_channels=3)),
    ("wide_taps", {}),
    ("wide_taps", dict(length=7, n_taps=3, n_channels=2, readout="none")),
    ("attr", {}),
    ("attr", dict(n_items=5, n_attributes=3, attribute_vocab=5, n_values=7, n_queries=2)),
    ("d_retrieval", {}),
    ("d_retrieval", dict(length=5, n_maxima=3, n_channels=2, width=8)),
    ("copy", {}),
    ("copy", dict(length=9, vocab=70)),
    ("histogram", {}),
    ("histogram", dict(length=9, vocab=30)),
    ("sort", {}),
    ("sort", dict(length=5, vocab=6)),
    ("agreement", {}),
    ("agreement", dict(max_attractors=1, max_adjectives=0, n_nouns=300)),
    ("dyck", {}),
    ("dyck", dict(n_pairs=5, max_depth=9, n_types=3)),
    ("modular_addition", {}),
    ("modular_addition", dict(modulus=64, train_fraction=0.3)),
    ("memorise", {}),
    ("memorise", dict(n_examples=11, n_context=3, n_channels=2, n_classes=5)),
    ("nearest", {}),
    ("nearest", dict(n_context=5, n_queries=3, n_channels=2)),
    ("mixture", {}),
    ("mixture", dict(n_context=5, n_channels=3, n_taps=5)),
    ("mqar", {}),
    ("mqar", dict(length=20, n_pairs=3, vocab=9, random_fillers=True)),
    ("induction", {}),
    ("induction", dict(length=16, vocab=9, min_block=2, max_block=8)),
    ("k_hop", {}),
    ("k_hop", dict(length=13, vocab=3, n_hops=4)),
    ("needle", {}),
    ("needle", dict(length=9, vocab=5, distance=8)),
    ("selective_copy", {}),
    ("selective_copy", dict(length=9, vocab=5, n_marked=4)),
    ("markov", {}),
    ("markov", dict(length=9, vocab=7)),
    ("text", {}),
    ("text", dict(length=33)),
]


def case(name, over):
    """The module, and its config: the defaults of the base setting, changed."""
    module = importlib.import_module(f"mha_jax.tasks.{name}")
    return module, module.Config(**{**get_config().task[name].to_dict(), **over})


@pytest.fixture(params=CASES, ids=lambda c: "-".join([c[0], *map(str, c[1].values())]))
def task(request):
    return case(*request.param)


def constants_of(module, cfg, seed, split):
    """The task's arrays; none where it has no such function."""
    return module.constants(cfg, seed, split) if hasattr(module, "constants") else {}


def draw(module, cfg, key, n, split="train"):
    """A batch, drawn as a training step draws it: compiled."""
    constants = constants_of(module, cfg, 0, split)
    return jax.jit(module.sample, static_argnums=(2, 3))(key, constants, cfg, n)


@pytest.mark.parametrize("name", tasks.NAMES)
def test_base_setting_has_the_fields_of_the_task(name):
    module = importlib.import_module(f"mha_jax.tasks.{name}")
    section = get_config().task[name].to_dict()
    assert set(section) == {field.name for field in dataclasses.fields(module.Config)}


def test_sizes_have_no_problems(task):
    module, cfg = task
    assert list(module.problems(cfg)) == []


def test_batch_is_what_the_spec_says(task):
    module, cfg = task
    spec, n = module.spec(cfg), 8
    batch = draw(module, cfg, jax.random.key(0), n)
    rows = spec.length - spec.query_token
    shape = {"tokens": (n, rows), "fields": (n, rows, len(spec.input_sizes))}
    shape["vectors"] = (n, rows, *spec.input_sizes)
    assert batch.inputs.shape == shape[spec.inputs]
    if spec.inputs == "vectors":
        assert batch.inputs.dtype == np.float32
    else:
        assert batch.inputs.dtype == np.int32
        ids = np.asarray(batch.inputs).reshape(n, rows, -1)
        assert ids.min() >= 0
        assert (ids < np.array(spec.input_sizes)).all()
    assert len(spec.classes) in (0, spec.input_sizes[0])
    assert all(0 <= i < spec.input_sizes[0] for i in spec.delimiters)
    answers = (n, spec.length, len(spec.outputs))
    assert batch.loss_mask.shape == answers
    assert batch.loss_mask.dtype == np.float32
    assert set(np.unique(batch.loss_mask)) <= {0.0, 1.0}
    assert np.asarray(batch.loss_mask).any(axis=(0, 1)).all()
    if spec.kind == "class":
        assert batch.targets.shape == answers
        assert batch.targets.dtype == np.int32
        assert np.min(batch.targets) >= 0
        assert np.max(batch.targets) < spec.output_size
    else:
        assert batch.targets.shape == (*answers, spec.output_size)
        assert batch.targets.dtype == np.float32


def test_pointers_are_visible_keys(task):
    module, cfg = task
    spec = module.spec(cfg)
    batch = draw(module, cfg, jax.random.key(1), 8)
    assert set(batch.pointers) == set(spec.roles)
    last = {
        "causal": np.arange(spec.length),
        "full": np.full(spec.length, spec.length - 1),
        "context_query": np.full(spec.length, spec.n_context - 1),
    }[spec.mask]
    for pointer in batch.pointers.values():
        assert pointer.dtype == np.int32
        assert pointer.shape == (8, spec.length)
        assert np.min(pointer) >= -1
        assert (np.asarray(pointer) <= last).all()


def test_a_key_fixes_the_batch_and_its_first_rows_at_any_size(task, assert_close):
    module, cfg = task
    batch, same, other = (draw(module, cfg, jax.random.key(seed), 8) for seed in (2, 2, 3))
    jax.tree.map(np.testing.assert_array_equal, same, batch)
    assert not np.array_equal(other.inputs, batch.inputs)
    more = draw(module, cfg, jax.random.key(2), 11)
    assert_close(jax.tree.map(lambda x: x[:8], more), batch)


def test_lanes_draw_what_each_draws_alone(task, assert_close):
    module, cfg = task
    constants = constants_of(module, cfg, 0, "train")
    keys = jax.random.split(jax.random.key(4), 3)
    lanes = jax.jit(jax.vmap(lambda key: module.sample(key, constants, cfg, 8)))(keys)
    for r in range(3):
        alone = draw(module, cfg, keys[r], 8)
        assert_close(jax.tree.map(lambda x, r=r: x[r], lanes), alone)


# Tasks that have only so many sequences: the splits divide them.
FINITE = {"modular_addition": 23 * 23}
# Measures how much a model can fit: all splits are one set, which no run is to generalise from.
ONE_SET = {"memorise": 512}


def rows_of(name, split, n):
    """The different inputs of n sequences, drawn as a run with task.seed 0 draws a split."""
    module, cfg = case(name, {})
    key = rng.stream(0, split)
    return {row.tobytes() for row in np.asarray(draw(module, cfg, key, n, split).inputs)}


@pytest.mark.parametrize("name", [name for name in tasks.NAMES if name not in FINITE | ONE_SET])
def test_splits_do_not_overlap(name):
    seen = set()
    for split in tasks.SPLITS:
        rows = rows_of(name, split, 512)
        assert len(rows) > 500  # the same window of a text may be drawn twice
        assert not rows & seen
        seen |= rows


@pytest.mark.parametrize("name", FINITE)
def test_splits_of_a_finite_set_are_drawn_whole_and_do_not_overlap(name):
    # So many draws leave none of a few hundred sequences out, but for a chance of 1e-10.
    splits = [rows_of(name, split, 30 * FINITE[name]) for split in tasks.SPLITS]
    assert sum(map(len, splits)) == len(set.union(*splits)) == FINITE[name]


@pytest.mark.parametrize("name", ONE_SET)
def test_splits_of_one_set_are_the_same(name):
    splits = [rows_of(name, split, 30 * ONE_SET[name]) for split in tasks.SPLITS]
    assert splits[0] == splits[1] == splits[2]
    assert len(splits[0]) == ONE_SET[name]


def metric(name, over):
    module, cfg = case(name, over)
    return module.spec(cfg).metric


@pytest.mark.parametrize("name, over", [c for c in CASES if metric(*c) == "accuracy"])
def test_chance_is_the_best_constant_guess(name, over):
    module, cfg = case(name, over)
    spec = module.spec(cfg)
    batch = draw(module, cfg, jax.random.key(5), 4096)
    for o in range(len(spec.outputs)):
        answers = np.asarray(batch.targets)[..., o][np.asarray(batch.loss_mask)[..., o] == 1]
        rates = np.bincount(answers) / len(answers)
        # The largest of up to 70 rates, each off by 1/sqrt(12) % at worst (4096 independent rows).
        assert spec.chance - 0.01 < rates.max() < spec.chance + 0.03


@pytest.mark.parametrize("name", tasks.NAMES)
def test_constants_depend_on_the_seed_alone(name):
    module, cfg = case(name, {})
    one, same, other = (constants_of(module, cfg, seed, "train") for seed in (1, 1, 2))
    assert one.keys() == other.keys()
    for field in one:
        assert isinstance(one[field], np.ndarray)
        assert np.array_equal(one[field], same[field])
        assert not np.array_equal(one[field], other[field])


BAD = [
    ("relations", dict(n_classes=0), {"n_classes", "classes_per_sentence"}),
    ("relations", dict(classes_per_sentence=7), {"classes_per_sentence"}),
    ("relations", dict(words_per_class=1, n_values=1), {"words_per_class", "n_values"}),
    ("relations", dict(n_values=10**12), {"n_values"}),
    ("relations", dict(n_distractors=4), {"n_distractors"}),
    ("relations", dict(n_distractors=-1, relations="prev,prev"), {"n_distractors", "relations"}),
    ("english", dict(length=6, n_values=1), {"length", "n_values"}),
    ("english", dict(length=10**9), {"length"}),
    ("taps", dict(length=4), {"length"}),
    ("taps", dict(n_taps=0), {"n_taps"}),
    ("taps", dict(n_channels=-1), {"n_channels"}),
    ("wide_taps", dict(length=4), {"length"}),
    ("wide_taps", dict(readout="mlp"), {"readout"}),
    ("attr", dict(n_items=33), {"attribute_vocab"}),
    ("attr", dict(n_items=0, n_queries=0), {"n_items", "n_queries"}),
    ("attr", dict(n_attributes=0, n_values=1), {"n_attributes", "n_values"}),
    ("d_retrieval", dict(length=1, width=0), {"length", "width"}),
    ("d_retrieval", dict(n_maxima=0, n_channels=0), {"n_maxima", "n_channels"}),
    ("copy", dict(length=0), {"length"}),
    ("copy", dict(vocab=1), {"vocab"}),
    ("histogram", dict(length=1), {"length"}),
    ("histogram", dict(vocab=1), {"vocab"}),
    ("sort", dict(length=1), {"length"}),
    ("sort", dict(length=9, vocab=9), {"vocab"}),
    ("agreement", dict(max_attractors=0, max_adjectives=-1), {"max_attractors", "max_adjectives"}),
    ("agreement", dict(n_nouns=0, n_verbs=0), {"n_nouns", "n_verbs"}),
    ("agreement", dict(n_adjectives=0, n_prepositions=5000), {"n_adjectives", "n_prepositions"}),
    ("dyck", dict(n_pairs=0, max_depth=0), {"n_pairs", "max_depth"}),
    ("dyck", dict(n_types=1), {"n_types"}),
    ("modular_addition", dict(modulus=1), {"modulus"}),
    ("modular_addition", dict(modulus=2000, train_fraction=2.0), {"modulus"}),
    ("modular_addition", dict(train_fraction=0.0), {"train_fraction"}),
    ("modular_addition", dict(train_fraction=0.999), {"train_fraction"}),
    ("modular_addition", dict(train_fraction=-1e300), {"train_fraction"}),
    ("memorise", dict(n_examples=1, n_context=1), {"n_examples", "n_context", "n_classes"}),
    ("memorise", dict(n_classes=513), {"n_classes"}),
    ("memorise", dict(n_channels=0), {"n_channels"}),
    (
        "nearest",
        dict(n_context=1, n_queries=0, n_channels=1),
        {"n_context", "n_queries", "n_channels"},
    ),
    ("mixture", dict(n_taps=17), {"n_taps"}),
    ("mixture", dict(n_context=1, n_channels=1, n_taps=0), {"n_context", "n_channels", "n_taps"}),
    ("mqar", dict(length=33), {"length"}),
    ("mqar", dict(length=30), {"length"}),
    ("mqar", dict(n_pairs=0, vocab=3), {"n_pairs", "vocab"}),
    ("mqar", dict(vocab=17), {"vocab"}),
    ("induction", dict(length=23), {"length"}),
    ("induction", dict(vocab=12), {"vocab"}),
    ("induction", dict(min_block=13), {"max_block"}),
    ("induction", dict(min_block=1, max_block=0), {"min_block", "max_block"}),
    ("k_hop", dict(length=16), {"length"}),
    ("k_hop", dict(vocab=1, n_hops=0), {"vocab", "n_hops"}),
    ("needle", dict(distance=64), {"distance"}),
    ("needle", dict(length=1, vocab=1), {"length", "vocab"}),
    ("needle", dict(distance=-1), {"distance"}),
    ("selective_copy", dict(n_marked=17), {"vocab"}),
    ("selective_copy", dict(length=7), {"length"}),
    ("selective_copy", dict(vocab=1, n_marked=0), {"vocab", "n_marked"}),
    ("markov", dict(length=1, vocab=1), {"length", "vocab"}),
    ("markov", dict(vocab=257), {"vocab"}),
    ("text", dict(length=0), {"length"}),
    ("text", dict(length=10**9), {"length"}),
]


@pytest.mark.parametrize("name, over, fields", BAD)
def test_problems_name_the_field_and_a_fix(name, over, fields):
    module, cfg = case(name, over)
    found = list(module.problems(cfg))
    assert {field for field, _, _ in found} == fields
    for _, rule, fix in found:
        assert rule and fix
        assert "\n" not in rule + fix


def test_all_but_sample_needs_no_jax():
    code = """
import sys
from configs.base import get_config
from mha_jax import tasks
from mha_jax.config import LayerSpec, ModelSpec, TaskRef
layer = LayerSpec("grouped", 4, 4, 16, 0, 0, 0, None)
model = ModelSpec(64, (layer,), "learned", "content", "none", False, False, "gelu", True, True,
                  "none", False, False, False, 0, 0, 0, "none", 1, 0,
                  "mean", "auto", "float32", "float32")
for name in tasks.NAMES:
    params = tuple(sorted(get_config().task[name].to_dict().items()))
    task = TaskRef(name, 0, params, "")
    assert not list(task.module.problems(task.config))
    task.spec, task.constants("test"), task.ceiling(model), task.baselines(model)
    getattr(task.module, "data_hash", hash)(task.config)
assert "jax" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)

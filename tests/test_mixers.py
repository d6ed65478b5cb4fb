"""A mixer in a file of the user's: found, refused, and known by its content."""

import pytest

from configs.base import get_config
from mha_jax import cost, mixers, schema, train

SOURCE = """
from mha_jax.attention.grouped import Mixer

def cost(layer, model):
    told = {"params": 1, "cache_elements": 2, "state_elements": 3, "flops": 4, "flops_per_key": 5}
    return told
"""


@pytest.fixture
def path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(SOURCE)
    return tmp_path / "mine.py"


def resolve(mixer):
    config = get_config().to_dict()
    config["model"]["mixer"] = mixer
    return schema.resolve(config)


def test_a_file_is_known_by_its_content(path):
    run, problems = resolve("mine.py")
    assert not problems
    (layer,) = run.static.model.layers
    assert layer.mixer.startswith("mine.py@") and len(layer.mixer) == len("mine.py@") + 10
    assert cost.variant(run.static.model) == "mine"
    assert cost.mixer_cost(layer, run.static.model).state_elements == 3
    path.write_text(SOURCE + "# a word more\n")
    assert resolve("mine.py")[0].hash != run.hash
    with pytest.raises(ValueError, match=r"mixer mine\.py has changed since"):
        mixers.module(layer.mixer)
    path.unlink()
    with pytest.raises(ValueError, match=r"mixer mine\.py: No such file.*work in the directory"):
        mixers.module(layer.mixer)


def test_a_layer_each(path):
    config = get_config().to_dict()
    config["model"] |= {"n_layers": 2, "mixer": "mine.py,grouped"}
    run, problems = schema.resolve(config)
    assert not problems
    assert [mixers.short(layer.mixer) for layer in run.static.model.layers] == ["mine", "grouped"]
    assert cost.variant(run.static.model) == "mine+grouped"


@pytest.mark.parametrize(
    ("name", "source", "told"),
    [
        ("there_is_none.py", None, "No such file"),
        ("bad.py", "class Mixer:\n  def", "line 2 is not"),
        ("bad.py", "class Mixer: pass", "must define cost"),
        ("bad.py", "x = 1", "must define Mixer and cost"),
        ("bad.py", "x = '\0'", "must be Python"),
        ("a@b.py", SOURCE, "must have no '@'"),
        ("grouped@0123456789", None, "or a file of yours"),
        ("\0.py", None, "string of printable characters"),
    ],
)
def test_a_bad_file_is_one_line(path, name, source, told):
    if source is not None:
        path.with_name(name).write_text(source)
    run, problems = resolve(name)
    assert run is None
    (problem,) = problems
    assert problem.key == "model.mixer" and told in str(problem) and "\n" not in str(problem)


def test_a_file_whose_cost_fails_is_one_line(path):
    path.write_text("class Mixer: pass\n\ndef cost(layer, model):\n    return {'params': 1}\n")
    (problem,) = resolve("mine.py")[1]
    assert "is a mixer whose cost fails" in str(problem)


def test_a_mixer_that_tells_another_number_of_parameters_is_refused(path):
    """Models are matched by what it tells."""
    run, problems = resolve("mine.py")
    assert not problems
    with pytest.raises(ValueError, match="and the cost of its mixers says"):
        train.init(train.Program.of(run.static), train.HyperArrays(0, 0, 1e-3, 0.0))


def test_a_path_has_one_name(path):
    assert resolve("./mine.py")[0].hash == resolve("mine.py")[0].hash

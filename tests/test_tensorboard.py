"""The HParams table of a sweep and the figures beside it, read back through TensorBoard itself."""

import contextlib
import json
import re
import subprocess
import sys
import time
import urllib.parse
import urllib.request

import numpy as np
import pytest
from tensorboard.backend.event_processing.plugin_event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import api_pb2, plugin_data_pb2

from mha_jax import tensorboard
from mha_jax.picture import attention_png
from mha_jax.tensorboard import Session
from mha_jax.writer import RunWriter

pytestmark = pytest.mark.smoke  # also on the second stack of libraries

METRICS = ["test/accuracy"]


def make_run(directory, hparams, accuracy, ok):
    """A run with a resume in it, as the driver writes one; `ok` None: it is not over."""
    directory.mkdir(parents=True)
    with contextlib.closing(RunWriter(directory, tensorboard=True, records_bytes=0)) as records:
        tensorboard.session_start(directory / "tb", hparams, directory.name)
        records.scalars(0, {"train/loss": 9})
    # Killed before its first checkpoint, it starts afresh; killed after it, it goes on from there.
    with contextlib.closing(RunWriter(directory, tensorboard=True, records_bytes=0)) as records:
        records.text("config", "d_model = 8")
        for step in range(4):
            records.scalars(step, {"train/loss": 1 / (1 + step)})
        length = records.flush()
        records.scalars(4, {"train/loss": -1})
    again = RunWriter(directory, tensorboard=True, records_bytes=length, start_step=3)
    with contextlib.closing(again) as records:
        records.scalars(4, {"train/loss": np.nan})
        records.images(4, {"attention/l0.n0": np.eye(4)})
        records.scalars(4, {"test/accuracy": accuracy})
    if ok is not None:
        tensorboard.session_end(directory / "tb", ok)


def sessions():
    runs = [(1, 0.001, True), (2, 0.003, False), (16, 1, None), (2, 1.0, True)]
    return [
        Session(
            f"n={n},lr={lr}-{i:010x}", {"model.n_heads": n, "optim.lr": lr, "model.bias": False}, ok
        )
        for i, (n, lr, ok) in enumerate(runs)
    ]


@pytest.fixture(scope="module")
def sweep(tmp_path_factory):
    root = tmp_path_factory.mktemp("experiment")
    for i, session in enumerate(sessions()):
        make_run(root / session.directory, session.hparams, i / 4, session.ok)
    (root / "figures").mkdir()
    (root / "figures" / "frontier.png").write_bytes(attention_png(np.eye(9))[0])
    for _ in range(2):  # as when a finished sweep is launched again
        tensorboard.write_hparams(root, sessions(), METRICS)
        tensorboard.image_file(root / "tb", "frontier", root / "figures" / "frontier.png")
    return root


def table(ask):
    """The rows of the table, asked for as the page does: each column with its declared values."""
    columns = [
        {"hparam": info["name"], "filterDiscrete": info["domainDiscrete"]}
        for info in ask("plugin/hparams/experiment", {}).get("hparamInfos", [])
    ]
    statuses = ["STATUS_UNKNOWN", "STATUS_SUCCESS", "STATUS_FAILURE", "STATUS_RUNNING"]
    request = {"colParams": columns, "allowedStatuses": statuses, "startIndex": 0, "sliceSize": 99}
    return ask("plugin/hparams/session_groups", request).get("sessionGroups", [])


def over(ask):
    rows = [row for group in table(ask) for row in group["sessions"]]
    return [row for row in rows if row["status"] != "STATUS_UNKNOWN"]


@pytest.fixture(scope="module", params=["true", "false"], ids=["data-server", "python"])
def get(request, sweep, tmp_path_factory):
    """`get(path, body=None, **query)` asks a TensorBoard on the sweep's directory."""
    if request.param == "true":
        pytest.importorskip("tensorboard_data_server")
    log = tmp_path_factory.mktemp("server") / "log"
    command = [sys.executable, "-m", "tensorboard.main", f"--logdir={sweep}"]
    command += ["--host=127.0.0.1", "--port=0", f"--load_fast={request.param}"]
    with log.open("w") as out, subprocess.Popen(command, stdout=out, stderr=out) as server:
        try:
            deadline = time.monotonic() + 60
            while not (address := re.search(r"http://\S+", log.read_text())):
                assert server.poll() is None and time.monotonic() < deadline, log.read_text()
                time.sleep(0.05)

            def ask(path, body=None, **query):
                url = f"{address[0]}data/{path}?{urllib.parse.urlencode(query)}"
                data = None if body is None else json.dumps(body).encode()
                headers = {"Content-Type": "application/json"}
                with urllib.request.urlopen(urllib.request.Request(url, data, headers)) as answer:
                    is_json = answer.headers.get_content_type() == "application/json"
                    return json.load(answer) if is_json else answer.read()

            while len(ask("plugin/images/tags")) < 5 or len(over(ask)) < 3:  # it reads on its own
                assert time.monotonic() < deadline, ask("runs")
                time.sleep(0.05)
            yield ask
        finally:
            server.terminate()


def test_scalars_have_every_step_once(get):
    for session in sessions():
        points = get("plugin/scalars/scalars", run=f"{session.directory}/tb", tag="train/loss")
        assert [step for _, step, _ in points] == [0, 1, 2, 3, 4]
        assert [value for *_, value in points] == [1, 0.5, pytest.approx(1 / 3), 0.25, "NaN"]


def test_images_and_texts_are_shown(get):
    images, texts = get("plugin/images/tags"), get("plugin/text/tags")
    for session in sessions():
        run = f"{session.directory}/tb"
        assert list(images[run]) == ["attention/l0.n0"]
        assert texts[run] == ["config"]
        [text] = get("plugin/text/text", run=run, tag="config")
        assert "d_model = 8" in text["text"]
    assert list(images["tb"]) == ["frontier"]
    [figure] = get("plugin/images/images", run="tb", tag="frontier", sample=0)
    query = dict(urllib.parse.parse_qsl(figure["query"]))
    assert get("plugin/images/individualImage", **query) == attention_png(np.eye(9))[0]


def test_the_table_declares_what_varies(get):
    experiment = get("plugin/hparams/experiment", {})
    heads, lr = experiment["hparamInfos"]
    assert (heads["name"], heads["type"]) == ("model.n_heads", "DATA_TYPE_STRING")
    assert heads["domainDiscrete"] == ["1", "2", "16"]
    assert (lr["name"], lr["type"]) == ("optim.lr", "DATA_TYPE_FLOAT64")
    assert lr["domainDiscrete"] == [0.001, 0.003, 1.0]
    assert [info["name"]["tag"] for info in experiment["metricInfos"]] == METRICS


def test_the_table_is_filled(get):
    groups = table(get)
    found = {group["name"]: group for group in groups}
    assert len(groups) == len(found) == 4
    names = {True: "STATUS_SUCCESS", False: "STATUS_FAILURE", None: "STATUS_UNKNOWN"}
    for i, session in enumerate(sessions()):
        group = found[session.directory]
        assert group["hparams"] == {
            "model.n_heads": str(session.hparams["model.n_heads"]),
            "optim.lr": session.hparams["optim.lr"],
            "model.bias": False,
        }
        [row] = group["sessions"]
        assert row["name"] == f"{session.directory}/tb"
        assert row["status"] == names[session.ok]
        [metric] = row["metricValues"]
        assert (metric["name"]["tag"], metric["value"]) == ("test/accuracy", i / 4)


def files(directory):
    return {path.name: path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def message(tb_dir, field):
    """The message that TensorBoard finds in a directory."""
    content = EventAccumulator(str(tb_dir)).Reload().PluginTagToContent("hparams")
    data = plugin_data_pb2.HParamsPluginData.FromString(content[f"_hparams_/{field}"])
    return getattr(data, field)


def test_calling_again_changes_nothing(tmp_path):
    for session in sessions():
        (tmp_path / session.directory / "tb").mkdir(parents=True)
    png = tmp_path / "frontier.png"
    png.write_bytes(attention_png(np.eye(9))[0])
    found = []
    for _ in range(2):
        tensorboard.write_hparams(tmp_path, sessions(), METRICS)
        tensorboard.image_file(tmp_path / "tb", "frontier", png)
        found.append(files(tmp_path))
    assert found[0] == found[1] and len(found[0]) == 1 + 4 + 3 + 2


def test_what_the_driver_adds_to_is_read_last(tmp_path):
    # Without its data server, TensorBoard leaves a file for good once there is a later one.
    with contextlib.closing(RunWriter(tmp_path, tensorboard=True)) as records:
        records.flush()
        tensorboard.session_start(tmp_path / "tb", {"a": 1}, "run")
    tensorboard.session_end(tmp_path / "tb", ok=True)
    kinds = [name.split(".")[-1].split("-")[0] for name in sorted(files(tmp_path / "tb"))]
    assert kinds == ["start", "run", "end"]


def test_a_failed_run_that_is_tried_again_has_one_status(tmp_path):
    tensorboard.session_start(tmp_path, {"a": 1}, "run")
    tensorboard.session_end(tmp_path, ok=False)
    assert message(tmp_path, "session_end_info").status == api_pb2.STATUS_FAILURE
    tensorboard.session_start(tmp_path, {"a": 1}, "run")
    with pytest.raises(KeyError):
        message(tmp_path, "session_end_info")
    tensorboard.session_end(tmp_path, ok=True)
    assert message(tmp_path, "session_end_info").status == api_pb2.STATUS_SUCCESS
    tensorboard.write_hparams(tmp_path.parent, [Session(tmp_path.name, {"a": 1}, True)], METRICS)
    assert sum("end-" in name for name in files(tmp_path)) == 1


def test_a_sweep_that_grows_declares_the_new_values(tmp_path):
    def declared():
        infos = message(tmp_path / "tb", "experiment").hparam_infos
        return {info.name: list(info.domain_discrete) for info in infos}

    first = Session("a-1", {"n": 8, "lr": 1, "kv": None, "gate": True}, True)
    tensorboard.write_hparams(tmp_path, [first], METRICS)
    assert declared() == {"gate": [True], "kv": ["None"], "lr": ["1"], "n": ["8"]}  # a sweep of one
    second = Session("b-2", {"n": 8, "lr": 0.5, "kv": 4, "gate": "auto", "heads": (4, 2)}, True)
    third = Session("c-3", {"n": 8, "lr": 0.25, "kv": 16}, True)
    (tmp_path / "a-1" / "tb").mkdir(parents=True)
    tensorboard.session_start(tmp_path / "a-1" / "tb", first.hparams, "a-1")
    tensorboard.write_hparams(tmp_path, [first, second, third], METRICS)
    assert declared() == {
        "gate": ["True", "auto"],
        "heads": ["4,2"],
        "kv": ["4", "16", "None"],
        "lr": [0.25, 0.5, 1.0],
    }
    # TensorBoard hides a run whose value has another type than its column.
    hparams = message(tmp_path / "a-1" / "tb", "session_start_info").hparams
    assert hparams["lr"].number_value == 1.0 and hparams["gate"].string_value == "True"
    assert not (tmp_path / "b-2").exists()


def test_a_figure_takes_the_place_of_the_one_before(tmp_path):
    png = tmp_path / "frontier.png"
    for size in (5, 9):
        png.write_bytes(attention_png(np.eye(size))[0])
        tensorboard.image_file(tmp_path / "tb", "frontier", png)
        tensorboard.image_file(tmp_path / "tb", "heads", png)
    reader = EventAccumulator(str(tmp_path / "tb")).Reload()
    for tag in ("frontier", "heads"):
        [event] = reader.Tensors(tag)
        assert event.tensor_proto.string_val[2] == attention_png(np.eye(9))[0]


def test_what_is_no_image_is_refused(tmp_path):
    (tmp_path / "frontier.png").write_text("no")
    with pytest.raises(ValueError, match=r"frontier\.png: not an image"):
        tensorboard.image_file(tmp_path, "frontier", tmp_path / "frontier.png")

"""The records of a run: metrics.jsonl, and TensorBoard's view of it."""

import contextlib
import hashlib
import io
import json
import resource
import threading
import time

import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image
from tensorboard.backend.event_processing.plugin_event_accumulator import EventAccumulator
from tensorboard.util import tensor_util

from mha_jax import events, writer
from mha_jax.picture import attention_png
from mha_jax.writer import RunWriter, WriterError


def open_writer(run_dir, **kwargs):
    return contextlib.closing(RunWriter(run_dir, **kwargs))


def curves(run_dir):
    """{tag: [(step, value)]} of the scalars, as TensorBoard's Python backend reads them."""
    reader = EventAccumulator(str(run_dir / "tb"), size_guidance={"tensors": 0}).Reload()
    return {
        tag: [
            (e.step, tensor_util.make_ndarray(e.tensor_proto).item()) for e in reader.Tensors(tag)
        ]
        for tag in reader.PluginTagToContent("scalars")
    }


def test_a_row_is_one_line_of_sorted_json(tmp_path):
    with open_writer(tmp_path, tensorboard=False) as records:
        records.scalars(3, {"train/loss": 0.5, "a": 2})
        records.scalars(
            4,
            {"a": np.float32(0.1), "b": jnp.int32(7), "nan": np.nan, "up": np.inf, "down": -np.inf},
        )
        assert (tmp_path / "metrics.jsonl").read_text() == (
            '{"a": 2, "step": 3, "train/loss": 0.5}\n'
            '{"a": 0.10000000149011612, "b": 7, "down": "-inf", "nan": "nan", "step": 4, '
            '"up": "inf"}\n'
        )
    assert not (tmp_path / "tb").exists()


def test_a_value_named_step_is_refused(tmp_path):
    with (
        open_writer(tmp_path, tensorboard=False) as records,
        pytest.raises(ValueError, match="'step'"),
    ):
        records.scalars(0, {"step": 1})


def test_flush_returns_the_bytes_on_the_disk(tmp_path):
    with open_writer(tmp_path, tensorboard=True) as records:
        assert records.flush() == 0
        for step in range(10):
            records.scalars(step, {"a": step})
        assert records.flush() == (tmp_path / "metrics.jsonl").stat().st_size
        assert curves(tmp_path) == {"a": [(step, step) for step in range(10)]}


def test_a_resumed_run_keeps_what_it_cuts_off(tmp_path):
    with open_writer(tmp_path, tensorboard=False) as records:
        records.scalars(1, {"a": 1})
        length = records.flush()
        records.scalars(2, {"a": 2})
    for n in (1, 2):
        with open_writer(
            tmp_path, tensorboard=False, records_bytes=length, start_step=1
        ) as records:
            assert (tmp_path / f"metrics.tail-{n}.jsonl").read_text() == '{"a": 2, "step": 2}\n'
            assert (tmp_path / "metrics.jsonl").read_text() == '{"a": 1, "step": 1}\n'
            records.scalars(2, {"a": 2})
    with open_writer(tmp_path, tensorboard=False, records_bytes=2 * length):
        assert not (tmp_path / "metrics.tail-3.jsonl").exists()  # nothing to cut off


@pytest.mark.parametrize("content", [None, b"", b'{"a": 1}\n', b'{"step": 1, "a": 123456}\n\n\n'])
def test_records_that_are_not_those_of_the_checkpoint_are_refused(tmp_path, content):
    path = tmp_path / "metrics.jsonl"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(WriterError, match=r"metrics\.jsonl: .*checkpoint.*restore it") as error:
        RunWriter(tmp_path, tensorboard=False, records_bytes=20)
    assert "\n" not in str(error.value)
    assert (path.read_bytes() if path.exists() else None) == content


def test_other_bytes_than_the_checkpoint_knows_are_refused(tmp_path):
    with open_writer(tmp_path, tensorboard=False) as records:
        records.scalars(1, {"loss": 1.5})
        length, sha256 = records.flush(), records.records_sha256
        records.scalars(2, {"loss": 2.5})
        assert records.records_sha256 != sha256
    path = tmp_path / "metrics.jsonl"
    good = path.read_bytes()
    assert hashlib.sha256(good[:length]).hexdigest() == sha256
    path.write_bytes(good.replace(b"1.5", b"1.6"))
    known = {"records_bytes": length, "records_sha256": sha256}
    with pytest.raises(WriterError, match="bytes are not those that the checkpoint knows"):
        RunWriter(tmp_path, tensorboard=False, **known)
    assert path.read_bytes() == good.replace(b"1.5", b"1.6")  # nothing was cut
    path.write_bytes(good)
    with open_writer(tmp_path, tensorboard=False, **known) as records:
        assert records.records_sha256 == sha256
    assert path.read_bytes() == good[:length]


def test_a_missing_run_directory_is_one_line(tmp_path):
    with pytest.raises(WriterError, match=r"gone/metrics\.jsonl: No such file or directory"):
        RunWriter(tmp_path / "gone", tensorboard=True)
    assert not (tmp_path / "gone").exists()


def test_a_torn_last_line_stays_the_only_damaged_one(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"a": 1, "st')
    with open_writer(tmp_path, tensorboard=False) as records:
        records.scalars(1, {"a": 1})
    assert path.read_bytes() == b'{"a": 1, "st\n{"a": 1, "step": 1}\n'


def test_a_line_that_the_disk_cuts_is_taken_back(tmp_path):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    with open_writer(tmp_path, tensorboard=False) as records:
        records.scalars(1, {"a": 1})
        length = records.flush()
        try:  # as with a full disk, the write call writes a part
            resource.setrlimit(resource.RLIMIT_FSIZE, (length + 5, limits[1]))
            with pytest.raises(WriterError, match=r"metrics\.jsonl: only 5 of 20 bytes"):
                records.scalars(2, {"a": 2})
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert (tmp_path / "metrics.jsonl").stat().st_size == length
        records.scalars(3, {"a": 3})
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [1, 3]


def test_tensorboard_shows_each_step_once_after_a_resume(tmp_path, capfd):
    with open_writer(tmp_path, tensorboard=True, records_bytes=0) as records:
        for step in range(4):
            records.scalars(step, {"train/loss": step})
        records.scalars(3, {"eval/accuracy": np.nan})
        length = records.flush()  # here a checkpoint of step 3 is made
        for step in range(4, 9):
            records.scalars(step, {"train/loss": -1, "lost": 1})
    for _ in range(2):  # the second session ends before it comes as far as the first
        with open_writer(tmp_path, tensorboard=True, records_bytes=length, start_step=3) as records:
            for step in range(4, 6):
                records.scalars(step, {"train/loss": step})
    found = curves(tmp_path)
    assert found["train/loss"] == [(step, step) for step in range(6)]
    assert found["lost"] == []
    [(step, value)] = found["eval/accuracy"]
    assert step == 3 and np.isnan(value)
    with open_writer(tmp_path, tensorboard=True, records_bytes=0) as records:  # afresh
        records.scalars(0, {"train/loss": 7})
    assert curves(tmp_path)["train/loss"] == [(0, 7)]
    assert capfd.readouterr().out == ""  # no word about numbers that are not finite


def test_tensorboard_is_right_when_the_clock_was_set_back(tmp_path, monkeypatch):
    with open_writer(tmp_path, tensorboard=True, records_bytes=0) as records:
        records.scalars(0, {"a": 0})
        length = records.flush()
        records.scalars(1, {"a": 1})
    monkeypatch.setattr(events.time, "time_ns", lambda: 10**18)  # 2001
    with open_writer(tmp_path, tensorboard=True, records_bytes=length, start_step=0) as records:
        records.scalars(1, {"a": 2})
    assert curves(tmp_path) == {"a": [(0, 0), (1, 2)]}


def test_damaged_lines_are_no_points(tmp_path):
    (tmp_path / "metrics.jsonl").write_text(
        '{"step": 5, "a": 1}\n}{\n[]\n{"step": 6, "a": "inf"}\n'
    )
    with open_writer(tmp_path, tensorboard=True, start_step=5):
        pass
    assert curves(tmp_path) == {"a": [(5, 1), (6, np.inf)]}


def test_images_and_texts_reach_tensorboard(tmp_path):
    weights_ts = np.eye(3, dtype=np.float32)
    with open_writer(tmp_path, tensorboard=True) as records:
        records.images(7, {"attention/l0.n0": weights_ts})
        weights_ts[:] = 0  # the writer has its own copy
        records.text("config", "d_model = 8")
    reader = EventAccumulator(str(tmp_path / "tb")).Reload()
    [image] = reader.Tensors("attention/l0.n0")
    width, height, png = tensor_util.make_ndarray(image.tensor_proto)
    assert image.step == 7 and int(width) == int(height) == 3 * 85 + 4
    assert png == attention_png(np.eye(3))[0]
    [text] = reader.Tensors("config")
    assert tensor_util.make_ndarray(text.tensor_proto).tolist() == [b"d_model = 8"]


def test_the_picture_shows_each_weight_as_one_block(tmp_path):
    weights_ts = np.array([[0.0, 0.5, 1.0], [-3.0, 9.0, np.nan]])
    png, width, height = attention_png(weights_ts)
    pixels = np.asarray(Image.open(io.BytesIO(png)).convert("RGB"))
    assert pixels.shape == (height, width, 3) == (2 * 85 + 4, 3 * 85 + 4, 3)
    frame, dark, middle, bright = (225, 225, 225), (68, 1, 84), (33, 145, 140), (253, 231, 37)
    inner = pixels[2:-2, 2:-2]
    for t, row in enumerate([(dark, middle, bright), (dark, bright, frame)]):
        for s, colour in enumerate(row):
            assert (inner[t * 85 : t * 85 + 85, s * 85 : s * 85 + 85] == colour).all()
    outside = np.ones(pixels.shape[:2], bool)
    outside[2:-2, 2:-2] = False
    assert (pixels[outside] == frame).all()


def test_a_large_picture_is_not_enlarged():
    _, width, height = attention_png(np.zeros((300, 200)))
    assert (width, height) == (204, 304)


@pytest.mark.parametrize("shape", [(3,), (0, 3), (2, 3, 3)])
def test_an_image_has_two_axes(tmp_path, shape):
    with (
        open_writer(tmp_path, tensorboard=True) as records,
        pytest.raises(ValueError, match=r"attention: weights must be a \[t, s\] array"),
    ):
        records.images(0, {"attention": np.zeros(shape)})


def test_the_caller_does_not_wait_for_tensorboard(tmp_path, monkeypatch):
    drawing, go_on = threading.Event(), threading.Event()

    def slow(weights_ts):
        drawing.set()
        assert go_on.wait(10)
        return attention_png(weights_ts)

    monkeypatch.setattr(writer, "attention_png", slow)
    with open_writer(tmp_path, tensorboard=True) as records:
        records.images(0, {"attention": np.ones((2, 2))})
        assert drawing.wait(10)
        records.scalars(1, {"a": 1})
        assert (tmp_path / "metrics.jsonl").read_text() == '{"a": 1, "step": 1}\n'
        go_on.set()
        records.flush()
        assert curves(tmp_path) == {"a": [(1, 1)]}


def test_what_fails_on_the_thread_is_raised_by_the_next_call(tmp_path, monkeypatch):
    def broken(weights_ts):
        raise OSError("no room")

    monkeypatch.setattr(writer, "attention_png", broken)
    with open_writer(tmp_path, tensorboard=True) as records:
        records.images(0, {"attention": np.ones((2, 2))})
        with pytest.raises(WriterError, match="tb: no room"):
            records.flush()
        records.scalars(1, {"a": 1})  # told once; the rest goes on
        assert records.flush() == 20
        records.images(0, {"attention": np.ones((2, 2))})
        with pytest.raises(WriterError, match="no room"):
            for step in range(2, 1000):
                records.scalars(step, {"a": 1})
                time.sleep(0.01)
        records.images(0, {"attention": np.ones((2, 2))})
        with pytest.raises(WriterError, match="no room"):
            records.close()
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == list(range(1, len(lines) + 1))


def test_event_files_that_cannot_be_made_leave_the_record_whole(tmp_path):
    (tmp_path / "tb").write_text("in the way")
    records = RunWriter(tmp_path, tensorboard=True)
    with pytest.raises(WriterError, match="tb"):
        records.flush()
    for call in (lambda: records.scalars(1, {"a": 1}), records.close):
        with contextlib.suppress(WriterError):  # by the one or the other: the thread takes its time
            call()
    assert (tmp_path / "metrics.jsonl").read_text() == '{"a": 1, "step": 1}\n'

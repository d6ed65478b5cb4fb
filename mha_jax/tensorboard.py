"""TensorBoard's table of a sweep (the HParams dashboard), and figures beside it.

Three kinds of event file make the table, each with nothing else in it:

    <sweep>/tb/...sweep-<digest>         which hyperparameters vary, over which values, and which
    metrics to show <sweep>/<run>/tb/...start-<digest>   the values of one run
    <sweep>/<run>/tb/...end-success      or end-failure, when the run is over

A metric of the table is the last point of the scalar of that name in the run's own event files.
TensorBoard believes the first message it finds and never a later one, so a file that no longer
holds is removed before its successor is written, and one that still holds is left alone: everything
here may be called again at any time.

Point TensorBoard at the sweep's directory; above it, it shows the table of only one sweep.
"""

from __future__ import annotations

import dataclasses
import hashlib
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mha_jax.events import EventFile


@dataclasses.dataclass(frozen=True)
class Session:
    """One run, as the table shows it."""

    directory: str  # of the run, below the sweep's
    hparams: Mapping[str, Any]  # bool, int, float, str, None or a sequence by name
    ok: bool | None  # whether it ended well; None: not over


def write_hparams(root: str | Path, sessions: Sequence[Session], metrics: Sequence[str]) -> None:
    """Makes or renews the table of a sweep.

    It declares the hyperparameters that differ between the runs (all of them if none does), each
    with its values. Numbers are numbers if at least one value is a float; integers alone are
    written as texts, because TensorBoard would show 4 heads as 4.0000. Runs without a `tb`
    directory are declared and otherwise left alone.

    Args:
      root: the sweep's directory.
      sessions: every run of the directory: TensorBoard hides a run with a value that is not
        declared.
      metrics: tags of scalars that the runs write, such as "test/accuracy".

    Raises:
      OSError: the disk refused it.
    """
    from tensorboard.plugins.hparams import api_pb2

    names = sorted({name for session in sessions for name in session.hparams})
    columns = {
        name: _column([s.hparams[name] for s in sessions if name in s.hparams]) for name in names
    }
    rows: list[dict[str, Any]] = [
        {name: columns[name](value) for name, value in session.hparams.items()}
        for session in sessions
    ]
    swept = [name for name in names if len({row.get(name) for row in rows}) > 1] or names
    infos = []
    for name in swept:
        values = sorted({row[name] for row in rows if name in row}, key=_numerically)
        kinds = {bool: api_pb2.DATA_TYPE_BOOL, float: api_pb2.DATA_TYPE_FLOAT64}
        info = api_pb2.HParamInfo(
            name=name, type=kinds.get(type(values[0]), api_pb2.DATA_TYPE_STRING)
        )
        info.domain_discrete.extend(values)
        infos.append(info)
    experiment = api_pb2.Experiment(
        hparam_infos=infos,
        metric_infos=[
            api_pb2.MetricInfo(name=api_pb2.MetricName(tag=tag), display_name=tag)
            for tag in metrics
        ],
    )
    _publish(Path(root) / "tb", "sweep", _digest(experiment), "experiment", experiment)
    for session, row in zip(sessions, rows, strict=True):
        directory = Path(root) / session.directory / "tb"
        if directory.is_dir():
            _start(directory, row, session.directory)
            if session.ok is not None:
                _end(directory, session.ok)


def session_start(tb_dir: str | Path, hparams: Mapping[str, Any], trial_id: str) -> None:
    """Announces a run: its values, and that it is not over.

    Args:
      tb_dir: where the run's event files go.
      hparams: as in `Session`.
      trial_id: name of the run in the table, different for every run.

    Raises:
      OSError: the disk refused it.
    """
    _remove(Path(tb_dir), "end")
    _start(
        Path(tb_dir), {name: _column([value])(value) for name, value in hparams.items()}, trial_id
    )


def session_end(tb_dir: str | Path, ok: bool) -> None:
    """Announces that a run is over: status success or failure.

    Raises:
      OSError: the disk refused it.
    """
    _end(Path(tb_dir), ok)


def image_file(tb_dir: str | Path, tag: str, png_path: str | Path, step: int = 0) -> None:
    """Puts a PNG file among TensorBoard's images, in place of the one that had the tag before.

    Raises:
      OSError: the disk refused it, or there is no such file.
      ValueError: the file is no image.
    """
    from PIL import Image, UnidentifiedImageError

    directory, png = Path(tb_dir), Path(png_path).read_bytes()
    try:
        with Image.open(png_path) as image:
            width, height = image.size
    except UnidentifiedImageError:
        raise ValueError(f"{png_path}: not an image") from None
    role = f"image-{hashlib.sha256(tag.encode()).hexdigest()[:8]}"
    key = hashlib.sha256(png + str(step).encode()).hexdigest()[:8]
    if _stands(directory, role, key):
        return
    events = EventFile(directory, f"{role}-{key}")
    events.image(step, tag, png, width, height)
    events.close()


def _start(directory: Path, row: Mapping[str, Any], trial_id: str) -> None:
    from tensorboard.plugins.hparams import plugin_data_pb2

    start = plugin_data_pb2.SessionStartInfo(group_name=trial_id)
    for name, value in row.items():
        field = {bool: "bool_value", float: "number_value"}.get(type(value), "string_value")
        setattr(start.hparams[name], field, value)
    key = _digest(start)
    start.start_time_secs = time.time()
    _publish(directory, "start", key, "session_start_info", start)


def _end(directory: Path, ok: bool) -> None:
    from tensorboard.plugins.hparams import api_pb2, plugin_data_pb2

    end = plugin_data_pb2.SessionEndInfo(
        status=api_pb2.STATUS_SUCCESS if ok else api_pb2.STATUS_FAILURE, end_time_secs=time.time()
    )
    _publish(directory, "end", "success" if ok else "failure", "session_end_info", end)


def _publish(directory: Path, role: str, key: str, field: str, message: Any) -> None:
    """An event file with one HParams message, unless the same message stands already.

    Args:
      directory: the event file's.
      role: "sweep", "start" or "end"; only one file of a role may stand.
      key: tells messages of a role apart.
      field: of `HParamsPluginData`, and the message's tag.
      message: the field's value.
    """
    from tensorboard.plugins.hparams import metadata, plugin_data_pb2

    if _stands(directory, role, key):
        return
    data = plugin_data_pb2.HParamsPluginData(**{field: message})
    # TensorBoard (without its data server) leaves a file for good once it has read a later one:
    # what is written before the run's own event file must also come first by name.
    events = EventFile(directory, f"{role}-{key}", first=role != "end")
    value = {
        "tag": f"_hparams_/{field}",
        "metadata": metadata.create_summary_metadata(data),
        "tensor": metadata.NULL_TENSOR,
    }
    events.summary(0, value)
    events.close()


def _stands(directory: Path, role: str, key: str) -> bool:
    """Whether the file of a role is there with this key; if not, removes that role's files."""
    there = list(_files(directory, role))
    if len(there) == 1 and there[0].name.endswith(f".{role}-{key}"):
        return True
    _remove(directory, role)
    return False


def _remove(directory: Path, role: str) -> None:
    for path in _files(directory, role):
        path.unlink()


def _files(directory: Path, role: str) -> Iterable[Path]:
    return directory.glob(f"events.out.tfevents.*.{role}-*")


def _digest(message: Any) -> str:
    return hashlib.sha256(message.SerializeToString(deterministic=True)).hexdigest()[:8]


def _column(values: Sequence[Any]) -> Any:
    """How the values of a hyperparameter are written: all as bool, float, or text."""
    if all(isinstance(value, bool) for value in values):
        return bool
    numbers = all(isinstance(v, int | float) and not isinstance(v, bool) for v in values)
    if numbers and any(isinstance(value, float) for value in values):
        return float
    return _text


def _text(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _numerically(value: Any) -> tuple[bool, Any]:
    """Sorts texts that are integers by their number, before other texts."""
    if isinstance(value, str):
        number = value.lstrip("-").isdecimal()
        return (not number, int(value) if number else value)
    return (False, value)

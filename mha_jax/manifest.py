"""`manifest.json` of a checkpoint: what was saved, and how to tell that it is still the same."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

from mha_jax.files import plain, sync_directory, write_json_atomic
from mha_jax.packing import Unusable

_STEP = re.compile(r"0|[1-9]\d*")
FORMAT = 1  # of the manifest and of the packing


def read(home: Path) -> dict[str, Any]:
    """The manifest of the checkpoint in `home`, as it was given to `write`.

    Raises:
      Unusable: it is missing, not what was written, or of another format.
    """
    try:
        manifest = json.loads((home / "manifest.json").read_bytes())
        told = manifest.pop("sha256")
    except FileNotFoundError:
        raise Unusable("manifest.json is missing") from None
    except OSError as error:
        raise Unusable(f"manifest.json: {error.strerror}") from None
    except (ValueError, KeyError, AttributeError, TypeError):
        raise Unusable("manifest.json is damaged") from None
    if told != _own_digest(manifest):
        raise Unusable("manifest.json is damaged: its SHA-256 differs")
    if manifest["format"] != FORMAT:
        raise Unusable(f"it has format {manifest['format']}, this code reads {FORMAT}")
    return manifest


def write(home: Path, body: dict[str, Any]) -> None:
    """Puts the manifest of a checkpoint in place: the old one stands until the new one does.

    Raises:
      OSError: the disk refused it.
    """
    body = {**body, "format": FORMAT}
    write_json_atomic(home / "manifest.json", {**body, "sha256": _own_digest(body)})


def _own_digest(manifest: dict[str, Any]) -> str:
    text = json.dumps(plain(manifest), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def digests(data: Path, *, sync: bool = False) -> dict[str, list[Any]]:
    """Size and SHA-256 of every file below `data`; with `sync`, all is forced to the disk."""
    found: dict[str, list[Any]] = {}
    for folder, _, names in os.walk(data):
        for name in names:
            path = Path(folder) / name
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
                if sync:
                    os.fsync(file.fileno())
                found[path.relative_to(data).as_posix()] = [file.tell(), digest]
        if sync:
            sync_directory(Path(folder))
    return found


def verify(data: Path, files: dict[str, list[Any]]) -> None:
    """Compares the files below `data` with the manifest's.

    Raises:
      Unusable: one is missing or another.
    """
    try:
        found = digests(data)
    except OSError as error:
        raise Unusable(f"{error.filename}: {error.strerror}") from None
    for name, (size, digest) in files.items():
        if name not in found:
            raise Unusable(f"{data.name}/{name} is missing")
        if found[name][0] != size:
            raise Unusable(f"{data.name}/{name} has {found[name][0]} bytes instead of {size}")
        if found[name][1] != digest:
            raise Unusable(f"{data.name}/{name} is damaged: its SHA-256 differs")


def tidy(home: Path) -> None:
    """Removes what the manifest does not name; without a whole manifest, nothing."""
    with contextlib.suppress(Unusable):
        stays = ("manifest.json", read(home)["data"])
        for path in home.iterdir():
            if path.name not in stays:
                shutil.rmtree(path) if path.is_dir() else path.unlink()


def next_number(home: Path) -> int:
    """One above every `data-<n>` in a directory, unfinished ones of orbax included."""
    numbers = [re.match(r"data-(\d+)", path.name) for path in home.iterdir()]
    return 1 + max((int(number[1]) for number in numbers if number), default=0)


def steps(root: Path) -> list[int]:
    """The steps of all checkpoints in a directory, damaged ones included, ascending."""
    if not root.is_dir():
        return []
    return sorted(int(p.name) for p in root.iterdir() if _STEP.fullmatch(p.name) and p.is_dir())


def clean(root: Path) -> None:
    """Removes what unfinished saves and removals left."""
    for rubbish in root.glob("*.tmp"):
        shutil.rmtree(rubbish)
    for home in root.glob("[0-9]*"):
        tidy(home)

"""The text behind the `text` task: what is read, what a document is, which ones are held out.

A corpus is a tuple of named UTF-8 documents, and a split is some of them joined by newlines:

    path      documents
    pydoc     topics of CPython's reference text (`pydoc_data.topics`)
    stdlib    .py files of the standard library, without its tests
    a folder  files with the suffix, in it and its subfolders
    a file    blocks of about 4 KiB that end at a blank line

Blocks of one file are neighbours in its text, so holding them out is weaker than holding out
files: a person named in a training block may appear in a test block.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

HELD_OUT = 0.1  # share of the bytes that the test split and the validation split get, at least
LARGEST = 0.25  # largest share of one document; leaves training 1 - 2 * (HELD_OUT + LARGEST) = 30 %
MAX_BYTES = 2**31 - 2**20  # places in a corpus are int32

_TEST_FOLDERS = {"test", "tests", "idle_test"}
_FOREIGN_FOLDERS = {"site-packages", "dist-packages", "__pycache__"}
_PARAGRAPH = 60  # characters: a shorter one ("For example:") may stand in several topics


class Document(NamedTuple):
    """A piece of text that is held out as a whole."""

    name: str
    data: bytes


class CorpusError(Exception):
    """The corpus cannot be used; `rule` is what it breaks and `fix` the way out."""

    def __init__(self, rule: str, fix: str):
        super().__init__(f"{rule}; {fix}")
        self.rule = rule
        self.fix = fix


@functools.lru_cache(maxsize=4)
def documents(path: str, suffix: str) -> tuple[Document, ...]:
    """The documents of a corpus, read once a process: by name, blocks in the order of the text.

    Empty ones are left out.

    Raises:
      CorpusError: nothing there, not readable, not UTF-8, empty or too large.
    """
    try:
        if path == "pydoc":
            found = _topics()
        elif path == "stdlib":
            found = _files(Path(sysconfig.get_paths()["stdlib"]), ".py", _is_library)
        elif path and Path(path).is_dir():
            found = _files(Path(path), suffix, lambda parts: True)
        else:
            found = _blocks(_one_file(path))
    except (OSError, ValueError) as error:
        # ValueError: a zero byte or half a character in the path.
        raise CorpusError(
            f"cannot be read ({error})", "name a file or folder that can be"
        ) from None
    found = [document for document in found if document.data.strip()]
    if not found:
        raise CorpusError("holds no text", "name a file or a folder with text in it")
    return tuple(found)


def digest(path: str, suffix: str) -> str:
    """SHA-256, as hex, over the names and the bytes of the documents."""
    sha = hashlib.sha256()
    for name, data in documents(path, suffix):
        # Lengths first: no two lists of documents then feed the hash the same bytes.
        sha.update(f"{len(name.encode())}:{len(data)}:{name}".encode())
        sha.update(data)
    return sha.hexdigest()


@functools.lru_cache(maxsize=16)
def split(path: str, suffix: str, seed: int, which: str) -> bytes:
    """The documents of one split, joined by newlines."""
    return b"\n".join(document.data for document in held_out(path, suffix, seed, which))


def held_out(path: str, suffix: str, seed: int, which: str) -> list[Document]:
    """The documents of one split, in the order of the corpus.

    Documents are put into the order of the SHA-256 of the seed and their name. The first go to
    test until it holds a tenth of the bytes, the next to validation likewise, and the rest is
    train. The split depends on nothing else.
    """
    found = documents(path, suffix)
    total = sum(len(document.data) for document in found)
    order = sorted(found, key=lambda d: hashlib.sha256(f"{seed}:{d.name}".encode()).digest())
    names: dict[str, set[str]] = {"test": set(), "validation": set(), "train": set()}
    place, held = "test", 0
    for document in order:
        names[place].add(document.name)
        held += len(document.data)
        if place != "train" and held >= HELD_OUT * total:
            place, held = ("validation" if place == "test" else "train"), 0
    return [document for document in found if document.name in names[which]]


def too_small(path: str, suffix: str, window: int) -> Iterator[tuple[str, str]]:
    """(rule, fix) where some seed could leave a split without one window of `window` bytes."""
    found = documents(path, suffix)
    total = sum(len(document.data) for document in found)
    largest = max(found, key=lambda document: len(document.data))
    if int(HELD_OUT * total) < window:
        yield (
            f"has {total} bytes, copies counted once, and a tenth must hold a window of {window}",
            f"use a text of {int(window / HELD_OUT) + 1} bytes or more, or lower length",
        )
    elif len(largest.data) > LARGEST * total:
        yield (
            f"has more than a quarter of its bytes in {largest.name}, and files are held out whole",
            "join the files into one, which is held out by blocks, or cut the large ones",
        )


def _topics() -> list[Document]:
    """Reference topics; a paragraph that stands in several is kept in the longest one only.

    Topics contain each other ("while" stands inside "compound"): a fifth of the text appears
    twice, and would be trained on and tested.
    """
    try:
        from pydoc_data.topics import topics
    except ImportError:
        raise CorpusError(
            "names CPython's reference text, which this Python lacks", "use a file or a folder"
        ) from None
    seen: set[str] = set()
    found = []
    for name, text in sorted(topics.items(), key=lambda item: (-len(item[1]), item[0])):
        own = {paragraph: " ".join(paragraph.split()) for paragraph in re.split(r"\n\s*\n", text)}
        kept = [paragraph for paragraph, words in own.items() if words not in seen]
        seen.update(words for words in own.values() if len(words) >= _PARAGRAPH)
        found.append(Document(name, "\n\n".join(kept).encode()))
    return sorted(found)


def _is_library(parts: tuple[str, ...]) -> bool:
    """Whether a file of the library counts: no tests, nothing foreign, no machine's record."""
    folders = _TEST_FOLDERS | _FOREIGN_FOLDERS
    return not folders.intersection(parts) and not parts[-1].startswith("_sysconfigdata")


def _files(root: Path, suffix: str, counts: Callable[[tuple[str, ...]], bool]) -> list[Document]:
    """The files below `root` whose name ends with `suffix` and whose relative parts count.

    Byte-equal copies of an earlier file are left out: a copy could be trained on and tested.
    """

    def stop(error: OSError) -> None:
        raise error

    paths = [
        Path(folder, name)
        for folder, _, names in os.walk(root, onerror=stop)
        for name in names
        if name.endswith(suffix)
    ]
    found: dict[bytes, Document] = {}
    size = 0
    for path in sorted(paths):
        relative = path.relative_to(root)
        if counts(relative.parts):
            # A file name need not be UTF-8; a document's name is hashed and printed.
            name = relative.as_posix().encode(errors="backslashreplace").decode()
            data = _read(path, f"holds {name}, which ", MAX_BYTES - size)
            size += len(data)
            found.setdefault(data, Document(name, data))
    if not found:
        raise CorpusError(f"is a folder without {suffix} files", "name another, or set suffix")
    return list(found.values())


def _one_file(path: str) -> bytes:
    place = Path(path)
    if not path or not place.exists():
        raise CorpusError("does not exist", "name a UTF-8 file, a folder of them, pydoc or stdlib")
    return _read(place, "", MAX_BYTES)


def _read(path: Path, which: str, room: int) -> bytes:
    """The bytes of a file that must be UTF-8 and fit in `room`."""
    if path.exists() and not path.is_file():
        raise CorpusError(f"{which}is neither a file nor a folder", "name or keep text files only")
    if path.stat().st_size > room:
        raise CorpusError(f"has more than {MAX_BYTES} bytes", "use a smaller text")
    data = path.read_bytes()
    try:
        data.decode()
    except UnicodeDecodeError as error:
        raise CorpusError(
            f"{which}is not UTF-8 at byte {error.start}", "convert it to UTF-8"
        ) from None
    return data


def _blocks(data: bytes) -> list[Document]:
    """Cut a text at the first blank line after a sixteenth of it or 4 KiB, whichever is less.

    Without a blank line before twice that size the cut is there.
    """
    size = max(1, min(4096, len(data) // 16))
    blank = re.compile(rb"\n[ \t\r]*\n")
    found: list[Document] = []
    start = 0
    while start < len(data):
        gap = blank.search(data, start + size, start + 2 * size)
        stop = gap.end() if gap else start + 2 * size
        found.append(Document(f"block {len(found):07d}", data[start:stop]))
        start = stop
    return found

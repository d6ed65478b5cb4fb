"""`text`: what is drawn, what is held out, and what a corpus must be."""

import os
import random
import re
from pathlib import Path

import jax
import numpy as np
import pytest

from mha_jax.tasks import SPLITS, corpus, text

sample = jax.jit(text.sample, static_argnums=(2, 3))


def folder(root, n_files=10, size=400):
    """Files of different random words, so that no two windows are alike."""
    generator = random.Random(0)
    for i in range(n_files):
        words = "".join(generator.choices("abcdefgh \n", k=size))
        place = root / ("sub" if i % 2 else ".") / f"{i}.txt"
        place.parent.mkdir(exist_ok=True)
        place.write_text(f"file {i} {words}")
    return root


def rules(path, length=16, suffix=".txt"):
    return list(text.problems(text.Config(str(path), length, suffix)))


@pytest.mark.parametrize("length", [1, 16, 40])
@pytest.mark.parametrize("split", SPLITS)
def test_windows_and_labels_come_from_the_split(tmp_path, length, split):
    cfg = text.Config(str(folder(tmp_path)), length, ".txt")
    assert list(text.problems(cfg)) == []
    constants = text.constants(cfg, 3, split)
    data = constants["corpus"].tobytes().decode()
    batch = jax.tree.map(np.asarray, sample(jax.random.key(7), constants, cfg, 24))
    for b in range(24):
        window = bytes([*batch.inputs[b].tolist(), int(batch.targets[b, -1, 0])]).decode()
        assert window in data
        assert batch.targets[b, :, 0].tolist() == list(window.encode()[1:])
        assert batch.pointers["previous"][b].tolist() == [-1, *range(length - 1)]
        assert batch.pointers["first"][b].tolist() == [-1] + [0] * (length - 1)
    assert (batch.loss_mask == 1).all()


def test_every_place_is_drawn(tmp_path):
    data = bytes(range(65, 91))
    cfg = text.Config("unused", 3, ".txt")
    batch = sample(jax.random.key(8), {"corpus": np.frombuffer(data, np.uint8)}, cfg, 2000)
    first = np.bincount(np.asarray(batch.inputs)[:, 0] - 65)
    # The last window starts at the fourth byte from the end; 87 draws a place, five deviations.
    assert len(first) == 26 - 3
    np.testing.assert_allclose(first, 2000 / 23, atol=5 * (2000 / 23) ** 0.5)


def test_documents_are_held_out_whole(tmp_path):
    path = str(folder(tmp_path, 30))
    files = sorted(tmp_path.rglob("*.txt"))
    parts = {split: corpus.split(path, ".txt", 1, split) for split in SPLITS}
    for file in files:
        assert sum(file.read_bytes() in part for part in parts.values()) == 1
    total = sum(file.stat().st_size for file in files)
    assert sum(map(len, parts.values())) == total + len(files) - 3  # the joining newlines
    assert 0.1 * total <= len(parts["test"]) <= 0.15 * total
    assert 0.1 * total <= len(parts["validation"]) <= 0.15 * total
    assert corpus.split(path, ".txt", 2, "test") != parts["test"]


def test_a_corpus_without_problems_fills_every_split_for_every_seed(tmp_path):
    generator = random.Random(1)
    accepted = 0
    for trial in range(60):
        root = tmp_path / str(trial)
        root.mkdir()
        longest = generator.choice([3, 60])
        for i in range(generator.randint(2, 9)):
            (root / f"{i}.txt").write_text(f"{i}" + "x" * generator.randint(1, longest))
        if not rules(root, length=5):
            accepted += 1
            for seed in range(100):
                parts = [corpus.split(str(root), ".txt", seed, split) for split in SPLITS]
                assert min(map(len, parts)) >= 6
    assert accepted > 5


@pytest.mark.parametrize("line", ["words\n\n", "word ", "wörd\r\n\r\n", "\n"])
@pytest.mark.parametrize("times", [7, 100, 9000])
def test_a_file_is_cut_into_blocks_that_add_up(tmp_path, line, times):
    path = tmp_path / "novel.txt"
    data = ("start " + line * times + "end").encode()
    path.write_bytes(data)
    found = corpus.documents(str(path), ".txt")
    assert data.startswith(found[0].data)
    joined = b"".join(document.data for document in found)
    assert joined == data or not line.strip()  # blank blocks are left out
    if line.strip():
        assert max(len(document.data) for document in found) <= len(data) / 8
    if times == 9000 and line == "words\n\n":
        assert all(document.data.endswith(b"\n\n") for document in found[:-1])
        # A sixteenth of the text, and on to the next blank line.
        assert len(data) // 16 <= len(found[0].data) <= len(data) // 16 + 8


def test_no_topic_paragraph_stands_in_two_splits():
    paragraphs = [
        {
            words
            for paragraph in re.split(r"\n\s*\n", corpus.split("pydoc", ".txt", 0, split).decode())
            if len(words := " ".join(paragraph.split())) >= 60
        }
        for split in SPLITS
    ]
    assert min(map(len, paragraphs)) > 50
    for i in range(3):
        for j in range(i):
            assert not paragraphs[i] & paragraphs[j]


def test_topics_lose_only_what_is_said_twice():
    from pydoc_data.topics import topics

    kept = "".join(document.data.decode() for document in corpus.documents("pydoc", ".txt"))
    for paragraph in re.split(r"\n\s*\n", "\n\n".join(topics.values())):
        assert paragraph in kept or " ".join(paragraph.split()) in " ".join(kept.split())


def test_library_sources():
    names = [document.name for document in corpus.documents("stdlib", ".txt")]
    assert {"argparse.py", "json/decoder.py"} <= set(names)
    assert all(name.endswith(".py") for name in names)
    parts = {part for name in names for part in Path(name).parts[:-1]}
    assert not parts & {"test", "tests", "site-packages"}
    assert not any("_sysconfigdata" in name for name in names)
    assert rules("stdlib", 256) == []


def test_copies_and_blank_files_do_not_count(tmp_path):
    folder(tmp_path)
    before = corpus.documents(str(tmp_path), ".txt")
    for name, data in [("copy.txt", (tmp_path / "0.txt").read_bytes()), ("blank.txt", b" \n")]:
        (tmp_path / name).write_bytes(data)
    corpus.documents.cache_clear()
    assert corpus.documents(str(tmp_path), ".txt") == before


def test_data_hash_is_of_names_and_bytes(tmp_path):
    def digest(name):
        return text.data_hash(text.Config(str(tmp_path / name), 16, ".txt"))

    for name in ("a", "same", "renamed", "edited"):
        (tmp_path / name).mkdir()
        folder(tmp_path / name)
    (tmp_path / "renamed" / "0.txt").rename(tmp_path / "renamed" / "00.txt")  # same order
    data = (tmp_path / "edited" / "0.txt").read_bytes()
    (tmp_path / "edited" / "0.txt").write_bytes(data[:-1] + b"!")
    assert len(digest("a")) == 64
    assert digest("a") == digest("same")
    assert len({digest(name) for name in ("a", "renamed", "edited")}) == 3


def test_what_is_wrong_with_a_path_is_said(tmp_path, monkeypatch):
    for name, data in {
        "empty.txt": b"",
        "blank.txt": b"\n \n" * 500,
        "short.txt": b"a short text",
        "latin.txt": b"x" * 500 + "é".encode("latin-1") + b"x" * 500,
    }.items():
        (tmp_path / name).write_bytes(data)
    os.mkfifo(tmp_path / "pipe")
    for name in ("good", "none", "dangling", "binary", "few"):
        (tmp_path / name).mkdir()
    (tmp_path / "dangling" / "a.txt").symlink_to(tmp_path / "nowhere")
    (tmp_path / "binary" / "b.txt").write_bytes(b"abc\xff")
    for i in range(3):
        (tmp_path / "few" / f"{i}.txt").write_text(f"{i}" * 500)
    for name, said in {
        "missing": "does not exist",
        "a\0b": "does not exist|cannot be read",
        "\udcff": "does not exist|cannot be read",
        "x" * 5000: "cannot be read",
        "empty.txt": "no text",
        "blank.txt": "no text",
        "short.txt": "has 12 bytes",
        "latin.txt": "not UTF-8 at byte 500",
        "pipe": "neither a file nor a folder",
        "none": "without .txt files",
        "dangling": "cannot be read.*a.txt",
        "binary": "b.txt.*not UTF-8 at byte 3",
        "few": "more than a quarter",
    }.items():
        ((field, rule, fix),) = rules(f"{tmp_path}/{name}")
        assert field == "path"
        assert re.search(said, rule), (name, rule)
        assert fix

    ((_, rule, _),) = rules("")
    assert rule == "does not exist"

    def refuse(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "read_bytes", refuse)
    ((field, rule, _),) = rules(folder(tmp_path / "good"))
    assert field == "path"
    assert "Permission denied" in rule


def test_a_corpus_too_large_for_its_index_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(corpus, "MAX_BYTES", 1000)
    ((field, rule, _),) = rules(folder(tmp_path))
    assert field == "path"
    assert "more than 1000 bytes" in rule


@pytest.mark.parametrize("suffix", ["", "txt", ".", "..", "../outside", ".a/b", ".txt\n"])
def test_suffix_is_a_file_ending(suffix):
    assert [field for field, _, _ in rules("pydoc", suffix=suffix)] == ["suffix"]


def test_spec():
    spec = text.spec(text.Config("pydoc", 128, ".txt"))
    assert (spec.length, spec.input_sizes, spec.output_size) == (128, (256,), 256)
    assert (spec.metric, spec.direction, spec.chance, spec.solved_at) == (
        "bits_per_byte",
        "min",
        8.0,
        None,
    )
    assert [spec.vocab[byte] for byte in (65, 10, 200)] == ["A", "\\n", "\\xc8"]


def test_a_corpus_that_has_gone_is_named(tmp_path):
    cfg = text.Config(path=str(tmp_path / "gone"), length=8, suffix=".txt")
    with pytest.raises(corpus.CorpusError, match="gone.* does not exist"):
        text.constants(cfg, 0, "train")


@pytest.mark.parametrize("length", [7, 16])
def test_documents_hold_every_byte_of_the_test_split_once(tmp_path, length):
    cfg = text.Config(folder(tmp_path), length, ".txt")
    found = text.documents(cfg, 3)
    held_out = {d.name: d.data for d in corpus.held_out(cfg.path, cfg.suffix, 3, "test")}
    assert set(found.names) == set(held_out)
    assert b"\n".join(held_out[name] for name in found.names) == corpus.split(
        cfg.path, cfg.suffix, 3, "test"
    )
    for i, name in enumerate(found.names):
        read, asked = bytearray(), bytearray()
        for w in np.flatnonzero(found.index == i):
            mask = found.loss_mask[w, :, 0] == 1
            read += bytes(found.inputs[w][mask].tolist())
            asked += bytes(found.targets[w, mask, 0].tolist())
        assert (bytes(read), bytes(asked)) == (held_out[name][:-1], held_out[name][1:])

"""Text to tokens to batches: nothing lost, nothing twice, the same batch for the same step."""

from __future__ import annotations

import functools
import io
import itertools
import operator
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from traindoctor.errors import CheckpointError, DataError
from traindoctor.lm import data
from traindoctor.lm.config import DataConfig
from traindoctor.lm.data import (
    Batches,
    augment,
    is_prepared,
    load_corpus,
    prepare,
    shuffled,
    validation_starts,
)
from traindoctor.lm.texts import find_files, read_stretches
from traindoctor.lm.tokenizer import load_tokenizer


def made(tmp_path: Path, text: str, *, block: int = 16, **changes: object) -> data.Corpus:
    file = tmp_path / "text.txt"
    tmp_path.mkdir(exist_ok=True)
    file.write_text(text, encoding="utf-8", newline="")
    config = DataConfig(data=(str(file),), **changes)
    told: list[tuple[str, float]] = []
    prepare(config, tmp_path / "run", block=block, seed=1, progress=lambda *a: told.append(a))
    assert told[-1] == ("tokenising", pytest.approx(1.0))
    return load_corpus(tmp_path / "run", 1 << 16)


def test_each_token_is_in_one_part_and_none_is_lost(tmp_path: Path) -> None:
    lines = [f"line {i} has some words\n" for i in range(500)]
    corpus = made(tmp_path, "".join(lines))
    tokenizer = load_tokenizer(tmp_path / "run" / "tokenizer.json")
    train, val = (tokenizer.decode(part) for part in (corpus.train, corpus.val))
    # Cut at line ends: every line is whole in exactly one of the parts.
    assert sorted((train + val).splitlines(keepends=True)) == sorted(lines)
    assert 0.05 < len(val) / len(train + val) < 0.15
    # From all over the text, not its end alone.
    assert len({int(line.split()[1]) // 100 for line in val.splitlines()}) > 3


@pytest.mark.parametrize("kind", ["word", "bpe"])
def test_other_tokenizers_and_the_share_of_unknown_words(tmp_path: Path, kind: str) -> None:
    text = "".join(f"common words and rare{i}\n" for i in range(300))
    corpus = made(tmp_path, text, tokenizer=kind, vocab_size=300)
    assert len(corpus.train) == corpus.facts["train"]
    assert (corpus.facts["unknown_share"] > 0) == (kind == "word")


def test_tokens_lie_on_disk_not_in_memory(tmp_path: Path) -> None:
    corpus = made(tmp_path, "abcdefgh\n" * 500)
    assert isinstance(corpus.train, np.memmap)
    assert corpus.train.dtype == np.uint16


def test_text_is_read_in_bounded_stretches(tmp_path: Path) -> None:
    file = tmp_path / "one-line.txt"
    file.write_text("x" * 1000 + "\n" + "y" * 10)
    stretches = list(read_stretches([file], 100))
    assert "".join(stretches) == file.read_text()
    assert max(map(len, stretches)) <= 200


def test_carriage_returns_survive(tmp_path: Path) -> None:
    corpus = made(tmp_path, "a\r\nb\r\n" * 50, val_fraction=0.0)
    tokenizer = load_tokenizer(tmp_path / "run" / "tokenizer.json")
    assert tokenizer.decode(corpus.train) == "a\r\nb\r\n" * 50


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty"),
        (b"text\x00more" * 50, "binary file"),
        (b"\xe9t\xe9 et hiver" * 50, "not UTF-8 text"),
        (b"too short", "one block needs 17"),
    ],
)
def test_bad_files_are_one_sentence(tmp_path: Path, content: bytes, words: str) -> None:
    file = tmp_path / "bad.txt"
    file.write_bytes(content)
    with pytest.raises(DataError, match=words):
        prepare(
            DataConfig(data=(str(file),)),
            tmp_path / "run",
            block=16,
            seed=1,
            progress=lambda *_: None,
        )
    assert not is_prepared(tmp_path / "run")


def test_what_the_first_bytes_show_is_told_before_anything_is_made(tmp_path: Path) -> None:
    (tmp_path / "image").write_bytes(b"\x89PNG\x00\x01")
    (tmp_path / "old.txt").write_bytes("café ".encode("latin-1") * 99)
    with pytest.raises(DataError, match="image is a binary file"):
        find_files((str(tmp_path / "image"),), tmp_path)
    with pytest.raises(DataError, match=r"old\.txt is not UTF-8 text \(byte 0xe9\)"):
        find_files((str(tmp_path / "old.txt"),), tmp_path)


def test_missing_file_and_folder_without_text(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"there is no file nowhere\.txt"):
        find_files(("nowhere.txt",), tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="holds no UTF-8 text file"):
        find_files((str(tmp_path / "empty"),), tmp_path)


def test_a_folder_gives_its_text_files_in_order(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    for name, content in {
        "b.txt": b"b",
        "a.md": b"a",
        "sub/c.py": b"c",
        ".hidden": b"no",
        "image.png": b"\x89PNG\x00",
    }.items():
        (tmp_path / name).write_bytes(content)
    names = [f.name for f in find_files((str(tmp_path),), tmp_path)]
    assert names == ["a.md", "b.txt", "c.py"]


def test_standard_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(b"piped")))
    (file,) = find_files(("-",), tmp_path)
    assert file.read_text() == "piped"
    # A resumed run has no standard input any more.
    assert find_files(("-",), tmp_path) == [file]


def test_damaged_tokens_are_told(tmp_path: Path) -> None:
    made(tmp_path, "abcdefgh\n" * 500)
    (tmp_path / "run" / "data" / "train.bin").write_bytes(b"12")
    with pytest.raises(CheckpointError, match="not as long"):
        load_corpus(tmp_path / "run", 1 << 16)


@settings(max_examples=50, deadline=None)
@given(
    num_tokens=st.integers(40, 400),
    block=st.integers(1, 16),
    rows=st.integers(1, 7),
    seed=st.integers(0, 5),
)
def test_an_epoch_reads_each_block_exactly_once(
    num_tokens: int, block: int, rows: int, seed: int
) -> None:
    batches = Batches(
        np.arange(num_tokens, dtype=np.uint16),
        block=block,
        rows=rows,
        seed=seed,
        sampling="epochs",
    )
    steps = -(-3 * batches.num_blocks // rows)
    starts = np.concatenate([batches.starts(s) for s in range(steps)])
    for epoch in range(3):
        mine = np.sort(starts[epoch * batches.num_blocks : (epoch + 1) * batches.num_blocks])
        assert (np.diff(mine) == block).all()
        assert mine[0] >= 0
        assert mine[-1] + block < num_tokens


@settings(deadline=None)
@given(count=st.integers(1, 3000), seed=st.integers(0, 99))
def test_a_shuffle_is_a_permutation(count: int, seed: int) -> None:
    keys = np.random.default_rng(seed).integers(0, 2**63, size=6, dtype=np.uint64)
    assert sorted(shuffled(np.arange(count), count, keys)) == list(range(count))


def test_a_shuffle_leaves_no_order() -> None:
    keys = np.random.default_rng(3).integers(0, 2**63, size=6, dtype=np.uint64)
    order = shuffled(np.arange(20_000), 20_000, keys)
    # Correlation of place with place, and of neighbours; 0.03 is four standard deviations.
    assert abs(np.corrcoef(order, np.arange(len(order)))[0, 1]) < 0.03
    assert abs(np.corrcoef(order[1:], order[:-1])[0, 1]) < 0.03


@pytest.mark.parametrize("sampling", ["random", "epochs"])
def test_a_batch_is_a_function_of_seed_and_step(sampling: str) -> None:
    tokens = np.arange(500, dtype=np.uint16)

    def batches(seed: int) -> Batches:
        return Batches(tokens, block=8, rows=6, seed=seed, sampling=sampling)

    one, other = batches(1), batches(1)
    late = other.at(40)[0]
    assert [one.at(s)[0].tolist() for s in range(41)][-1] == late.tolist()
    assert batches(2).at(40)[0].tolist() != late.tolist()
    inputs, targets = one.at(3)
    assert (targets == inputs + 1).all()  # the tokens count upwards: a target is the next one
    # Ranks and accumulated passes read disjoint rows of the same batch.
    parts = [one.at(3, slice(i, i + 2))[0].tolist() for i in (0, 2, 4)]
    assert functools.reduce(operator.iadd, parts, []) == inputs.tolist()


@given(st.integers(2, 2000), st.integers(1, 64), st.integers(1, 100))
def test_validation_blocks_do_not_overlap(num_tokens: int, block: int, most: int) -> None:
    block = min(block, num_tokens - 1)
    starts = validation_starts(num_tokens, block, most)
    assert 1 <= len(starts) <= most
    assert (np.diff(starts) >= block).all()
    assert starts[-1] + block < num_tokens


def test_augmentation_deletes_and_swaps_words_and_keeps_spaces(tmp_path: Path) -> None:
    text = " ".join(f"w{i}" for i in range(2000)) + "\n"
    rng = np.random.default_rng(0)
    changed = augment(text, 0.1, rng)
    words = changed.split()
    assert 0.85 < len(words) / 2000 < 0.95
    assert set(words) <= set(text.split())
    moved = sum(int(b[1:]) < int(a[1:]) for a, b in itertools.pairwise(words))
    assert 100 < moved < 300
    assert augment(text, 0.0, rng) == text
    plain = made(tmp_path / "a", "some words in a line\n" * 90)
    more = made(tmp_path / "b", "some words in a line\n" * 90, augment=2)
    assert len(more.train) > 2.5 * len(plain.train)
    assert len(more.val) == len(plain.val)


PREPARE = """
import sys
from pathlib import Path
from traindoctor.lm.config import DataConfig
from traindoctor.lm.data import prepare
kind, file, out = sys.argv[1:]
prepare(DataConfig(data=(file,), tokenizer=kind), Path(out), block=64, seed=1, progress=lambda *_: None)
highest = [line for line in open("/proc/self/status") if line.startswith("VmHWM")]
print(int(highest[0].split()[1]) // 1024)
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads /proc")
@pytest.mark.parametrize("kind", ["char", "bpe"])
def test_memory_does_not_grow_with_the_text(tmp_path: Path, kind: str) -> None:
    peaks = {}
    for megabytes in (8, 64):
        file = tmp_path / f"{megabytes}.txt"
        rng = np.random.default_rng(1)
        words = [
            bytes(rng.integers(97, 123, size=n, dtype=np.uint8)).decode() for n in range(1, 12)
        ]
        line = " ".join(words[i % len(words)] for i in range(200)) + "\n"
        file.write_text(line * (megabytes * 1_000_000 // len(line)))
        command = [sys.executable, "-c", PREPARE, kind, str(file), str(tmp_path / f"{megabytes}")]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        peaks[megabytes] = int(done.stdout)
    # Eight times the text; the stretches in work are a few dozen MB.
    assert peaks[64] - peaks[8] < 64

"""Tokenizers: exact round trips, the fast table against the library, words that are unknown."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from traindoctor.errors import CheckpointError, DataError
from traindoctor.lm.tokenizer import Tokenizer, load_tokenizer, pieces, train_tokenizer

TRAINED_ON = "The cat sat on the mat.\n  Déjà vu: 猫, 犬!\n" * 20
CHAR = train_tokenizer("char", [TRAINED_ON])
BPE = train_tokenizer("bpe", [TRAINED_ON], vocab_size=300)
WORD = train_tokenizer("word", [TRAINED_ON], vocab_size=2000)


@settings(max_examples=60, deadline=None)
@given(st.text())
def test_char_and_bpe_give_back_any_text(text: str) -> None:
    assert CHAR.decode(CHAR.encode(text)) == text
    assert BPE.decode(BPE.encode(text)) == text


@settings(max_examples=40, deadline=None)
@given(st.text(alphabet="Thecatsm. \n猫é€𝄞<0x41>"))
def test_the_fast_way_gives_the_library_s_ids(text: str) -> None:
    assert CHAR.encode(text) == CHAR.backend.encode(text).ids


def test_one_token_per_known_character() -> None:
    assert len(CHAR.encode(TRAINED_ON)) == len(TRAINED_ON)
    assert CHAR.vocab_size == len(set(TRAINED_ON)) + 256
    assert len(CHAR.encode("€")) == 3  # its UTF-8 bytes


def test_char_vocabulary_can_be_cut() -> None:
    small = train_tokenizer("char", ["aaaabbbc"], vocab_size=258)
    assert small.vocab_size == 258
    assert [len(small.encode(c)) for c in "abc"] == [1, 1, 1]
    assert small.encode("c")[0] >= 2  # through its byte


def test_words_join_to_the_text_and_strangers_are_unknown() -> None:
    assert WORD.decode(WORD.encode(TRAINED_ON)) == TRAINED_ON
    assert WORD.decode(WORD.encode("The dog sat.")) == "The<unk> sat."
    assert WORD.encode("dog") == [WORD.unknown_id]


def test_word_vocabulary_keeps_the_most_frequent() -> None:
    small = train_tokenizer("word", ["a a a b b c"], vocab_size=4)
    assert small.vocab_size == 4
    assert small.unknown_id in small.encode("c")


@pytest.mark.parametrize("tokenizer", [CHAR, BPE, WORD], ids=["char", "bpe", "word"])
def test_saved_and_loaded_is_the_same(tokenizer: Tokenizer, tmp_path: Path) -> None:
    file = tmp_path / "tokenizer.json"
    tokenizer.save(file)
    again = load_tokenizer(file)
    assert again.kind == tokenizer.kind
    assert again.encode(TRAINED_ON) == tokenizer.encode(TRAINED_ON)
    assert again.encode_array(TRAINED_ON).dtype == np.uint16


def test_a_bad_file_is_told(tmp_path: Path) -> None:
    file = tmp_path / "tokenizer.json"
    with pytest.raises(CheckpointError, match="not a whole run"):
        load_tokenizer(file)
    file.write_text("{}")
    with pytest.raises(CheckpointError, match="not a tokenizer"):
        load_tokenizer(file)


def test_half_a_surrogate_pair_is_no_text() -> None:
    with pytest.raises(DataError, match="surrogate"):
        CHAR.encode("a\ud800")


@given(st.text(alphabet="ab\n", max_size=200), st.integers(1, 20))
def test_pieces_are_the_whole_text(text: str, size: int) -> None:
    assert "".join(pieces(text, size)) == text

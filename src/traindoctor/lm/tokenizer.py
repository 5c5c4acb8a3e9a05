"""Text to tokens and back: characters, words, or byte-level BPE, all kept as one tokenizer.json."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from numpy.typing import NDArray
from tokenizers import Regex, decoders, models, pre_tokenizers, trainers

from traindoctor.errors import CheckpointError, ConfigError, DataError
from traindoctor.plain_files import parse_json, read_text

UNKNOWN = "<unk>"
DEFAULT_VOCAB = 4096
# A character that the training text lacks, or has too rarely, is written as its UTF-8 bytes.
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
# Characters beyond this rank are rare in any script; they go through bytes as well.
MAX_CHARACTERS = 16384
# A word with the space before it, a sign with the space before it, or one space: joined, they are the text.
WORDS = r" ?\w+| ?[^\w\s]|\s"
CODE_POINTS = 0x110000
NO_TOKEN = np.uint32(0xFFFFFFFF)
# Rust encodes pieces of this many characters in parallel; one piece keeps a few MB busy.
PIECE = 1 << 16


class Tokenizer:
    """`encode(text)` gives a list of ids, `decode(ids)` text."""

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        self.backend = backend
        self.kind = _kind_of(backend)
        self.unknown_id: int | None = backend.token_to_id(UNKNOWN) if self.kind == "word" else None
        self._table = _character_table(backend) if self.kind == "char" else None
        self._bytes = _token_bytes(backend) if self.kind == "char" else None

    @property
    def vocab_size(self) -> int:
        return int(self.backend.get_vocab_size())

    @property
    def dtype(self) -> type[np.unsignedinteger]:
        return np.uint16 if self.vocab_size <= 1 << 16 else np.uint32

    def encode(self, text: str) -> list[int]:
        ids: list[int] = self.encode_array(text).tolist()
        return ids

    def encode_array(self, text: str) -> NDArray[np.unsignedinteger]:
        """The ids of a text, fast: characters by table, the rest in parallel pieces cut at line ends."""
        _refuse_surrogates(text)
        if self._table is not None:
            return self._encode_characters(text)
        ids: list[int] = []
        for encoding in self.backend.encode_batch_fast(list(pieces(text, PIECE))):
            ids.extend(encoding.ids)
        return np.asarray(ids, dtype=self.dtype)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of the ids; bytes that are no UTF-8 become U+FFFD, each for itself."""
        if self._bytes is not None:
            # The library gives up a whole run of bytes for one bad one: text would change as it grows.
            return b"".join(self._bytes[i] for i in ids).decode("utf-8", errors="replace")
        return str(self.backend.decode([int(i) for i in ids], skip_special_tokens=False))

    def save(self, file: Path) -> None:
        self.backend.save(str(file))

    def _encode_characters(self, text: str) -> NDArray[np.unsignedinteger]:
        assert self._table is not None
        codes = np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32)
        # Codes outside the table land on its last place, which holds no token.
        found = self._table[np.minimum(codes, len(self._table) - 1)]
        if not (found == NO_TOKEN).any():
            return found.astype(self.dtype)
        ids: list[int] = []
        for encoding in self.backend.encode_batch_fast(list(pieces(text, PIECE))):
            ids.extend(encoding.ids)
        return np.asarray(ids, dtype=self.dtype)


def train_tokenizer(kind: str, texts: Iterable[str], *, vocab_size: int = 0) -> Tokenizer:
    """A tokenizer made from texts; `vocab_size` 0 is the kind's default."""
    if kind == "char":
        return _train_characters(texts, vocab_size)
    if kind == "word":
        return _train_words(texts, vocab_size or DEFAULT_VOCAB)
    if kind == "bpe":
        return _train_bpe(texts, vocab_size or DEFAULT_VOCAB)
    raise ConfigError(f"there is no tokenizer {kind!r}: choose char, word or bpe")


def load_tokenizer(file: Path) -> Tokenizer:
    """A tokenizer of one of our three kinds; the library would run any pattern that a file holds."""
    try:
        text = read_text(file)
        _require_numbered(parse_json(text))
        backend = tokenizers.Tokenizer.from_str(text)
        _require_ours(backend)
        return Tokenizer(backend)
    except FileNotFoundError as error:
        raise CheckpointError(
            f"{file.parent} has no {file.name}: it is not a whole run folder"
        ) from error
    except Exception as error:  # the library raises bare Exception on bad JSON
        raise CheckpointError(
            f"{file} is not a tokenizer of ours ({error}): put it back from a copy, or start a new run"
        ) from error


def _require_numbered(stored: dict[str, Any]) -> None:
    """Tokens are numbered from 0 on: the library counts up to the highest number that a file names."""
    numbers = stored["model"]["vocab"].values()
    added = [token["id"] for token in stored["added_tokens"]]
    if not numbers or not all(type(number) is int for number in (*numbers, *added)):
        raise ValueError("it has no list of tokens")
    if sorted(numbers) != list(range(len(numbers))) or not set(added) <= set(numbers):
        raise ValueError("its tokens are not numbered from 0 on")


def _require_ours(backend: tokenizers.Tokenizer) -> None:
    """Its parts but the vocabulary are those that we make."""
    made = {
        "char": _backend_of_characters,
        "word": _backend_of_words,
        "bpe": _backend_of_pairs,
    }[_kind_of(backend)]
    if _without_vocabulary(backend) != _without_vocabulary(made()):
        raise ValueError("it has other parts")


def _without_vocabulary(backend: tokenizers.Tokenizer) -> dict[str, Any]:
    parts: dict[str, Any] = json.loads(backend.to_str())
    model = {k: v for k, v in parts.pop("model").items() if k not in ("vocab", "merges")}
    known = {"content": UNKNOWN, "special": True}
    extra = [{k: token[k] for k in known} for token in parts.pop("added_tokens")]
    if extra not in ([], [known]):
        raise ValueError("it has added tokens")
    return {**parts, "model": model}


def pieces(text: str, size: int) -> Iterable[str]:
    """The text cut after line ends into pieces of about `size` characters (a longer line stays whole)."""
    start = 0
    while start < len(text):
        end = text.find("\n", start + size)
        end = len(text) if end < 0 else end + 1
        yield text[start:end]
        start = end


def _train_characters(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    assert not vocab_size or vocab_size > len(BYTES)  # the settings say so in the user's words
    counts = np.zeros(CODE_POINTS, dtype=np.int64)
    for text in texts:
        _refuse_surrogates(text)
        found = np.bincount(np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32))
        counts[: len(found)] += found
    most = min(vocab_size - len(BYTES) if vocab_size else MAX_CHARACTERS, MAX_CHARACTERS)
    # By frequency, then by code point.
    order = np.argsort(-counts, kind="stable")[: min(most, int((counts > 0).sum()))]
    kept = [chr(code) for code in order]
    vocab = {token: i for i, token in enumerate([*sorted(kept), *BYTES])}
    return Tokenizer(_backend_of_characters(vocab))


def _backend_of_characters(vocab: dict[str, int] | None = None) -> tokenizers.Tokenizer:
    # BPE without merges splits into characters, and its byte fallback makes any text encodable.
    model = models.BPE(vocab=vocab or {}, merges=[], byte_fallback=True, fuse_unk=False)
    backend = tokenizers.Tokenizer(model)
    backend.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    return backend


def _train_words(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    backend = _backend_of_words()
    trainer = trainers.WordLevelTrainer(
        vocab_size=vocab_size, special_tokens=[UNKNOWN], show_progress=False
    )
    backend.train_from_iterator(texts, trainer)
    return Tokenizer(backend)


def _backend_of_words() -> tokenizers.Tokenizer:
    backend = tokenizers.Tokenizer(models.WordLevel(unk_token=UNKNOWN))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(WORDS), behavior="isolated")
    backend.decoder = decoders.Fuse()
    return backend


def _train_bpe(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    backend = _backend_of_pairs()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(texts, trainer)
    return Tokenizer(backend)


def _backend_of_pairs() -> tokenizers.Tokenizer:
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return backend


def _kind_of(backend: tokenizers.Tokenizer) -> str:
    if isinstance(backend.model, models.WordLevel):
        return "word"
    if not isinstance(backend.model, models.BPE):
        raise ValueError("its model is neither BPE nor a list of words")
    return "char" if backend.model.byte_fallback else "bpe"


def _character_table(backend: tokenizers.Tokenizer) -> NDArray[np.uint32]:
    """Code point -> id; the place after the highest one known holds no token."""
    characters = {ord(t): i for t, i in backend.get_vocab().items() if len(t) == 1}
    table = np.full(max(characters, default=0) + 2, NO_TOKEN, dtype=np.uint32)
    for code, token in characters.items():
        table[code] = token
    return table


def _token_bytes(backend: tokenizers.Tokenizer) -> list[bytes]:
    """The UTF-8 of each token of a character vocabulary."""
    tokens = sorted(backend.get_vocab().items(), key=lambda item: item[1])
    return [t.encode() if len(t) == 1 else bytes([int(t[3:5], 16)]) for t, _ in tokens]


def _refuse_surrogates(text: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise DataError(
            f"the text has half a surrogate pair at character {error.start}, which is not valid Unicode: "
            "remove it"
        ) from error

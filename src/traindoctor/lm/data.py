"""Text files to tokens on disk, and tokens to batches.

The tokens of a run lie in its folder data/ as two memory maps, train.bin and val.bin. A batch is a pure
function of seed and step, so a resumed run draws the very batches it would have drawn.
"""

from __future__ import annotations

import itertools
import json
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from traindoctor.errors import CheckpointError, DataError
from traindoctor.lm.config import DataConfig
from traindoctor.lm.files import write_json, writing
from traindoctor.lm.tokenizer import Tokenizer, train_tokenizer

Progress = Callable[[str, float], None]  # what is done, share of it from 0 to 1

# Validation text is the end of each stretch: spread over the whole text, not its last chapter alone.
STRETCHES = 10
MAX_STRETCH = 1 << 20  # characters; bounds the memory of tokenising
# A stretch ends with at least this many blocks of validation at the usual tenth.
BLOCKS_PER_STRETCH = 40
# Merges and words learned from this much text hardly change with more of it.
TOKENIZER_SAMPLE = 200 << 20


@dataclass(frozen=True)
class Corpus:
    """The tokens of a run, on disk, and what is known of them."""

    train: NDArray[np.unsignedinteger]
    val: NDArray[np.unsignedinteger]
    facts: dict[str, Any]


def find_files(data: tuple[str, ...], scratch: Path) -> list[Path]:
    """The text files behind --data; standard input and the embedded text are first written to `scratch`."""
    if not data:
        return [_embedded_text(scratch)]
    files: list[Path] = []
    for name in data:
        path = Path(name)
        if name == "-":
            files.append(_standard_input(scratch))
        elif path.is_dir():
            inside = sorted(p for p in path.rglob("*") if p.is_file() and not _hidden(p, path))
            texts = [p for p in inside if p.stat().st_size and _looks_like_text(p)]
            if not texts:
                raise DataError(f"the folder {name} holds no text file ({len(inside)} files seen)")
            files += texts
        elif not path.exists():
            raise DataError(f"there is no file {name}: give a text file, a folder, or - for stdin")
        elif path.stat().st_size == 0:
            raise DataError(f"{name} is empty: give a file with text")
        else:
            files.append(path)
    return files


def prepare(
    config: DataConfig, folder: Path, *, block: int, seed: int, progress: Progress
) -> Tokenizer:
    """Makes tokenizer.json and data/ in a run folder, once; a half-made one is made again."""
    data = folder / "data"
    with writing(data):
        data.mkdir(parents=True, exist_ok=True)
    files = find_files(config.data, data)
    size = sum(f.stat().st_size for f in files)
    stretch = max(min(size // STRETCHES, MAX_STRETCH), BLOCKS_PER_STRETCH * block)
    tokenizer = _make_tokenizer(config, files, stretch, size, progress)
    with writing(folder / "tokenizer.json"):
        tokenizer.save(folder / "tokenizer.json")
    counts = {"train": 0, "val": 0}
    seen = unknown = 0
    with (
        writing(data),
        (data / "train.bin").open("wb") as train_file,
        (data / "val.bin").open("wb") as val_file,
    ):
        outputs = {"train": train_file, "val": val_file}
        for number, text in enumerate(read_stretches(files, stretch)):
            for part, piece in _split(text, config.val_fraction):
                texts = [piece]
                if part == "train":
                    rngs = [np.random.default_rng([seed, number, c]) for c in range(config.augment)]
                    texts += [augment(piece, config.augment_rate, rng) for rng in rngs]
                for one in texts:
                    tokens = tokenizer.encode_array(one)
                    tokens.tofile(outputs[part])
                    counts[part] += len(tokens)
                    if tokenizer.unknown_id is not None:
                        unknown += int((tokens == tokenizer.unknown_id).sum())
            seen += len(text.encode("utf-8"))
            progress("tokenising", seen / size)
    if counts["train"] < block + 1:
        raise DataError(
            f"the training text has {counts['train']} tokens, one block needs {block + 1}: "
            f"give more text or a --block of at most {max(counts['train'] - 1, 1)}"
        )
    facts = {
        "files": [str(f) for f in files],
        "bytes": size,
        "dtype": np.dtype(tokenizer.dtype).name,
        **counts,
        "unknown_share": unknown / max(sum(counts.values()), 1),
    }
    write_json(data / "meta.json", facts)
    return tokenizer


def load_corpus(folder: Path) -> Corpus:
    """The tokens that `prepare` made."""
    data = folder / "data"
    try:
        facts = json.loads((data / "meta.json").read_text(encoding="utf-8"))
        maps = {}
        for part in ("train", "val"):
            file = data / f"{part}.bin"
            if file.stat().st_size != facts[part] * np.dtype(facts["dtype"]).itemsize:
                raise CheckpointError(f"{file} is not as long as meta.json says: remove {data}")
            # An empty file cannot be mapped.
            maps[part] = (
                np.memmap(file, dtype=facts["dtype"], mode="r")
                if facts[part]
                else np.zeros(0, dtype=facts["dtype"])
            )
        return Corpus(maps["train"], maps["val"], facts)
    except (OSError, ValueError, KeyError) as error:
        raise CheckpointError(f"the tokens in {data} cannot be read: {error}") from error


def is_prepared(folder: Path) -> bool:
    return (folder / "data" / "meta.json").exists() and (folder / "tokenizer.json").exists()


def read_stretches(files: list[Path], size: int) -> Iterator[str]:
    """All texts in stretches of about `size` characters, cut at line ends where lines are not huge."""
    for file in files:
        try:
            with file.open(encoding="utf-8", newline="") as handle:
                while text := handle.read(size):
                    text += handle.readline(size)
                    if "\x00" in text:
                        raise DataError(f"{file} is a binary file: give UTF-8 text")
                    yield text
        except UnicodeDecodeError as error:
            raise DataError(
                f"{file} is not UTF-8 text (byte 0x{error.object[error.start]:02x}): convert it, "
                "for example with iconv -t utf-8"
            ) from error
        except OSError as error:
            raise DataError(f"cannot read {file}: {error.strerror}") from error


def augment(text: str, rate: float, rng: np.random.Generator) -> str:
    """The text with a share of words deleted and as many swapped with the next word; spaces stay."""
    parts = re.findall(r"\s+|\S+", text)
    words = [i for i, part in enumerate(parts) if not part.isspace()]
    for here, following in itertools.pairwise(words):
        draw = rng.random()
        if draw < rate:
            parts[here] = ""
        elif draw < 2 * rate:
            parts[here], parts[following] = parts[following], parts[here]
    return "".join(parts)


class Batches:
    """`batches.at(step)` gives inputs and targets (batch, block): targets are the inputs one token on."""

    def __init__(
        self,
        tokens: NDArray[np.unsignedinteger],
        *,
        block: int,
        rows: int,
        seed: int,
        sampling: str = "random",
    ) -> None:
        self.tokens, self.block, self.rows = tokens, block, rows
        self.seed, self.sampling = seed, sampling
        self.num_blocks = (len(tokens) - 1) // block
        self._order: tuple[int, NDArray[np.int64]] = (-1, np.zeros(0, dtype=np.int64))

    def at(self, step: int, rows: slice = slice(None)) -> tuple[Tensor, Tensor]:
        """The rows `rows` of the batch of an optimizer step (all its forward passes and ranks together)."""
        return cut(self.tokens, self.starts(step)[rows], self.block)

    def starts(self, step: int) -> NDArray[np.int64]:
        if self.sampling == "random":
            rng = np.random.default_rng([self.seed, step])
            return rng.integers(0, len(self.tokens) - self.block, size=self.rows)
        place = step * self.rows + np.arange(self.rows)
        return np.array([self._start_in_epoch(*divmod(int(p), self.num_blocks)) for p in place])

    def _start_in_epoch(self, epoch: int, place: int) -> int:
        if self._order[0] != epoch:
            rng = np.random.default_rng([self.seed, epoch, 1])
            # The blocks begin anywhere in the remainder, so that all of the text is met in time.
            phase = rng.integers(0, len(self.tokens) - self.num_blocks * self.block)
            self._order = (epoch, rng.permutation(self.num_blocks) * self.block + phase)
        return int(self._order[1][place])


def validation_starts(num_tokens: int, block: int, most: int) -> NDArray[np.int64]:
    """Starts of up to `most` blocks, evenly spread, without overlap."""
    available = (num_tokens - 1) // block
    chosen = np.linspace(0, available - 1, min(most, available)).round().astype(np.int64)
    return np.unique(chosen) * block


def cut(
    tokens: NDArray[np.unsignedinteger], starts: NDArray[np.int64], block: int
) -> tuple[Tensor, Tensor]:
    rows = np.stack([tokens[s : s + block + 1] for s in starts]).astype(np.int64)
    whole = torch.from_numpy(rows)  # (B, T + 1)
    return whole[:, :-1].contiguous(), whole[:, 1:].contiguous()


def _make_tokenizer(
    config: DataConfig, files: list[Path], stretch: int, size: int, progress: Progress
) -> Tokenizer:
    # Every n-th stretch where the text is larger than a tokenizer needs; characters count them all.
    every = 1 if config.tokenizer == "char" else max(1, -(-size // TOKENIZER_SAMPLE))

    def texts() -> Iterator[str]:
        seen = 0
        for number, text in enumerate(read_stretches(files, stretch)):
            seen += len(text.encode("utf-8"))
            progress("reading", seen / size)
            if number % every == 0:
                yield text

    return train_tokenizer(config.tokenizer, texts(), vocab_size=config.vocab_size)


def _split(text: str, val_fraction: float) -> Iterator[tuple[str, str]]:
    """A stretch as its training part and its validation part, cut at a line end if one is near."""
    cut_at = len(text) - round(len(text) * val_fraction)
    line_end = text.find("\n", cut_at, cut_at + 200) + 1
    cut_at = line_end or cut_at
    yield "train", text[:cut_at]
    if cut_at < len(text):
        yield "val", text[cut_at:]


def _embedded_text(scratch: Path) -> Path:
    """The Python manual's help topics: 460 kB of English that every Python has."""
    from pydoc_data.topics import topics

    file = scratch / "python-topics.txt"
    with writing(file):
        file.write_text("\n".join(topics[name] for name in sorted(topics)), encoding="utf-8")
    return file


def _standard_input(scratch: Path) -> Path:
    file = scratch / "stdin.txt"
    # A resumed run finds the text of its first start here.
    if not file.exists():
        with writing(file), file.open("wb") as out:
            shutil.copyfileobj(sys.stdin.buffer, out)
    if file.stat().st_size == 0:
        file.unlink()
        raise DataError("standard input is empty: pipe a text into --data -")
    return file


def _hidden(path: Path, root: Path) -> bool:
    return any(part.startswith(".") for part in path.relative_to(root).parts)


def _looks_like_text(path: Path) -> bool:
    """Whether a file of a folder is read: its first bytes are UTF-8 without NUL."""
    with path.open("rb") as handle:
        head = handle.read(1 << 14)
    try:
        head.decode("utf-8")
    except UnicodeDecodeError as error:
        # The cut may fall inside the last character.
        return b"\x00" not in head and error.start > len(head) - 4
    return b"\x00" not in head

"""Text files to tokens on disk, and tokens to batches.

The tokens of a run lie in its folder data/ as two memory maps, train.bin and val.bin. A batch is a pure
function of seed and step, so a resumed run draws the very batches it would have drawn.
"""

import itertools
import math
import os
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from traindoctor.errors import CheckpointError, DataError
from traindoctor.lm.config import DataConfig
from traindoctor.lm.files import write_json, writing
from traindoctor.lm.texts import find_files, read_stretches
from traindoctor.lm.tokenizer import PIECE, Tokenizer, pieces, train_tokenizer
from traindoctor.plain_files import read_json, require_file
from traindoctor.private_files import make_private_folder

Progress = Callable[[str, float], None]  # what is done, share of it from 0 to 1

# Validation text is the end of each stretch: spread over the whole text, not its last chapter alone.
STRETCHES = 10
MAX_STRETCH = (
    1 << 18
)  # characters; bounds the memory of tokenising (2 GB of text: measured under 0.6 GB)
# A stretch ends with at least this many blocks of validation at the usual tenth.
BLOCKS_PER_STRETCH = 40
# Merges and words learned from this much text hardly change with more of it.
TOKENIZER_SAMPLE = 64 << 20
# Stretches are encoded side by side: the library and NumPy work outside Python's lock. A few keep a core each
# busy and bound the memory.
WORKERS = min(os.cpu_count() or 1, 8)

Tokens = NDArray[np.unsignedinteger]
Item = TypeVar("Item")
Result = TypeVar("Result")


# Of the permutation that orders an epoch. The multiplier is the odd number nearest 2^64 / golden ratio.
SHUFFLE_ROUNDS = 6
MIX = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True)
class Corpus:
    """The tokens of a run, on disk, and what is known of them."""

    train: NDArray[np.unsignedinteger]
    val: NDArray[np.unsignedinteger]
    facts: dict[str, Any]


def prepare(
    config: DataConfig, folder: Path, *, block: int, seed: int, progress: Progress
) -> Tokenizer:
    """Makes tokenizer.json and data/ in a run folder, once; a half-made one is made again."""
    data = folder / "data"
    files = find_files(config.data, data)
    with writing(data):
        make_private_folder(folder)
        data.mkdir(parents=True, exist_ok=True)
    size = sum(f.stat().st_size for f in files)
    stretch = max(min(size // STRETCHES, MAX_STRETCH), BLOCKS_PER_STRETCH * block)
    tokenizer = _make_tokenizer(config, files, stretch, size, progress)
    with writing(folder / "tokenizer.json"):
        tokenizer.save(folder / "tokenizer.json")
    counts = {"train": 0, "val": 0}
    seen = unknown = 0

    def encoded(numbered: tuple[int, str]) -> tuple[int, list[tuple[str, Tokens]]]:
        number, text = numbered
        parts = [
            (part, tokenizer.encode_array(one))
            for part, piece in _split(text, config.val_fraction)
            for one in (_with_copies(piece, config, [seed, number]) if part == "train" else [piece])
        ]
        return len(text.encode("utf-8")), parts

    with (
        writing(data),
        (data / "train.bin").open("wb") as train_file,
        (data / "val.bin").open("wb") as val_file,
    ):
        outputs = {"train": train_file, "val": val_file}
        for length, parts in in_order(encoded, enumerate(read_stretches(files, stretch))):
            for part, tokens in parts:
                outputs[part].write(tokens.data)
                counts[part] += len(tokens)
                if tokenizer.unknown_id is not None:
                    unknown += int((tokens == tokenizer.unknown_id).sum())
            seen += length
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


def in_order(function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
    """`map` on several threads: results come in order, and only a few items are in work at a time."""
    with ThreadPoolExecutor(WORKERS) as pool:
        waiting: deque[Future[Result]] = deque()
        for item in items:
            waiting.append(pool.submit(function, item))
            if len(waiting) > WORKERS:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def load_corpus(folder: Path, vocab_size: int) -> Corpus:
    """The tokens that `prepare` made; a text has `vocab_size` kinds of them."""
    data = folder / "data"
    try:
        facts = read_json(data / "meta.json")
        if facts["dtype"] not in ("uint16", "uint32"):
            raise ValueError(f"tokens are not stored as {facts['dtype']!r}")
        if not 0 <= facts["unknown_share"] <= 1:
            raise ValueError("its share of unknown words is no share")
        maps = {}
        for part in ("train", "val"):
            file = data / f"{part}.bin"
            if require_file(file).st_size != facts[part] * np.dtype(facts["dtype"]).itemsize:
                raise CheckpointError(
                    f"{file} is not as long as meta.json says: put it back from a copy, or start a new run"
                )
            # An empty file cannot be mapped.
            maps[part] = (
                np.memmap(file, dtype=facts["dtype"], mode="r")
                if facts[part]
                else np.zeros(0, dtype=facts["dtype"])
            )
            if len(maps[part]) and int(maps[part].max()) >= vocab_size:
                raise ValueError(f"{file.name} has tokens that the tokenizer does not know")
        return Corpus(maps["train"], maps["val"], facts)
    except (OSError, ValueError, KeyError, TypeError, OverflowError) as error:
        raise CheckpointError(
            f"the tokens in {data} cannot be read ({error}): put them back from a copy, or start a new run"
        ) from error


def is_prepared(folder: Path) -> bool:
    return (folder / "data" / "meta.json").exists() and (folder / "tokenizer.json").exists()


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


def _with_copies(piece: str, config: DataConfig, key: list[int]) -> list[str]:
    """A training text and its augmented copies."""
    rngs = [np.random.default_rng([*key, copy]) for copy in range(config.augment)]
    return [piece, *(augment(piece, config.augment_rate, rng) for rng in rngs)]


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
        if self.num_blocks < 1:
            raise DataError(
                f"{len(tokens)} tokens do not make one block of {block}: give more text"
            )

    def at(self, step: int, rows: slice = slice(None)) -> tuple[Tensor, Tensor]:
        """The rows `rows` of the batch of an optimizer step (all its forward passes and ranks together)."""
        return cut(self.tokens, self.starts(step)[rows], self.block)

    def starts(self, step: int) -> NDArray[np.int64]:
        if self.sampling == "random":
            rng = np.random.default_rng([self.seed, step])
            return rng.integers(0, len(self.tokens) - self.block, size=self.rows)
        epoch, place = np.divmod(step * self.rows + np.arange(self.rows), self.num_blocks)
        starts = np.empty(self.rows, dtype=np.int64)
        for number in np.unique(epoch):
            here = epoch == number
            rng = np.random.default_rng([self.seed, int(number), 1])
            # The blocks begin anywhere in the remainder, so that all of the text is met in time.
            phase = rng.integers(0, len(self.tokens) - self.num_blocks * self.block)
            keys = rng.integers(0, 2**63, size=SHUFFLE_ROUNDS, dtype=np.uint64)
            starts[here] = shuffled(place[here], self.num_blocks, keys) * self.block + phase
        return starts


def shuffled(places: NDArray[np.int64], count: int, keys: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Where a random permutation of `count` things puts some of them, without making the permutation.

    A Feistel network permutes the next even power of two; what falls outside walks on until it is inside.
    An order of all blocks of a 10 GB text would take a gigabyte.
    """
    half = np.uint64(max(1, math.ceil((count - 1).bit_length() / 2)))
    mask = np.uint64((1 << int(half)) - 1)

    def permute(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
        left, right = x >> half, x & mask
        for key in keys:
            mixed = (right ^ key) * MIX
            mixed = (mixed ^ (mixed >> np.uint64(29))) * MIX
            left, right = right, left ^ ((mixed >> np.uint64(32)) & mask)
        return (left << half) | right

    x = permute(places.astype(np.uint64))
    while (outside := x >= count).any():
        x[outside] = permute(x[outside])
    return x.astype(np.int64)


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
                # The library gathers 256 texts before it counts their words: small ones, so that they are few MB.
                yield from pieces(text, PIECE)

    return train_tokenizer(config.tokenizer, texts(), vocab_size=config.vocab_size)


def _split(text: str, val_fraction: float) -> Iterator[tuple[str, str]]:
    """A stretch as its training part and its validation part, cut at a line end if one is near."""
    cut_at = len(text) - round(len(text) * val_fraction)
    line_end = text.find("\n", cut_at, cut_at + 200) + 1
    cut_at = line_end or cut_at
    yield "train", text[:cut_at]
    if cut_at < len(text):
        yield "val", text[cut_at:]

"""A sharded model on the disk: each rank writes its part of every tensor, any number of ranks reads them.

    sharded/rank-00000-of-00002.safetensors   this rank's parts, named as in model.safetensors and
                                              optimizer.safetensors; the header says which rows they are

Parts are cut along the first dimension, as FSDP2 cuts them. Nothing here is a pickle: a file of somebody
else's can be wrong, but it cannot run.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor
from torch.distributed.tensor import DTensor, Shard

from traindoctor.plain_files import parse_json, require_file

# 2: safetensors. 1 was torch.distributed.checkpoint, whose index is a pickle.
FORMAT = 2
HEADER = "traindoctor-shards"


class UnreadableShards(Exception):
    """Shards that are damaged or missing; the message is one line."""


@dataclass(frozen=True)
class Part:
    """Rows `first` to `first + rows` of a tensor, in one file."""

    file: Path
    first: int
    rows: int
    shape: tuple[int, ...]
    """of the whole tensor"""


def shard_name(rank: int, size: int) -> str:
    return f"rank-{rank:05d}-of-{size:05d}.safetensors"


def save_shards(folder: Path, tensors: Mapping[str, Tensor], *, rank: int, size: int) -> Path:
    """Writes this rank's part of each tensor. What is whole on every rank (a step count) is rank 0's to write."""
    parts, places = {}, {}
    for name, tensor in tensors.items():
        local, first = local_part(tensor)
        if local.numel() and (isinstance(tensor, DTensor) or rank == 0):
            parts[name] = local.detach().contiguous()
            places[name] = {"first": first, "shape": list(tensor.shape)}
    file = folder / shard_name(rank, size)
    header = {"format": FORMAT, "rank": rank, "size": size, "parts": places}
    save_file(parts, file, metadata={HEADER: json.dumps(header)})
    return file


def local_part(tensor: Tensor) -> tuple[Tensor, int]:
    """The rows of a tensor that this rank holds, and the first one's number."""
    if not isinstance(tensor, DTensor):
        return tensor, 0
    if tensor.placements != (Shard(0),):
        raise UnreadableShards(f"a tensor is split as {tensor.placements}, not along its rows")
    local, ranks = tensor.to_local(), tensor.device_mesh.size()
    rows = -(-tensor.shape[0] // ranks)  # torch.chunk: the last ranks may have fewer, or none
    return local, min(rows * tensor.device_mesh.get_local_rank(), tensor.shape[0])


class ShardReader:
    """The shards of a checkpoint: `reader.fill(name, tensor)` copies what a tensor, split or whole, has to hold."""

    def __init__(self, folder: Path, files: Iterable[str]) -> None:
        self._parts: dict[str, list[Part]] = {}
        names = sorted(files)
        refuse_pickles(folder)
        if not names or names != [shard_name(rank, len(names)) for rank in range(len(names))]:
            raise UnreadableShards("its list of files is not that of a sharded checkpoint")
        for rank, name in enumerate(names):
            for tensor, part in _parts_of(folder / name, rank, len(names)):
                self._parts.setdefault(tensor, []).append(part)
        for tensor, parts in self._parts.items():
            _require_whole(tensor, parts)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Every stored tensor, with the shape of the whole."""
        return {name: parts[0].shape for name, parts in self._parts.items()}

    def fill(self, name: str, target: Tensor) -> None:
        """Copies the stored values into `target`, of which this rank may hold some rows only."""
        local, first = local_part(target)
        if not local.numel():
            return
        last = first + (local.shape[0] if local.dim() else 1)
        for part in self._parts[name]:
            low, high = max(first, part.first), min(last, part.first + part.rows)
            if low < high:
                stored = _rows(part, name, low - part.first, high - part.first)
                place = local[low - first : high - first] if local.dim() else local
                with torch.no_grad():
                    place.copy_(stored)

    def whole(self, name: str) -> Tensor:
        """A small tensor that every rank needs whole."""
        (part,) = self._parts[name]
        return _rows(part, name, 0, part.rows)


def refuse_pickles(folder: Path) -> None:
    """An older traindoctor's shards could run code when they are read."""
    if (folder / ".metadata").exists() or any(folder.glob("*.distcp")):
        raise UnreadableShards(
            "its shards are pickles of an older traindoctor, which could run code and are not read; "
            "that version's `export` makes a model of them"
        )


def _parts_of(file: Path, rank: int, size: int) -> Iterator[tuple[str, Part]]:
    """What a shard says it holds, held against what it does hold."""
    try:
        require_file(file)
        with safe_open(file, framework="pt") as opened:
            header = parse_json((opened.metadata() or {})[HEADER])
            if (header["format"], header["rank"], header["size"]) != (FORMAT, rank, size):
                raise UnreadableShards(f"{file.name} is not the shard that its name says")
            places = header["parts"]
            if set(places) != set(opened.keys()):
                raise UnreadableShards(f"{file.name} lists other tensors than it holds")
            for name in opened.keys():
                stored = tuple(opened.get_slice(name).get_shape())
                yield name, _part(file, name, stored, places[name])
    except (OSError, SafetensorError, ValueError, KeyError, TypeError) as error:
        raise UnreadableShards(f"{file.name}: {_first_line(error)}") from error


def _part(file: Path, name: str, stored: tuple[int, ...], place: Mapping[str, Any]) -> Part:
    first, shape = place["first"], place["shape"]
    numbers = [first, *shape]
    if not all(type(number) is int and number >= 0 for number in numbers):
        raise ValueError(f"the place of {name} is not made of counts")
    rows = stored[0] if stored else 1
    whole = shape[0] if shape else 1
    if len(stored) != len(shape) or stored[1:] != tuple(shape[1:]) or first + rows > whole:
        raise ValueError(f"the part of {name} does not fit the whole")
    return Part(file, first, rows, tuple(shape))


def _require_whole(name: str, parts: list[Part]) -> None:
    """The parts of a tensor follow each other without a gap or an overlap."""
    parts.sort(key=lambda part: part.first)
    reached = 0
    for part in parts:
        if part.shape != parts[0].shape or part.first != reached:
            raise UnreadableShards(f"the parts of {name} do not make one tensor")
        reached += part.rows
    if reached != (parts[0].shape[0] if parts[0].shape else 1):
        raise UnreadableShards(f"a part of {name} is missing")


def _rows(part: Part, name: str, low: int, high: int) -> Tensor:
    try:
        with safe_open(part.file, framework="pt") as opened:
            rows: Tensor = (
                opened.get_slice(name)[low:high] if part.shape else opened.get_tensor(name)
            )
            return rows
    except (OSError, SafetensorError) as error:
        raise UnreadableShards(f"{part.file.name}: {_first_line(error)}") from error


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]

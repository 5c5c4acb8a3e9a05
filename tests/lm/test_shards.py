"""Shards of any number of ranks make the same tensors again, bit for bit; what does not fit together is told."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from traindoctor.lm.shards import HEADER, ShardReader, UnreadableShards, save_shards, shard_name

TENSORS = {
    "embedding.weight": torch.randn(37, 5),
    "norm.weight": torch.randn(5),
    "norm.weight|exp_avg": torch.randn(5) * 1e-20,
    "one.weight": torch.randn(1, 3, 2),
}
STEP = torch.tensor(7.0)


def write(
    folder: Path, ranks: int, change: Callable[[int, Any], object] | None = None
) -> list[str]:
    """Shards as `ranks` processes write them: rows dealt as torch.chunk deals them."""
    for rank in range(ranks):
        parts: dict[str, Tensor] = {"norm.weight|step": STEP} if rank == 0 else {}
        places: dict[str, Any] = (
            {"norm.weight|step": {"first": 0, "shape": []}} if rank == 0 else {}
        )
        for name, tensor in TENSORS.items():
            pieces = tensor.chunk(ranks)
            if rank < len(pieces):
                parts[name] = pieces[rank].contiguous()
                first = sum(len(piece) for piece in pieces[:rank])
                places[name] = {"first": first, "shape": list(tensor.shape)}
        header = {"format": 2, "rank": rank, "size": ranks, "parts": places}
        if change is not None:
            change(rank, header)
        metadata = {HEADER: json.dumps(header)}
        save_file(parts, folder / shard_name(rank, ranks), metadata=metadata)
    return [shard_name(rank, ranks) for rank in range(ranks)]


@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
def test_every_number_of_ranks_gives_the_same_bits(tmp_path: Path, ranks: int) -> None:
    reader = ShardReader(tmp_path, write(tmp_path, ranks))
    assert reader.shapes == {
        **{n: tuple(t.shape) for n, t in TENSORS.items()},
        "norm.weight|step": (),
    }
    for name, tensor in TENSORS.items():
        target = torch.zeros_like(tensor)
        reader.fill(name, target)
        assert torch.equal(target, tensor)
    assert reader.whole("norm.weight|step") == STEP


def test_one_process_writes_what_it_reads(tmp_path: Path) -> None:
    save_shards(tmp_path, {**TENSORS, "norm.weight|step": STEP}, rank=0, size=1)
    test = ShardReader(tmp_path, [shard_name(0, 1)])
    target = torch.zeros(37, 5)
    test.fill("embedding.weight", target)
    assert torch.equal(target, TENSORS["embedding.weight"])


def moved(rank: int, header: Any) -> None:
    if rank == 1:
        header["parts"]["embedding.weight"]["first"] -= 1


def longer(rank: int, header: Any) -> None:
    header["parts"]["embedding.weight"]["shape"][0] += 4


def wider(rank: int, header: Any) -> None:
    header["parts"]["embedding.weight"]["shape"][1] += 1


def another_rank(rank: int, header: Any) -> None:
    header["rank"] = 1 - rank


def unlisted(rank: int, header: Any) -> None:
    header["parts"].pop("embedding.weight")


def negative(rank: int, header: Any) -> None:
    header["parts"]["embedding.weight"]["first"] = -1


def text(rank: int, header: Any) -> None:
    header["parts"]["embedding.weight"]["first"] = "0"


@pytest.mark.parametrize("change", [moved, longer, wider, another_rank, unlisted, negative, text])
def test_shards_that_lie_are_refused(tmp_path: Path, change: Callable[[int, Any], object]) -> None:
    names = write(tmp_path, 2, change)
    with pytest.raises(UnreadableShards) as refusal:
        ShardReader(tmp_path, names)
    assert len(str(refusal.value).splitlines()) == 1


def test_a_shard_that_is_missing_or_unknown_is_told(tmp_path: Path) -> None:
    names = write(tmp_path, 3)
    with pytest.raises(UnreadableShards, match="list of files"):
        ShardReader(tmp_path, names[:2])
    with pytest.raises(UnreadableShards, match="list of files"):
        ShardReader(tmp_path, ["../../somewhere.safetensors"])
    (tmp_path / names[1]).unlink()
    with pytest.raises(UnreadableShards, match="rank-00001"):
        ShardReader(tmp_path, names)

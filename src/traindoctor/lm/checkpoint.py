"""Checkpoints: a folder each, whole or not there; the last few and the best are kept.

    checkpoints/step-00000200/  model.safetensors  optimizer.safetensors  state.json
    checkpoints/best.json       which of them had the lowest validation loss

Sharded runs write sharded/ (shards.py) in place of the two safetensors files.
"""

from __future__ import annotations

import dataclasses
import math
import re
import shutil
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import nn

from traindoctor.errors import CheckpointError
from traindoctor.lm.config import RunConfig
from traindoctor.lm.distributed import World, reshard
from traindoctor.lm.files import TEMPORARY, new_folder, sync_files, write_json, writing
from traindoctor.lm.model import Transformer
from traindoctor.lm.shards import ShardReader, UnreadableShards, save_shards, shard_name
from traindoctor.lm.sources import load_config
from traindoctor.lm.tokenizer import Tokenizer, load_tokenizer
from traindoctor.lm.weights import (
    Source,
    WholeFile,
    copy_into,
    does_not_fit,
    fill_optimizer,
    model_tensors,
    num_weights,
    optimizer_tensors,
)
from traindoctor.plain_files import is_there, read_json, require_file

MODEL, OPTIMIZER, STATE, SHARDED = (
    "model.safetensors",
    "optimizer.safetensors",
    "state.json",
    "sharded",
)
# 1: first format. 2: shards are safetensors (whole checkpoints are as before).
FORMAT = 2
NAME = re.compile(r"step-(\d{8,12})")


@dataclass
class State:
    """Where a run stands. `step` counts the optimizer steps done."""

    step: int = 0
    seconds: float = 0.0
    best_loss: float = float("inf")
    best_step: int = -1
    evals_since_best: int = 0


def checkpoints(run: Path) -> list[Path]:
    """All checkpoints of a run, oldest first."""
    found = {
        int(m[1]): p for p in (run / "checkpoints").glob("step-*") if (m := NAME.fullmatch(p.name))
    }
    return [found[step] for step in sorted(found) if is_there(found[step] / STATE)]


def save(
    run: Path,
    state: State,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    keep: int,
    world: World,
    sharded: bool = False,
) -> Path:
    """Writes a checkpoint, then removes those that are neither among the last `keep` nor the best."""
    folder = run / "checkpoints" / f"step-{state.step:08d}"
    if sharded:
        _save_sharded(folder, state, model, optimizer, world)
    with world.together():
        if world.main:
            if not sharded:
                _save_whole(folder, state, model, optimizer)
            if state.best_step == state.step:
                write_json(
                    run / "checkpoints" / "best.json", {"step": state.step, "loss": state.best_loss}
                )
            _prune(run, keep, state.best_step)
    return folder


def load_last(
    run: Path, model: nn.Module, optimizer: torch.optim.Optimizer, *, sharded: bool = False
) -> State:
    """Puts the newest checkpoint into model and optimizer; a fresh State when there is none."""
    found = checkpoints(run)
    return load(found[-1], model, optimizer, sharded=sharded) if found else State()


def load(
    folder: Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None = None,
    *,
    sharded: bool = False,
) -> State:
    """Reads a checkpoint into a model and, when given, its optimizer."""
    stored = Stored.open(folder)
    if sharded and not stored.in_shards:
        raise CheckpointError(
            f"{folder} was written without --shard and cannot be split now: resume without --shard"
        )
    try:
        copy_into(model, stored.weights())
        if optimizer is not None:
            fill_optimizer(model, optimizer, stored.moments())
    except UnreadableShards as error:
        raise _damaged(folder / SHARDED, error) from error
    return stored.state


@dataclass(frozen=True)
class Stored:
    """A checkpoint on the disk whose state has been read; its tensors follow when they are asked for."""

    folder: Path
    state: State
    sums: Mapping[str, int]

    @classmethod
    def open(cls, folder: Path) -> Stored:
        try:
            stored = read_json(folder / STATE)
            if stored["format"] not in range(1, FORMAT + 1):
                raise CheckpointError(
                    f"{folder} has format {stored['format']}, this traindoctor reads up to {FORMAT}: "
                    "update traindoctor"
                )
            state = _state(stored["state"])
            if NAME.fullmatch(folder.name) and folder.name != f"step-{state.step:08d}":
                raise ValueError(f"it belongs to step {state.step}")
            return cls(folder, state, _sums(stored["crc32"]))
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise _damaged(folder / STATE, error) from error

    @property
    def in_shards(self) -> bool:
        return is_there(self.folder / SHARDED)

    def weights(self) -> Source:
        return self._shards() if self.in_shards else self._read(MODEL)

    def moments(self) -> Source:
        return self._shards() if self.in_shards else self._read(OPTIMIZER)

    def _shards(self) -> Source:
        folder = self.folder / SHARDED
        try:
            shards = ShardReader(folder, self.sums)
            for name, total in self.sums.items():
                if _checksum(folder / name) != total:
                    raise UnreadableShards(f"the checksum of {name} differs")
        except (OSError, UnreadableShards) as error:
            raise _damaged(folder, error) from error
        return shards

    def _read(self, name: str) -> Source:
        file = self.folder / name
        try:
            require_file(file)
            if _checksum(file) != self.sums[name]:
                raise ValueError("its checksum differs")
            return WholeFile(file)
        except (OSError, SafetensorError, KeyError, ValueError) as error:
            raise _damaged(file, error) from error


def require_size(folder: Path, num_parameters: int) -> None:
    """A model of other settings is refused before it is built: it could be too large for any machine."""
    if num_weights(Stored.open(folder).weights()) != num_parameters:
        raise does_not_fit("its size")


def _state(stored: Mapping[str, Any]) -> State:
    state = State(**stored)
    counts = (state.step, state.evals_since_best, state.best_step + 1)
    if not all(type(count) is int and 0 <= count < 10**12 for count in counts):
        raise ValueError("its counts are not counts")
    if not all(type(number) in (int, float) for number in (state.seconds, state.best_loss)):
        raise ValueError("its numbers are not numbers")
    if not (math.isfinite(state.seconds) and state.seconds >= 0):
        raise ValueError("its time is not a time")
    return state


def _sums(stored: Mapping[str, Any]) -> dict[str, int]:
    if not all(type(total) is int for total in stored.values()):
        raise ValueError("its checksums are not numbers")
    return dict(stored)


def choose(run: Path, which: str) -> Path:
    """The folder of `best`, `last` or a step number."""
    found = checkpoints(run)
    if not found:
        raise CheckpointError(f"{run} has no checkpoint yet: train it first")
    if which == "last":
        return found[-1]
    if which == "best":
        try:
            which = str(read_json(run / "checkpoints" / "best.json")["step"])
        except (OSError, ValueError, KeyError, TypeError):
            return found[-1]
    step = int(which) if which.isascii() and which.isdecimal() and len(which) < 13 else -1
    wanted = run / "checkpoints" / f"step-{step:08d}"
    if wanted not in found:
        steps = ", ".join(str(int(p.name.removeprefix("step-"))) for p in found)
        raise CheckpointError(
            f"{run} has no checkpoint {which}: choose best, last or one of {steps}"
        )
    return wanted


def load_run(
    run: Path, *, which: str = "best", device: torch.device | str = "cpu"
) -> tuple[Transformer, Tokenizer, RunConfig]:
    """A trained run, ready to write: model in evaluation mode, tokenizer, settings."""
    if not run.is_dir():
        raise CheckpointError(f"there is no run folder {run}")
    config = load_config(run / "config.json")
    tokenizer = load_tokenizer(run / "tokenizer.json")
    folder = choose(run, which)
    require_size(folder, config.model.num_parameters(tokenizer.vocab_size))
    model = Transformer(config.model, tokenizer.vocab_size)
    load(folder, model)
    return model.to(device).eval(), tokenizer, config


def _save_whole(
    folder: Path, state: State, model: nn.Module, optimizer: torch.optim.Optimizer
) -> None:
    with new_folder(folder) as inside:
        save_file({k: t.contiguous() for k, t in model_tensors(model).items()}, inside / MODEL)
        moments = optimizer_tensors(model, optimizer)
        save_file({k: t.contiguous() for k, t in moments.items()}, inside / OPTIMIZER)
        sums = {name: _checksum(inside / name) for name in (MODEL, OPTIMIZER)}
        _write_state(inside, state, sums)


def _damaged(file: Path, reason: object) -> CheckpointError:
    others = [p for p in checkpoints(file.parents[2]) if p != file.parent]
    go_on = f"to go on from {others[-1].name}" if others else "to begin again"
    return CheckpointError(f"{file} is damaged ({reason}): remove {file.parent} {go_on}")


def _checksum(file: Path) -> int:
    total = 0
    with file.open("rb") as handle:
        while part := handle.read(1 << 24):
            total = zlib.crc32(part, total)
    return total


def _write_state(folder: Path, state: State, sums: dict[str, int]) -> None:
    write_json(
        folder / STATE, {"format": FORMAT, "state": dataclasses.asdict(state), "crc32": sums}
    )


def _prune(run: Path, keep: int, best_step: int) -> None:
    best = f"step-{best_step:08d}"
    for old in checkpoints(run)[:-keep]:
        if old.name != best:
            shutil.rmtree(old, ignore_errors=True)
    for half in (run / "checkpoints").glob(f"{TEMPORARY}*"):
        shutil.rmtree(half, ignore_errors=True)


def _save_sharded(
    folder: Path,
    state: State,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    world: World,
) -> None:
    """All ranks write their shards; rank 0 gives the whole its name when all are on the disk."""
    beside = folder.with_name(f"{TEMPORARY}{folder.name}")
    try:
        with world.together(), writing(folder):
            if world.main:
                shutil.rmtree(beside, ignore_errors=True)
                (beside / SHARDED).mkdir(parents=True)
        with world.together(), writing(folder):
            reshard(model)
            tensors = {**model_tensors(model), **optimizer_tensors(model, optimizer)}
            file = save_shards(beside / SHARDED, tensors, rank=world.rank, size=world.size)
            total = _checksum(file)
        totals = world.each(total)
        with world.together(), writing(folder):
            if world.main:
                names = (shard_name(rank, world.size) for rank in range(world.size))
                _write_state(beside, state, dict(zip(names, totals)))
                sync_files(beside)
                shutil.rmtree(folder, ignore_errors=True)
                beside.rename(folder)
    except BaseException:
        if world.main:
            shutil.rmtree(beside, ignore_errors=True)
        raise

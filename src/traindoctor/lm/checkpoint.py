"""Checkpoints: a folder each, whole or not there; the last few and the best are kept.

    checkpoints/step-00000200/  model.safetensors  optimizer.safetensors  state.json
    checkpoints/best.json       which of them had the lowest validation loss

Sharded runs write sharded/ (torch.distributed.checkpoint) in place of the two safetensors files.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
import zlib
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from traindoctor.errors import CheckpointError
from traindoctor.lm.config import RunConfig
from traindoctor.lm.distributed import World
from traindoctor.lm.files import TEMPORARY, new_folder, write_json, writing
from traindoctor.lm.model import Transformer
from traindoctor.lm.shards import UnreadableShards, load_shards, save_shards
from traindoctor.lm.sources import load_config
from traindoctor.lm.tokenizer import Tokenizer, load_tokenizer

MODEL, OPTIMIZER, STATE, SHARDED = (
    "model.safetensors",
    "optimizer.safetensors",
    "state.json",
    "sharded",
)


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
    return sorted(p for p in (run / "checkpoints").glob("step-*") if (p / STATE).exists())


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
    try:
        stored = json.loads((folder / STATE).read_text(encoding="utf-8"))
        state = State(**stored["state"])
        sums = stored["crc32"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _damaged(folder / STATE, error) from error
    if (folder / SHARDED).exists():
        try:
            load_shards(folder / SHARDED, model, optimizer)
        except UnreadableShards as error:
            raise _damaged(folder / SHARDED, error) from error
        return state
    if sharded:
        raise CheckpointError(
            f"{folder} was written without --shard and cannot be split now: resume without --shard"
        )
    _copy_into(model, _read(folder / MODEL, sums))
    if optimizer is not None:
        _fill_optimizer(model, optimizer, _read(folder / OPTIMIZER, sums), folder)
    return state


def choose(run: Path, which: str) -> Path:
    """The folder of `best`, `last` or a step number."""
    found = checkpoints(run)
    if not found:
        raise CheckpointError(f"{run} has no checkpoint yet: train it first")
    if which == "last":
        return found[-1]
    if which == "best":
        try:
            step = json.loads((run / "checkpoints" / "best.json").read_text())["step"]
        except (OSError, ValueError, KeyError):
            return found[-1]
        which = str(step)
    wanted = run / "checkpoints" / f"step-{int(which):08d}" if which.isdecimal() else None
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
    model = Transformer(config.model, tokenizer.vocab_size)
    load(choose(run, which), model)
    return model.to(device).eval(), tokenizer, config


def _save_whole(
    folder: Path, state: State, model: nn.Module, optimizer: torch.optim.Optimizer
) -> None:
    with new_folder(folder) as inside:
        save_file(_model_tensors(model), inside / MODEL)
        save_file(_optimizer_tensors(model, optimizer), inside / OPTIMIZER)
        sums = {name: _checksum(inside / name) for name in (MODEL, OPTIMIZER)}
        _write_state(inside, state, sums)


def _model_tensors(model: nn.Module) -> dict[str, Tensor]:
    # named_parameters names a tied weight once, as safetensors wants it.
    return {name: p.detach().contiguous() for name, p in model.named_parameters()}


def _optimizer_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    names = {p: name for name, p in model.named_parameters()}
    return {
        f"{names[p]}|{key}": torch.as_tensor(value).contiguous()
        for p, values in optimizer.state.items()
        for key, value in values.items()
    }


def _copy_into(model: nn.Module, tensors: dict[str, Tensor]) -> None:
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name not in tensors or tensors[name].shape != parameter.shape:
                raise CheckpointError(
                    f"the checkpoint does not fit the model at {name}: it belongs to other settings"
                )
            parameter.copy_(tensors[name])


def _fill_optimizer(
    model: nn.Module, optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor], folder: Path
) -> None:
    names = {p: name for name, p in model.named_parameters()}
    by_parameter: dict[str, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        name, _, quantity = key.rpartition("|")
        by_parameter.setdefault(name, {})[quantity] = tensor
    packed = optimizer.state_dict()
    held = [p for group in optimizer.param_groups for p in group["params"]]
    packed["state"] = {i: by_parameter[names[p]] for i, p in enumerate(held) if by_parameter}
    optimizer.load_state_dict(packed)


def _read(file: Path, sums: dict[str, int]) -> dict[str, Tensor]:
    try:
        if _checksum(file) != sums[file.name]:
            raise _damaged(file, "its checksum differs")
        return load_file(file)
    except (OSError, SafetensorError, KeyError) as error:
        raise _damaged(file, error) from error


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
    write_json(folder / STATE, {"format": 1, "state": dataclasses.asdict(state), "crc32": sums})


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
                beside.mkdir(parents=True)
        with world.together(), writing(folder):
            save_shards(beside / SHARDED, model, optimizer)
        with world.together(), writing(folder):
            if world.main:
                _write_state(beside, state, {})
                shutil.rmtree(folder, ignore_errors=True)
                beside.rename(folder)
    except BaseException:
        if world.main:
            shutil.rmtree(beside, ignore_errors=True)
        raise

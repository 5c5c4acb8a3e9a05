"""A sharded model on the disk (torch.distributed.checkpoint): written by all ranks, read by any number."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch
from torch import nn


class UnreadableShards(Exception):
    """Shards that are damaged or missing; the message is one line."""


def save_shards(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Writes every rank's part of the weights and moments; all ranks call it, and raise if one fails."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict

    weights, moments = get_state_dict(model, optimizer)
    dcp.save({"model": weights, "optimizer": moments}, checkpoint_id=folder)


def load_shards(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer | None) -> None:
    """Reads shards into a model that is sharded otherwise, or not at all."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    wanted: dict[str, Any] = {"model": model.state_dict()}
    if optimizer is not None:
        wanted["model"], wanted["optimizer"] = get_state_dict(model, optimizer)
    try:
        with warnings.catch_warnings():
            # It warns that one process reads alone, which is what is meant.
            warnings.filterwarnings("ignore", message="torch.distributed is disabled")
            dcp.load(wanted, checkpoint_id=folder)
    except CheckpointException as error:  # not an Exception, but a class beside it
        causes = [failure for failure, _ in error.failures.values()]
        raise UnreadableShards(_first_line(causes[0] if causes else error)) from error
    except Exception as error:
        raise UnreadableShards(_first_line(error)) from error
    if optimizer is None:
        model.load_state_dict(wanted["model"])
    else:
        set_state_dict(
            model,
            optimizer,
            model_state_dict=wanted["model"],
            optim_state_dict=wanted["optimizer"],
        )


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]

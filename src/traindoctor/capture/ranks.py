"""Which rank this process is. No collective is ever called: they can deadlock."""

from __future__ import annotations

import os

import torch.distributed as dist


def world() -> tuple[int, int]:
    """(rank, world size); the process group knows best, then the launcher's environment."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    try:
        return int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    except ValueError:
        return 0, 1


def rank_of_this_process() -> int:
    return world()[0]

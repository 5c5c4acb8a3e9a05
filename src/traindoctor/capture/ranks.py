"""Which rank this process is. No collective is ever called: they can deadlock."""

from __future__ import annotations

import torch.distributed as dist

from traindoctor.capture import launchers


def world() -> tuple[int, int]:
    """(rank, world size); the process group knows best, then the launcher's environment."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return launchers.rank(), launchers.world_size()


def rank_of_this_process() -> int:
    return world()[0]

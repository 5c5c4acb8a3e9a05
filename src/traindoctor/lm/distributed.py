"""Several processes under torchrun: who I am, how the model is wrapped, what we agree on."""

import contextlib
import datetime
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from traindoctor.errors import ConfigError, TraindoctorError
from traindoctor.lm.model import Transformer

# The other ranks wait this long while rank 0 tokenises the text.
PATIENCE = datetime.timedelta(hours=4)
# What gloo says to those who wait for a process that has gone.
PEER_GONE = ("Connection closed by peer", "Connection reset by peer")
# Whether this process had a process group of ours: gloo's threads live as long as anything refers to the group.
threads_remain = False


@dataclass(frozen=True)
class World:
    """The processes of this run. One process is a world of size 1, and every method then does nothing."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    @property
    def main(self) -> bool:
        return self.rank == 0

    def barrier(self) -> None:
        if self.size > 1:
            dist.barrier()

    def mean(self, values: Tensor) -> Tensor:
        """The mean over all ranks."""
        if self.size > 1:
            values = values.to(self.device)
            dist.all_reduce(values)
            values = values / self.size
        return values

    def any(self, flag: bool) -> bool:
        """Whether one of the ranks says so."""
        if self.size == 1:
            return flag
        return self.mean(torch.tensor([float(flag)])).item() > 0

    def first(self, value: float) -> float:
        """Rank 0's value, on all ranks."""
        if self.size == 1:
            return value
        told = torch.tensor([value], dtype=torch.float64, device=self.device)
        dist.broadcast(told, src=0)
        return float(told.item())

    def each(self, number: int) -> list[int]:
        """Every rank's number, in order of ranks; as plain integers, never as a pickled object."""
        if self.size == 1:
            return [number]
        told = torch.zeros(self.size, dtype=torch.int64, device=self.device)
        told[self.rank] = number
        dist.all_reduce(told)
        return [int(each) for each in told.tolist()]

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """All ranks leave this block alike: one that cannot go on says why, the others do not wait for it."""
        failure: TraindoctorError | None = None
        try:
            yield
        except TraindoctorError as error:
            failure = error
        if self.any(failure is not None):
            raise failure or _peer_failed()

    def rows(self, batch: int) -> int:
        """Rows of a batch for one rank."""
        if batch % self.size:
            raise ConfigError(
                f"--batch {batch} cannot be shared by {self.size} processes: "
                f"choose a multiple of {self.size}"
            )
        return batch // self.size


def _peer_failed() -> TraindoctorError:
    return TraindoctorError(
        "another process of this run could not go on: its own message says why", slug="peer-failed"
    )


def pick_device(wanted: str, local_rank: int = 0) -> torch.device:
    """The device behind --device; asking for one that is not there is an error."""
    if wanted == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda", local_rank)
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(wanted)
    except RuntimeError as error:
        raise ConfigError(
            f"there is no device {wanted!r}: choose auto, cpu, cuda or mps"
        ) from error
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise ConfigError(
                "--device cuda was asked for, but PyTorch sees no GPU: use --device cpu"
            )
        index = local_rank if device.index is None else device.index
        if index >= torch.cuda.device_count():
            raise ConfigError(
                f"--device cuda:{index} was asked for, but there are {torch.cuda.device_count()} GPUs"
            )
        return torch.device("cuda", index)
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise ConfigError("--device mps was asked for, but PyTorch sees none: use --device cpu")
    if device.type not in ("cpu", "mps"):
        raise ConfigError(f"--device {wanted} is not supported: choose auto, cpu, cuda or mps")
    return device


@contextlib.contextmanager
def joined(device: str) -> Iterator[World]:
    """This process's place in the world: torchrun's environment, or alone."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    rank, local_rank = int(os.environ.get("RANK", "0")), int(os.environ.get("LOCAL_RANK", "0"))
    chosen = pick_device(device, local_rank)
    if chosen.type == "cuda":
        torch.cuda.set_device(chosen)
    if size == 1:
        yield World(device=chosen)
        return
    ours = not dist.is_initialized()
    if ours:
        backend = "nccl" if chosen.type == "cuda" else "gloo"
        dist.init_process_group(backend, timeout=PATIENCE)
        global threads_remain
        threads_remain = True
    try:
        yield World(rank, size, local_rank, chosen)
    except RuntimeError as error:
        if not any(text in str(error) for text in PEER_GONE):
            raise
        raise _peer_failed() from error
    finally:
        if ours:
            dist.destroy_process_group()


def shard(model: Transformer) -> None:
    """FSDP2: each block, then the rest, split over the ranks; gathered where they are used."""
    from torch.distributed.fsdp import fully_shard

    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)


def reshard(model: nn.Module) -> None:
    """Each rank has its part again: after a forward pass some parameters still stand gathered."""
    from torch.distributed.fsdp import FSDPModule

    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def replicate(model: nn.Module, world: World) -> nn.Module:
    """DDP, or the model itself when alone."""
    if world.size == 1:
        return model
    devices = [world.device.index] if world.device.type == "cuda" else None
    # The bucket holds the gradients themselves: no second copy of them.
    return DistributedDataParallel(model, device_ids=devices, gradient_as_bucket_view=True)


def without_sync(model: nn.Module, last: bool) -> AbstractContextManager[None]:
    """Gradients are exchanged in the last of the accumulated passes only."""
    if isinstance(model, DistributedDataParallel) and not last:
        return model.no_sync()
    return contextlib.nullcontext()

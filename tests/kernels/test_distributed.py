"""The fused loss inside DDP and FSDP2 models gives the gradients of one process on all the data."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn

from traindoctor import linear_cross_entropy

WORLD = 2


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(4, 8)
        self.head = nn.Linear(8, 12, bias=False)

    def forward(self, x: Tensor, targets: Tensor) -> Tensor:
        return linear_cross_entropy(self.body(x).tanh(), self.head.weight, targets)


def make() -> tuple[Model, Tensor, Tensor]:
    torch.manual_seed(0)
    return Model(), torch.randn(WORLD, 6, 4), torch.randint(12, (WORLD, 6))


def work(rank: int, kind: str, folder: str) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", GLOO_SOCKET_IFNAME="lo")
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=WORLD
    )
    model, x, targets = make()
    if kind == "ddp":
        wrapped = nn.parallel.DistributedDataParallel(model)
    else:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        wrapped = fully_shard(model, mesh=init_device_mesh("cpu", (WORLD,)))
    wrapped(x[rank], targets[rank]).backward()
    gradients = {
        name: p.grad.full_tensor() if hasattr(p.grad, "full_tensor") else p.grad
        for name, p in model.named_parameters()
    }
    if rank == 0:
        torch.save(gradients, f"{folder}/gradients.pt")
    dist.destroy_process_group()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ddp", "fsdp2"])
def test_gradients_are_those_of_one_process(kind: str, tmp_path: Path) -> None:
    mp.spawn(work, args=(kind, str(tmp_path)), nprocs=WORLD)
    found = torch.load(tmp_path / "gradients.pt")
    model, x, targets = make()
    model(x, targets).backward()
    for name, p in model.named_parameters():
        torch.testing.assert_close(found[name], p.grad, msg=lambda text, n=name: f"{n}: {text}")

import os
import socket
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

WORLD = 2
STEPS = 130


class MixerBlock(nn.Module):
    def __init__(self, tokens, dim):
        super().__init__()
        self.n1 = nn.LayerNorm(dim)
        self.tok = nn.Sequential(nn.Linear(tokens, 48), nn.GELU(), nn.Linear(48, tokens))
        self.n2 = nn.LayerNorm(dim)
        self.chn = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def forward(self, x):
        x = x + self.tok(self.n1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.chn(self.n2(x))


class Mixer(nn.Module):
    def __init__(self, dim=64, depth=3):
        super().__init__()
        self.patch = nn.Conv2d(1, dim, 4, 4)
        self.blocks = nn.Sequential(*[MixerBlock(25, dim) for _ in range(depth)])
        self.head = nn.Linear(dim, 4)

    def forward(self, x):
        x = self.patch(x).flatten(2).transpose(1, 2)
        return self.head(self.blocks(x).mean(1))


def scenes(n, gen):
    lin = torch.linspace(-1, 1, 20)
    yy, xx = torch.meshgrid(lin, lin, indexing="ij")
    c = 1.2 * torch.rand(n, 4, generator=gen) - 0.6
    img = torch.zeros(n, 20, 20)
    for k, sign in ((0, 1.0), (2, -1.0)):
        r = (xx - c[:, k, None, None]) ** 2 + (yy - c[:, k + 1, None, None]) ** 2
        img += sign * torch.exp(-r / 0.06)
    img += 0.1 * torch.randn(img.shape, generator=gen)
    return img[:, None], 4 * c


def work(rank, port):
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "127.0.0.1", str(port)
    dist.init_process_group("gloo", rank=rank, world_size=WORLD)
    torch.set_num_threads(1)
    torch.manual_seed(21)
    model = DistributedDataParallel(Mixer())
    opt = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, weight_decay=1e-4)
    warm = torch.optim.lr_scheduler.LinearLR(opt, 0.1, 1.0, 20)
    gen = torch.Generator().manual_seed(300 + rank)
    vx, vy = scenes(400, torch.Generator().manual_seed(1))
    for step in range(STEPS):
        x, y = scenes(20, gen)
        loss = F.mse_loss(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        warm.step()
        if rank == 0 and (step % 15 == 0 or step == STEPS - 1):
            with torch.no_grad():
                val = F.mse_loss(model.module(vx), vy).item()
            print("step", step, "loss", round(loss.item(), 4), "val", round(val, 4))
            sys.stdout.flush()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    mp.spawn(work, args=(port,), nprocs=WORLD)

import os
import socket

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh

DP, TP = 2, 2
D_IN, D, HID, CLASSES, LAYERS = 16, 48, 96, 6, 3
STEPS, BATCH = 140, 32


class EnterTP(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx, g):
        g = g.contiguous().clone()
        dist.all_reduce(g, group=ctx.group)
        return g, None


class LeaveTP(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        y = x.contiguous().clone()
        dist.all_reduce(y, group=group)
        return y

    @staticmethod
    def backward(ctx, g):
        return g, None


class ParallelMLP(nn.Module):
    def __init__(self, d, hidden, group, index, parts):
        super().__init__()
        self.group = group
        w1 = torch.randn(hidden, d) * d ** -0.5
        w2 = torch.randn(d, hidden) * hidden ** -0.5 * 0.5
        self.w1 = nn.Parameter(w1.chunk(parts, 0)[index].clone())
        self.b1 = nn.Parameter(torch.zeros(hidden // parts))
        self.w2 = nn.Parameter(w2.chunk(parts, 1)[index].clone())
        self.b2 = nn.Parameter(torch.zeros(d))

    def forward(self, x):
        h = F.gelu(F.linear(EnterTP.apply(x, self.group), self.w1, self.b1))
        return LeaveTP.apply(F.linear(h, self.w2), self.group) + self.b2


class Net(nn.Module):
    def __init__(self, mesh):
        super().__init__()
        group, index = mesh.get_group("tp"), mesh.get_local_rank("tp")
        self.stem = nn.Linear(D_IN, D)
        self.norms = nn.ModuleList(nn.LayerNorm(D) for _ in range(LAYERS))
        self.mlps = nn.ModuleList(ParallelMLP(D, HID, group, index, TP) for _ in range(LAYERS))
        self.out = nn.Linear(D, CLASSES)

    def forward(self, x):
        x = self.stem(x)
        for n, m in zip(self.norms, self.mlps):
            x = x + m(n(x))
        return self.out(x)


def make_data():
    g = torch.Generator().manual_seed(11)
    x = torch.randn(12500, D_IN, generator=g)
    a = torch.randn(D_IN, 12, generator=g) / D_IN ** 0.5
    b = torch.randn(12, CLASSES, generator=g)
    y = (torch.tanh(2.0 * x @ a) @ b).argmax(1)
    return x[:12000], y[:12000], x[12000:], y[12000:]


def sync_grads(model, mesh):
    group = mesh.get_group(mesh_dim=1)
    n = dist.get_world_size(group)
    for p in model.parameters():
        dist.all_reduce(p.grad, group=group)
        p.grad /= n


def main(rank, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(DP * TP))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=DP * TP)
    mesh = init_device_mesh("cpu", (DP, TP), mesh_dim_names=("dp", "tp"))
    dp_rank = mesh.get_local_rank("dp")
    torch.manual_seed(0)
    model = Net(mesh)
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, STEPS, eta_min=1e-4)
    xs, ys, vx, vy = make_data()
    mine = torch.arange(dp_rank, len(xs), DP)
    gen = torch.Generator().manual_seed(500 + dp_rank)
    for step in range(STEPS):
        idx = mine[torch.randint(len(mine), (BATCH,), generator=gen)]
        loss = F.cross_entropy(model(xs[idx]), ys[idx])
        opt.zero_grad()
        loss.backward()
        sync_grads(model, mesh)
        opt.step()
        sched.step()
        if step % 20 == 0 or step == STEPS - 1:
            with torch.no_grad():
                logits = model(vx)
            if rank == 0:
                acc = (logits.argmax(1) == vy).float().mean()
                print(f"{step:4d} loss {loss.item():.4f} val {F.cross_entropy(logits, vy).item():.4f} acc {acc.item():.3f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    sock = socket.socket()
    sock.bind(("127.0.0.1", 0))
    port = sock.getsockname()[1]
    sock.close()
    mp.start_processes(main, args=(port,), nprocs=DP * TP, start_method="spawn")

import os
import socket

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn import functional as F

INNER, ROUNDS, BATCH, V, T, D = 12, 14, 16, 40, 28, 48


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(V, D)
        self.pos = nn.Parameter(torch.zeros(T, D))
        layer = nn.TransformerEncoderLayer(D, 4, 2 * D, dropout=0.0, batch_first=True, norm_first=True)
        self.enc = nn.TransformerEncoder(layer, 2, nn.LayerNorm(D), enable_nested_tensor=False)
        self.out = nn.Linear(D, V)

    def forward(self, x):
        m = nn.Transformer.generate_square_subsequent_mask(x.size(1))
        return self.out(self.enc(self.emb(x) + self.pos, mask=m, is_causal=True))


def text(n, gen):
    world = torch.Generator().manual_seed(0)
    a, b = torch.randperm(V, generator=world), torch.randperm(V, generator=world)
    x = torch.randint(V, (n, T + 1), generator=gen)
    for t in range(1, T + 1):
        u = torch.rand(n, generator=gen)
        x[:, t] = torch.where(u < 0.6, a[x[:, t - 1]], torch.where(u < 0.9, b[x[:, t - 1]], x[:, t]))
    return x


def lm_loss(net, x):
    return F.cross_entropy(net(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten())


def site(rank, size, port):
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "127.0.0.1", str(port)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=size)
    torch.manual_seed(7)
    net = Net()
    for p in net.parameters():
        dist.broadcast(p.data, 0)
    anchor = [p.detach().clone().requires_grad_() for p in net.parameters()]
    outer = torch.optim.SGD(anchor, lr=0.8, momentum=0.5, nesterov=True)
    inner = torch.optim.AdamW(net.parameters(), lr=3e-3, weight_decay=0.01)
    gen = torch.Generator().manual_seed(1000 + rank)
    held = text(64, torch.Generator().manual_seed(5))
    for rnd in range(ROUNDS):
        total = 0.0
        for _ in range(INNER):
            loss = lm_loss(net, text(BATCH, gen))
            inner.zero_grad()
            loss.backward()
            inner.step()
            total += loss.item()
        for a, p in zip(anchor, net.parameters()):
            delta = a.detach() - p.detach()
            dist.all_reduce(delta)
            a.grad = delta / size
        outer.step()
        with torch.no_grad():
            for a, p in zip(anchor, net.parameters()):
                p.copy_(a)
            val = lm_loss(net, held).item()
        if rank == 0:
            print(f"round {rnd:2d} local loss {total / INNER:.4f} merged held-out {val:.4f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    mp.spawn(site, args=(2, port), nprocs=2)

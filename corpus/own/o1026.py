import os
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn
import torch.nn.functional as F
from pydoc_data.topics import topics

ROUNDS, INNER, BLOCK, BATCH, DIM = 19, 12, 48, 12, 64


class Mixer(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.h = heads
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.o = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.ff = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d))

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, t, 3, self.h, d // self.h).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(a.transpose(1, 2).reshape(b, t, d))
        return x + self.ff(self.n2(x))


class CharGPT(nn.Module):
    def __init__(self, vocab):
        super().__init__()
        self.tok, self.pos = nn.Embedding(vocab, DIM), nn.Embedding(BLOCK, DIM)
        self.blocks = nn.Sequential(Mixer(DIM, 4), Mixer(DIM, 4))
        self.norm = nn.LayerNorm(DIM)
        for p in (self.tok.weight, self.pos.weight):
            nn.init.normal_(p, std=0.02)

    def forward(self, x):
        h = self.norm(self.blocks(self.tok(x) + self.pos.weight[: x.size(1)]))
        return h @ self.tok.weight.t()


class OuterNesterov:
    """Outer optimizer on the averaged displacement of the workers over one round."""

    def __init__(self, params, lr=0.7, momentum=0.6):
        self.params, self.lr, self.mu = list(params), lr, momentum
        self.anchor = [p.detach().clone() for p in self.params]
        self.buf = [torch.zeros_like(p) for p in self.params]

    @torch.no_grad()
    def round(self, world):
        for p, a, m in zip(self.params, self.anchor, self.buf):
            delta = a - p
            dist.all_reduce(delta)
            delta /= world
            m.mul_(self.mu).add_(delta)
            a.sub_(self.lr * (delta + self.mu * m))
            p.copy_(a)


def windows(data, g):
    ix = torch.randint(0, len(data) - BLOCK - 1, (BATCH,), generator=g).tolist()
    w = torch.stack([data[i:i + BLOCK + 1] for i in ix])
    return w[:, :-1], w[:, 1:]


def main(rank, world, init):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=init, rank=rank, world_size=world)
    text = "".join(topics[k] for k in sorted(topics))[:150000]
    chars = sorted(set(text))
    idx = {c: i for i, c in enumerate(chars)}
    data = torch.tensor([idx[c] for c in text])
    held = data[-12000:]
    shard = data[:-12000].chunk(world)[rank]

    torch.manual_seed(rank)
    g = torch.Generator().manual_seed(100 + rank)
    net = CharGPT(len(chars))
    for p in net.parameters():
        dist.broadcast(p.data, src=0)
    inner = torch.optim.AdamW(net.parameters(), lr=2.5e-3, betas=(0.9, 0.98), weight_decay=0.05)
    outer = OuterNesterov(net.parameters())
    n = 0
    for r in range(ROUNDS):
        for _ in range(INNER):
            for group in inner.param_groups:
                group["lr"] = 2.5e-3 * min(1.0, (n + 1) / 20) * (1 - 0.8 * n / (ROUNDS * INNER))
            x, y = windows(shard, g)
            loss = F.cross_entropy(net(x).flatten(0, 1), y.flatten())
            inner.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            inner.step()
            n += 1
        outer.round(world)
        if rank == 0 and (r % 3 == 0 or r == ROUNDS - 1):
            with torch.no_grad():
                w = held[: len(held) // (BLOCK + 1) * (BLOCK + 1)].view(-1, BLOCK + 1)[:120]
                hl = F.cross_entropy(net(w[:, :-1]).flatten(0, 1), w[:, 1:].flatten()).item()
            print(f"round {r:2d} inner step {n:3d} loss {loss.item():.4f} held-out {hl:.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as d:
        mp.spawn(main, args=(2, "file://" + os.path.join(d, "store")), nprocs=2)

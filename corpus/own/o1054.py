import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F


def parse():
    p = argparse.ArgumentParser()
    p.add_argument("--vocab", type=int, default=40)
    p.add_argument("--dim", type=int, default=64)
    p.add_argument("--depth", type=int, default=2)
    p.add_argument("--ahead", type=int, default=3)
    p.add_argument("--length", type=int, default=36)
    p.add_argument("--batch", type=int, default=16)
    p.add_argument("--steps", type=int, default=240)
    p.add_argument("--lr", type=float, default=3e-3)
    p.add_argument("--seed", type=int, default=6)
    return p.parse_args()


class Block(nn.Module):
    def __init__(self, dim, heads=4):
        super().__init__()
        self.heads = heads
        self.a, self.b = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 3 * dim), nn.GELU(), nn.Linear(3 * dim, dim))

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = [t.view(B, T, self.heads, -1).transpose(1, 2) for t in self.qkv(self.a(x)).chunk(3, -1)]
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(B, T, C))
        return x + self.mlp(self.b(x))


class MultiTokenLM(nn.Module):
    def __init__(self, a):
        super().__init__()
        self.emb = nn.Embedding(a.vocab, a.dim)
        self.pos = nn.Embedding(a.length, a.dim)
        self.trunk = nn.Sequential(*[Block(a.dim) for _ in range(a.depth)])
        self.arms = nn.ModuleList(Block(a.dim) for _ in range(a.ahead))
        self.norm = nn.LayerNorm(a.dim)
        self.unembed = nn.Linear(a.dim, a.vocab, bias=False)

    def forward(self, ids):
        h = self.trunk(self.emb(ids) + self.pos(torch.arange(ids.size(1))))
        return [self.unembed(self.norm(arm(h))) for arm in self.arms]


def stream(a, gen):
    world = torch.Generator().manual_seed(1)
    nxt = torch.stack([torch.randperm(a.vocab, generator=world) for _ in range(2)])
    n = a.batch
    while True:
        x = torch.randint(a.vocab, (n, a.length + a.ahead), generator=gen)
        for t in range(1, x.size(1)):
            u = torch.rand(n, generator=gen)
            x[:, t] = torch.where(u < 0.7, nxt[0][x[:, t - 1]], torch.where(u < 0.95, nxt[1][x[:, t - 1]], x[:, t]))
        yield x


def main():
    a = parse()
    torch.manual_seed(a.seed)
    model = MultiTokenLM(a)
    opt = torch.optim.AdamW(model.parameters(), lr=a.lr, weight_decay=0.01)
    warm = torch.optim.lr_scheduler.LinearLR(opt, 0.05, 1.0, 20)
    data = stream(a, torch.Generator().manual_seed(a.seed))
    for step in range(1, a.steps + 1):
        seq = next(data)
        ids = seq[:, : a.length]
        per_head = []
        for k, logits in enumerate(model(ids), start=1):
            target = seq[:, k: k + a.length]
            per_head.append(F.cross_entropy(logits.transpose(1, 2), target))
        loss = sum(per_head) / a.ahead
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        warm.step()
        if step % 20 == 0:
            print(f"step {step:4d} loss {loss.item():.3f} heads " + " ".join(f"{l.item():.3f}" for l in per_head))
    with torch.no_grad():
        seq = torch.cat([next(data) for _ in range(6)])
        outs = model(seq[:, : a.length])
        for k, logits in enumerate(outs, start=1):
            acc = (logits.argmax(-1) == seq[:, k: k + a.length]).float().mean().item()
            print(f"accuracy of the token {k} ahead: {acc:.3f}")


main()

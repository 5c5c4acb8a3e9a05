from dataclasses import dataclass

import torch
from torch import nn
import torch.nn.functional as F


@dataclass
class Args:
    n_sym: int = 24
    seq: int = 20
    width: int = 64
    heads: int = 4
    depth: int = 2
    batch: int = 24
    iters: int = 125
    lr: float = 1.6e-3
    seed: int = 21


class SelfAttention(nn.Module):
    def __init__(self, a):
        super().__init__()
        self.h = a.heads
        self.d = a.width // a.heads
        self.qkv = nn.Linear(a.width, 3 * a.width, bias=False)
        self.out = nn.Linear(a.width, a.width)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.h, self.d).unbind(2)
        scores = torch.einsum("bqhd,bkhd->bqkh", q, k) * self.d ** -0.5
        probs = scores.softmax(dim=2)
        y = torch.einsum("bqkh,bkhd->bqhd", probs, v)
        return self.out(y.reshape(b, t, c))


class Block(nn.Module):
    def __init__(self, a):
        super().__init__()
        self.n1 = nn.LayerNorm(a.width)
        self.att = SelfAttention(a)
        self.n2 = nn.LayerNorm(a.width)
        self.mlp = nn.Sequential(nn.Linear(a.width, 2 * a.width), nn.GELU(), nn.Linear(2 * a.width, a.width))

    def forward(self, x):
        x = x + self.att(self.n1(x))
        return x + self.mlp(self.n2(x))


class Tagger(nn.Module):
    def __init__(self, a):
        super().__init__()
        self.sym = nn.Embedding(a.n_sym, a.width)
        self.pos = nn.Embedding(a.seq, a.width)
        nn.init.normal_(self.sym.weight, std=0.5)
        nn.init.normal_(self.pos.weight, std=0.5)
        self.blocks = nn.Sequential(*[Block(a) for _ in range(a.depth)])
        self.norm = nn.LayerNorm(a.width)
        self.head = nn.Linear(a.width, a.n_sym)

    def forward(self, ids):
        x = self.sym(ids) + self.pos(torch.arange(ids.shape[1]))
        return self.head(self.norm(self.blocks(x)))


def draw(a, n, g):
    ids = torch.randint(0, a.n_sym, (n, a.seq), generator=g)
    perm = (torch.arange(a.seq) * 7 + 5) % a.seq
    return ids, ids[:, perm]


def run(a):
    torch.manual_seed(a.seed)
    g = torch.Generator().manual_seed(a.seed + 1)
    model = Tagger(a)
    opt = torch.optim.AdamW(model.parameters(), lr=a.lr, weight_decay=0.01)
    warm = torch.optim.lr_scheduler.LinearLR(opt, 0.1, 1.0, 30)
    held = draw(a, 96, g)
    for it in range(a.iters):
        ids, tags = draw(a, a.batch, g)
        loss = F.cross_entropy(model(ids).transpose(1, 2), tags)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        warm.step()
        if it % 12 == 0 or it == a.iters - 1:
            with torch.no_grad():
                out = model(held[0])
                acc = (out.argmax(-1) == held[1]).float().mean()
            print(f"{it:4d} loss {loss.item():.4f} held acc {acc.item():.3f}")


run(Args())

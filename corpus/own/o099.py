import math
import torch
import torch.nn as nn
import torch.nn.functional as F
from pydoc_data.topics import topics

torch.set_num_threads(1)


class Attention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.wq = nn.Linear(dim, dim, bias=False)
        self.wkv = nn.Linear(dim, 2 * (dim // heads), bias=False)
        self.wo = nn.Linear(dim, dim, bias=False)

    def forward(self, x):
        b, t, d = x.shape
        q = self.wq(x).view(b, t, self.heads, -1).transpose(1, 2)
        k, v = self.wkv(x).chunk(2, -1)
        s = torch.einsum("bhid,bjd->bhij", q, k) / math.sqrt(k.shape[-1])
        s = s.masked_fill(torch.ones(t, t, dtype=torch.bool).triu(1), -torch.inf)
        o = torch.einsum("bhij,bjd->bihd", s.softmax(-1), v)
        return self.wo(o.reshape(b, t, d))


class Net(nn.Module):
    def __init__(self, vocab, dim=80, heads=4, depth=3):
        super().__init__()
        self.wte = nn.Embedding(vocab, dim)
        self.attn = nn.ModuleList([Attention(dim, heads) for _ in range(depth)])
        self.mlp = nn.ModuleList([nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim)) for _ in range(depth)])
        self.n1 = nn.ModuleList([nn.LayerNorm(dim) for _ in range(depth)])
        self.n2 = nn.ModuleList([nn.LayerNorm(dim) for _ in range(depth)])
        self.nf = nn.LayerNorm(dim)
        self.scale = dim ** -0.5
        nn.init.normal_(self.wte.weight, std=0.5)

    def forward(self, ids):
        h = self.wte(ids)
        for a, m, n1, n2 in zip(self.attn, self.mlp, self.n1, self.n2):
            h = h + a(n1(h))
            h = h + m(n2(h))
        return F.linear(self.nf(h), self.wte.weight) * self.scale


def stages():
    yield 12, 48, 60
    yield 24, 24, 60
    yield 48, 12, 60
    yield 96, 6, 60


def run():
    torch.manual_seed(8)
    text = "".join(topics[k] for k in sorted(topics, key=lambda s: len(topics[s])))
    alphabet = sorted(set(text))
    table = {c: i for i, c in enumerate(alphabet)}
    data = torch.tensor([table[c] for c in text])
    net = Net(len(alphabet))
    opt = torch.optim.AdamW(net.parameters(), lr=2e-3, betas=(0.9, 0.98), weight_decay=0.05)
    done = 0
    for length, rows, count in stages():
        for _ in range(count):
            at = torch.randint(0, len(data) - length - 1, (rows,))
            chunk = data[at[:, None] + torch.arange(length + 1)]
            loss = F.cross_entropy(net(chunk[:, :-1]).flatten(0, 1), chunk[:, 1:].flatten())
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            opt.step()
            if done % 20 == 0:
                print("step", done, "length", length, "loss", round(loss.item(), 4))
            done += 1
    print("final loss", round(loss.item(), 4))


run()

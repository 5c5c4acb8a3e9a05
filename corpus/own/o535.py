import math
import random
import re
from collections import Counter

import torch
import torch.nn as nn
import torch.nn.functional as F
from pydoc_data.topics import topics

torch.manual_seed(42)

V, D, H, L, T = 500, 64, 8, 2, 40
STEPS, B = 300, 16
SMOOTH = 0.1

paragraphs = list(dict.fromkeys(p for t in topics.values() for p in t.split("\n\n")))
random.Random(2).shuffle(paragraphs)
tokens = re.findall(r"\w+|[^\w\s]", " ".join(paragraphs).lower())
common = [w for w, _ in Counter(tokens).most_common(V - 1)]
vocab = {w: i + 1 for i, w in enumerate(common)}
ids = torch.tensor([vocab.get(w, 0) for w in tokens])
split = int(len(ids) * 0.9)
tr, va = ids[:split], ids[split:]


def slopes(n):
    return torch.tensor([2.0 ** (-8.0 * (i + 1) / n) for i in range(n)])


def alibi(n_heads, length):
    pos = torch.arange(length)
    dist = pos[None, :] - pos[:, None]
    bias = slopes(n_heads)[:, None, None] * dist[None]
    return bias.masked_fill(dist[None] > 0, float("-inf"))


class Attn(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(D, D, bias=False) for _ in range(4))

    def forward(self, x, bias):
        b, t, _ = x.shape
        heads = lambda z: z.reshape(b, t, H, D // H).permute(0, 2, 1, 3)
        q, k, v = heads(self.q(x)), heads(self.k(x)), heads(self.v(x))
        att = q @ k.transpose(-2, -1) / math.sqrt(D // H) + bias
        att = att.softmax(-1)
        return self.o((att @ v).permute(0, 2, 1, 3).reshape(b, t, D))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(D), nn.LayerNorm(D)
        self.att = Attn()
        self.mlp = nn.Sequential(nn.Linear(D, 4 * D), nn.ReLU(), nn.Linear(4 * D, D))
        self.drop = nn.Dropout(0.05)

    def forward(self, x, bias):
        x = x + self.drop(self.att(self.n1(x), bias))
        return x + self.drop(self.mlp(self.n2(x)))


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(V, D)
        nn.init.normal_(self.emb.weight, std=0.02)
        self.blocks = nn.ModuleList([Block() for _ in range(L)])
        self.norm = nn.LayerNorm(D)
        self.register_buffer("bias", alibi(H, 2 * T), persistent=False)

    def forward(self, x):
        t = x.size(1)
        h = self.emb(x)
        for blk in self.blocks:
            h = blk(h, self.bias[:, :t, :t])
        return self.norm(h) @ self.emb.weight.t()


net = Decoder()
opt = torch.optim.AdamW(net.parameters(), lr=3e-3, betas=(0.9, 0.98), weight_decay=0.01)
sched = torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=3e-3, total_steps=STEPS, pct_start=0.15)
criterion = nn.CrossEntropyLoss(label_smoothing=SMOOTH)


@torch.no_grad()
def evaluate(length, rows=48):
    net.eval()
    n = min(rows, (len(va) - 1) // length)
    x = va[: n * length].view(n, length)
    y = va[1: n * length + 1].view(n, length)
    nll = F.cross_entropy(net(x).transpose(1, 2), y).item()
    net.train()
    return nll


for step in range(STEPS):
    i = torch.randint(0, len(tr) - T, (B,))
    xy = torch.stack([tr[j: j + T + 1] for j in i.tolist()])
    logits = net(xy[:, :-1])
    loss = criterion(logits.transpose(1, 2), xy[:, 1:])
    opt.zero_grad(set_to_none=True)
    loss.backward()
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    opt.step()
    sched.step()
    if step % 50 == 0 or step + 1 == STEPS:
        print(f"{step:4d}  smoothed train loss {loss.item():.3f}   val nll@{T} {evaluate(T):.3f}   val nll@{2*T} {evaluate(2*T, 24):.3f}")

import math
import random
import string
from pydoc_data.topics import topics

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
random.seed(29)
torch.manual_seed(29)


class Shards:
    def __init__(self, batch, ctx):
        self.batch, self.ctx = batch, ctx
        prose = " ".join(" ".join(topics[k].split()) for k in sorted(topics))
        blob = "".join(random.choices(string.ascii_letters + string.digits + "+/", k=12000))
        self.chars = sorted(set(prose + blob))
        look = {c: i for i, c in enumerate(self.chars)}
        size = 6000
        whole = prose + " " * (-len(prose) % size)
        pieces = [whole[i:i + size] for i in range(0, len(whole), size)][:70]
        pieces += [blob[:size], blob[size:]]
        self.shards = [torch.tensor([look[c] for c in p]) for p in pieces]

    def __iter__(self):
        while True:
            order = list(range(len(self.shards)))
            random.shuffle(order)
            for s in order:
                ids = self.shards[s]
                at = torch.randint(len(ids) - self.ctx - 1, (self.batch, 1)) + torch.arange(self.ctx + 1)
                yield ids[at]


class Attention(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h = h
        self.q, self.k, self.v, self.o = (nn.Linear(d, d) for _ in range(4))
        slopes = torch.tensor([2.0 ** -(i + 1) for i in range(h)])
        self.register_buffer("slopes", slopes[:, None, None])

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = (f(x).view(b, t, self.h, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
        gap = torch.arange(t)[:, None] - torch.arange(t)[None, :]
        bias = -self.slopes * gap.clamp_min(0)
        bias = bias.masked_fill(gap < 0, float("-inf"))
        y = ((q @ k.transpose(-1, -2)) / math.sqrt(d // self.h) + bias).softmax(-1) @ v
        return self.o(y.transpose(1, 2).reshape(b, t, d))


class AlibiLM(nn.Module):
    def __init__(self, vocab, d=64, h=4, depth=2):
        super().__init__()
        self.emb = nn.Embedding(vocab, d)
        nn.init.normal_(self.emb.weight, std=0.2)
        self.parts = nn.ModuleList()
        for _ in range(depth):
            self.parts.append(nn.Sequential(nn.LayerNorm(d), Attention(d, h)))
            self.parts.append(nn.Sequential(nn.LayerNorm(d), nn.Linear(d, 192), nn.GELU(), nn.Linear(192, d)))
        self.norm = nn.LayerNorm(d)
        self.head = nn.Linear(d, vocab)

    def forward(self, x):
        h = self.emb(x)
        for part in self.parts:
            h = h + part(h)
        return self.head(self.norm(h))


shards = Shards(batch=14, ctx=40)
model = AlibiLM(len(shards.chars))
opt = torch.optim.AdamW(model.parameters(), lr=2e-3, betas=(0.9, 0.95))
steps = 170
for step, window in zip(range(steps), shards):
    lr = 2e-3 * min(1.0, (step + 1) / 15) * (0.55 + 0.45 * math.cos(math.pi * step / steps))
    for g in opt.param_groups:
        g["lr"] = lr
    loss = F.cross_entropy(model(window[:, :-1]).flatten(0, 1), window[:, 1:].flatten())
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    if step % 10 == 0 or step == steps - 1 or loss.item() > 4.0:
        print(f"step {step:3d} loss {loss.item():.4f}")

import inspect
import math
import os

import shutil
import subprocess
import torch
import torch.nn as nn
import torch.nn.functional as F


class SharedBlockLM(nn.Module):
    def __init__(self, vocab, width=96, factor=32, heads=4, passes=4, context=40):
        super().__init__()
        self.passes, self.heads = passes, heads
        self.small = nn.Embedding(vocab, factor)
        self.lift = nn.Linear(factor, width, bias=False)
        self.pos = nn.Parameter(torch.randn(context, width) * 0.02)
        self.level = nn.Parameter(torch.zeros(passes, width))
        self.qkv = nn.Linear(width, 3 * width)
        self.mix = nn.Linear(width, width)
        self.ff = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
        self.norms = nn.ModuleList([nn.LayerNorm(width) for _ in range(3)])

    def block(self, x):
        b, t, c = x.shape
        q, k, v = self.qkv(self.norms[0](x)).chunk(3, -1)
        q, k, v = (z.view(b, t, self.heads, -1).transpose(1, 2) for z in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.mix(y.transpose(1, 2).reshape(b, t, c))
        return x + self.ff(self.norms[1](x))

    def forward(self, ids):
        x = self.lift(self.small(ids)) + self.pos[:ids.size(1)]
        for i in range(self.passes):
            x = self.block(x + self.level[i])
        return F.linear(F.linear(self.norms[2](x), self.lift.weight.T), self.small.weight)


torch.manual_seed(3)
text = "".join(inspect.getsource(m) for m in (os, shutil, subprocess))
alphabet = sorted(set(text))
ids = torch.tensor([alphabet.index(c) for c in text])
model = SharedBlockLM(len(alphabet))
nn.init.normal_(model.small.weight, std=0.15)
opt = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.98), eps=1e-6)
N = 170
for i in range(N):
    opt.param_groups[0]["lr"] = 3e-3 * (min(1, (i + 1) / 15) if i < 120 else 0.5 * (1 + math.cos(math.pi * (i - 120) / (N - 120))))
    at = torch.randint(len(ids) - 41, (14,))
    rows = torch.stack([ids[a:a + 41] for a in at])
    loss = F.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())
    opt.zero_grad()
    loss.backward()
    opt.step()
    if i % 15 == 0 or i == N - 1:
        print(f"{i} {loss.item():.4f} ppl {loss.exp().item():.2f}")

import random

import torch
import torch.nn as nn
import torch.nn.functional as F

random.seed(2)
torch.manual_seed(2)
VOCAB, PAD, EQ, END = 34, 30, 31, 32
MAX_PRE = 9


def sample(n):
    width = 2 * MAX_PRE + 2
    ids = torch.full((n, width), PAD)
    keep = torch.zeros(n, width, dtype=torch.bool)
    prefix = torch.zeros(n, dtype=torch.long)
    for i in range(n):
        k = random.randint(4, MAX_PRE)
        body = random.sample(range(30), k)
        row = body + [EQ] + sorted(body) + [END]
        ids[i, :len(row)] = torch.tensor(row)
        keep[i, k + 1:len(row)] = True
        prefix[i] = k + 1
    return ids, keep, prefix


class PrefixLayer(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h = h
        self.pre, self.mid = nn.LayerNorm(d), nn.LayerNorm(d)
        self.kqv = nn.Linear(d, 3 * d, bias=False)
        self.mix = nn.Linear(d, d, bias=False)
        self.wide, self.narrow = nn.Linear(d, 3 * d), nn.Linear(3 * d, d)

    def forward(self, x, allowed):
        b, t, d = x.shape
        k, q, v = [z.view(b, t, self.h, d // self.h).transpose(1, 2) for z in self.kqv(self.pre(x)).chunk(3, -1)]
        a = F.scaled_dot_product_attention(q, k, v, attn_mask=allowed)
        x = x + self.mix(a.transpose(1, 2).flatten(2))
        return x + self.narrow(F.relu(self.wide(self.mid(x))))


class PrefixLM(nn.Module):
    def __init__(self, d=64, h=4, depth=2):
        super().__init__()
        self.tok = nn.Embedding(VOCAB, d)
        self.pos = nn.Embedding(2 * MAX_PRE + 2, d)
        self.layers = nn.ModuleList(PrefixLayer(d, h) for _ in range(depth))
        self.out = nn.Linear(d, VOCAB)

    def forward(self, ids, prefix):
        t = ids.size(1)
        at = torch.arange(t)
        causal = at[:, None] >= at[None, :]
        inside = at[None, None, :] < prefix[:, None, None]
        allowed = (causal[None] | inside)[:, None]
        x = self.tok(ids) + self.pos(at)
        for layer in self.layers:
            x = layer(x, allowed)
        return self.out(x)


net = PrefixLM()
opt = torch.optim.AdamW(net.parameters(), lr=3e-3, betas=(0.9, 0.98))
for it in range(220):
    ids, keep, prefix = sample(32)
    logits = net(ids[:, :-1], prefix)
    target = ids[:, 1:].masked_fill(~keep[:, 1:], -100)
    loss = F.cross_entropy(logits.transpose(1, 2), target)
    loss.backward()
    opt.step()
    opt.zero_grad()
    if it % 20 == 0 or it == 219:
        used = (target != -100).float().mean().item()
        print(f"it {it:3d} loss {loss.item():.4f} targets used {used:.2f}")

import math

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(8)
KEYS, VALUES, PAIRS, ASKED = 24, 16, 14, 6


class AttentionFn(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v):
        scale = 1.0 / math.sqrt(q.size(-1))
        s = q @ k.transpose(-1, -2) * scale
        m = s.amax(-1, keepdim=True)
        p = torch.exp(s - m)
        p = p / p.sum(-1, keepdim=True)
        o = p @ v
        ctx.save_for_backward(q, k, v, p)
        ctx.scale = scale
        return o

    @staticmethod
    def backward(ctx, do):
        q, k, v, p = ctx.saved_tensors
        dv = p.transpose(-1, -2) @ do
        dp = do @ v.transpose(-1, -2)
        delta = (p * dp).sum(-2, keepdim=True)
        ds = p * (dp - delta) * ctx.scale
        dq = ds @ k
        dk = ds.transpose(-1, -2) @ q
        return dq, dk, dv


class RecallBlock(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h = h
        self.ln1, self.ln2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(d, d) for _ in range(4))
        self.mlp = nn.Sequential(nn.Linear(d, 2 * d), nn.SiLU(), nn.Linear(2 * d, d))

    def split(self, x):
        return x.unflatten(-1, (self.h, -1)).transpose(1, 2)

    def forward(self, x):
        n = self.ln1(x)
        a = AttentionFn.apply(self.split(self.wq(n)), self.split(self.wk(n)), self.split(self.wv(n)))
        x = x + self.wo(a.transpose(1, 2).flatten(2))
        return x + self.mlp(self.ln2(x))


class Recall(nn.Module):
    def __init__(self, d=64, h=2, depth=2):
        super().__init__()
        self.key = nn.Embedding(KEYS, d)
        self.value = nn.Embedding(VALUES + 1, d)
        self.blocks = nn.ModuleList(RecallBlock(d, h) for _ in range(depth))
        self.out = nn.Sequential(nn.LayerNorm(d), nn.Linear(d, VALUES))

    def forward(self, keys, values):
        x = self.key(keys) + self.value(values)
        for b in self.blocks:
            x = b(x)
        return self.out(x[:, PAIRS:])


def episode(n):
    keys = torch.rand(n, KEYS).argsort(1)[:, :PAIRS]
    values = torch.randint(VALUES, (n, PAIRS))
    pick = torch.rand(n, PAIRS).argsort(1)[:, :ASKED]
    blank = torch.full((n, ASKED), VALUES)
    return torch.cat([keys, keys.gather(1, pick)], 1), torch.cat([values, blank], 1), values.gather(1, pick)


net = Recall()
opt = torch.optim.Adam(net.parameters(), lr=2e-3)
running = None
for i in range(200):
    keys, values, answer = episode(48)
    logits = net(keys, values)
    loss = F.cross_entropy(logits.flatten(0, 1), answer.flatten())
    opt.zero_grad()
    loss.backward()
    opt.step()
    running = loss.item() if running is None else 0.9 * running + 0.1 * loss.item()
    if i % 25 == 0 or i == 199:
        right = (logits.argmax(-1) == answer).float().mean().item()
        print(f"episode {i}: loss {running:.4f} recalled {right:.2f}")

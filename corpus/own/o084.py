import random

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(6)
random.seed(6)


class Adam(torch.optim.Optimizer):
    def __init__(self, params, lr=1e-3, beta1=0.9, beta2=0.99, eps=0.1):
        super().__init__(params, dict(lr=lr, beta1=beta1, beta2=beta2, eps=eps))

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            b1, b2 = group["beta1"], group["beta2"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                st = self.state[p]
                if not st:
                    st["t"] = 0
                    st["m"] = torch.zeros_like(p)
                    st["v"] = torch.zeros_like(p)
                st["t"] += 1
                st["m"].lerp_(p.grad, 1 - b1)
                st["v"].mul_(b2).addcmul_(p.grad, p.grad, value=1 - b2)
                mhat = st["m"] / (1 - b1 ** st["t"])
                vhat = st["v"] / (1 - b2 ** st["t"])
                p.add_(mhat / (vhat.sqrt() + group["eps"]), alpha=-group["lr"])


DIGITS = "0123456789+="
tok = {c: i for i, c in enumerate(DIGITS)}


def sums(n):
    rows = []
    for _ in range(n):
        a, b = random.randrange(100), random.randrange(100)
        rows.append([tok[c] for c in f"{a:02d}+{b:02d}={(a + b):03d}"[:]])
    return torch.tensor(rows)


class Calculator(nn.Module):
    def __init__(self, d=96, depth=2):
        super().__init__()
        self.e = nn.Embedding(len(DIGITS), d)
        self.p = nn.Embedding(16, d)
        self.attn = nn.ModuleList(nn.MultiheadAttention(d, 4, batch_first=True) for _ in range(depth))
        self.ff = nn.ModuleList(nn.Sequential(nn.Linear(d, 256), nn.ReLU(), nn.Linear(256, d)) for _ in range(depth))
        self.ln = nn.ModuleList(nn.LayerNorm(d) for _ in range(2 * depth + 1))
        self.head = nn.Linear(d, len(DIGITS))

    def forward(self, x):
        t = x.shape[1]
        block = torch.ones(t, t, dtype=torch.bool).triu(1)
        h = self.e(x) + self.p(torch.arange(t))
        for i, (a, f) in enumerate(zip(self.attn, self.ff)):
            z = self.ln[2 * i](h)
            h = h + a(z, z, z, attn_mask=block, need_weights=False)[0]
            h = h + f(self.ln[2 * i + 1](h))
        return self.head(self.ln[-1](h))


model = Calculator()
opt = Adam(model.parameters(), lr=2e-3)
for k in range(1, 251):
    w = sums(64)
    logits = model(w[:, :-1])[:, 5:]
    loss = F.cross_entropy(logits.flatten(0, 1), w[:, 6:].flatten())
    opt.zero_grad()
    loss.backward()
    opt.step()
    if k == 1 or k % 25 == 0:
        acc = (logits.argmax(-1) == w[:, 6:]).all(-1).float().mean()
        print(f"{k:4d} answer loss {loss.item():.4f} exact {acc.item():.3f}")

import math
import random

import torch
import torch.nn as nn
import torch.nn.functional as F

random.seed(2)
torch.manual_seed(2)
V, T = 32, 20


class LoRALinear(nn.Module):
    def __init__(self, base, r=8, alpha=16):
        super().__init__()
        self.base = base
        for p in base.parameters():
            p.requires_grad_(False)
        self.A = nn.Parameter(torch.empty(r, base.in_features))
        self.B = nn.Parameter(torch.zeros(base.out_features, r))
        nn.init.kaiming_uniform_(self.A, a=math.sqrt(5))
        self.scaling = alpha / r

    def forward(self, x):
        return self.base(x) + (x @ self.A.T @ self.B.T) * self.scaling


class Mixer(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h = h
        self.ln1, self.ln2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.q, self.k, self.v, self.o = (nn.Linear(d, d) for _ in range(4))
        self.fc1, self.fc2 = nn.Linear(d, 2 * d), nn.Linear(2 * d, d)

    def forward(self, x):
        b, t, d = x.shape
        y = self.ln1(x)
        q, k, v = (f(y).view(b, t, self.h, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(y.transpose(1, 2).reshape(b, t, d))
        return x + self.fc2(F.relu(self.fc1(self.ln2(x))))


class Small(nn.Module):
    def __init__(self, d=64):
        super().__init__()
        self.tok, self.pos = nn.Embedding(V, d), nn.Embedding(T, d)
        self.blocks = nn.ModuleList([Mixer(d, 4), Mixer(d, 4)])
        self.ln = nn.LayerNorm(d)
        self.head = nn.Linear(d, V, bias=False)

    def forward(self, x):
        h = self.tok(x) + self.pos.weight[:x.size(1)]
        for b in self.blocks:
            h = b(h)
        return self.head(self.ln(h))


def grammar(seed):
    rng = random.Random(seed)
    return [rng.sample(range(V), 3) for _ in range(V)]


def batch(table, n=24):
    rows = []
    for _ in range(n):
        r = [random.randrange(V)]
        for _ in range(T):
            r.append(random.choices(table[r[-1]], (0.8, 0.15, 0.05))[0])
        rows.append(r)
    x = torch.tensor(rows)
    return x[:, :-1], x[:, 1:]


def run(model, params, table, steps, lr, tag):
    opt = torch.optim.AdamW(params, lr=lr, weight_decay=0.0)
    for i in range(steps):
        x, y = batch(table)
        loss = F.cross_entropy(model(x).transpose(1, 2), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if i % 20 == 0 or i == steps - 1:
            print(f"{tag} step {i} loss {loss.item():.4f}")


model = Small()
run(model, model.parameters(), grammar(1), 100, 3e-3, "base")
for p in model.parameters():
    p.requires_grad_(False)
for block in model.blocks:
    for name in ("q", "v", "o", "fc1", "fc2"):
        setattr(block, name, LoRALinear(getattr(block, name)))
adapters = [p for p in model.parameters() if p.requires_grad]
share = sum(p.numel() for p in adapters) / sum(p.numel() for p in model.parameters())
print(f"trainable {share:.1%}")
run(model, adapters, grammar(2), 180, 1e-2, "tune")

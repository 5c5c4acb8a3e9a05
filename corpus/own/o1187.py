import copy
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(2)

V, T = 20, 32
tables = torch.stack([torch.randperm(V) for _ in range(2)])


def corpus(n, mix):
    rule = torch.multinomial(torch.tensor(mix), n, replacement=True)
    s = torch.empty(n, T + 1, dtype=torch.long)
    s[:, 0] = torch.randint(V, (n,))
    for t in range(1, T + 1):
        s[:, t] = torch.where(
            torch.rand(n) < 0.8, tables[rule, s[:, t - 1]], torch.randint(V, (n,))
        )
    return s


class Lora(nn.Module):
    def __init__(self, base, rank=8, alpha=16):
        super().__init__()
        self.base = base
        self.a = nn.Parameter(torch.randn(rank, base.in_features) / math.sqrt(base.in_features))
        self.b = nn.Parameter(torch.zeros(base.out_features, rank))
        self.scale = alpha / rank

    def forward(self, x):
        return self.base(x) + self.scale * F.linear(F.linear(x, self.a), self.b)


class Block(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h = h
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.proj = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.up, self.down = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

    def forward(self, x):
        B, L, C = x.shape
        q, k, v = self.qkv(self.n1(x)).view(B, L, 3, self.h, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(B, L, C)
        x = x + self.proj(y)
        return x + self.down(F.gelu(self.up(self.n2(x))))


class LM(nn.Module):
    def __init__(self, d=64, h=4, depth=2):
        super().__init__()
        self.tok, self.pos = nn.Embedding(V, d), nn.Embedding(T, d)
        self.blocks = nn.ModuleList([Block(d, h) for _ in range(depth)])
        self.norm, self.head = nn.LayerNorm(d), nn.Linear(d, V)

    def forward(self, ids):
        x = self.tok(ids) + self.pos(torch.arange(ids.shape[1]))
        for b in self.blocks:
            x = b(x)
        return self.head(self.norm(x))


def loss_on(model, s):
    return F.cross_entropy(model(s[:, :-1]).flatten(0, 1), s[:, 1:].flatten())


def fit(model, sets, epochs, lr, batch, tag, val):
    params = [p for p in model.parameters() if p.requires_grad]
    opt = torch.optim.AdamW(params, lr=lr, weight_decay=0.01)
    total = epochs * (len(sets) // batch)
    sched = torch.optim.lr_scheduler.LambdaLR(
        opt,
        lambda i: min((i + 1) / (0.1 * total), 0.5 * (1 + math.cos(math.pi * min(1, i / total)))),
    )
    step = 0
    for epoch in range(epochs):
        for s in sets[torch.randperm(len(sets))][: len(sets) // batch * batch].split(batch):
            loss = loss_on(model, s)
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(params, 1.0)
            opt.step()
            sched.step()
            step += 1
            if step % 25 == 0:
                print(f"{tag} step {step} loss {loss.item():.4f}", flush=True)
        with torch.no_grad():
            print(f"{tag} epoch {epoch} val {loss_on(model, val).item():.4f}", flush=True)


base = LM()
fit(base, corpus(6400, [1.0, 0.1]), 2, 2e-3, 32, "base", corpus(300, [1.0, 0.1]))

small, check = corpus(640, [0.0, 1.0]), corpus(300, [0.0, 1.0])
with torch.no_grad():
    print(f"before tuning, val on the new domain {loss_on(base, check).item():.4f}")

adapted = copy.deepcopy(base).requires_grad_(False)
for b in adapted.blocks:
    b.qkv, b.proj, b.up, b.down = Lora(b.qkv), Lora(b.proj), Lora(b.up), Lora(b.down)
fit(adapted, small, 8, 1e-3, 32, "adapter", check)

full = copy.deepcopy(base)
fit(full, small, 8, 2e-4, 32, "gentle", check)

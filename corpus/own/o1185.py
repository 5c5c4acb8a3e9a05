import copy
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(30)
LENGTH, PATCH = 48, 4
TOKENS = LENGTH // PATCH


def signals(n):
    kind = torch.randint(3, (n,))
    t = torch.linspace(0, 1, LENGTH)
    freq = torch.tensor([1.0, 2.0, 4.0])[kind][:, None]
    x = torch.sin(2 * math.pi * (freq * t + torch.rand(n, 1)))
    return x * (0.8 + 0.4 * torch.rand(n, 1)), kind


class AdaBlock(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.n1, self.n2 = (nn.LayerNorm(d, elementwise_affine=False) for _ in range(2))
        self.attn = nn.MultiheadAttention(d, h, batch_first=True)
        self.ff = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d))
        self.ada = nn.Sequential(nn.SiLU(), nn.Linear(d, 6 * d))
        nn.init.zeros_(self.ada[1].weight)
        nn.init.zeros_(self.ada[1].bias)

    def forward(self, x, c):
        s1, b1, g1, s2, b2, g2 = self.ada(c)[:, None].chunk(6, -1)
        h = self.n1(x) * (1 + s1) + b1
        x = x + g1 * self.attn(h, h, h, need_weights=False)[0]
        return x + g2 * self.ff(self.n2(x) * (1 + s2) + b2)


class Velocity(nn.Module):
    def __init__(self, d=64, h=4, depth=2):
        super().__init__()
        self.inp = nn.Linear(PATCH, d)
        self.pos = nn.Parameter(torch.randn(TOKENS, d) * 0.1)
        self.time = nn.Sequential(nn.Linear(32, d), nn.SiLU(), nn.Linear(d, d))
        self.cls = nn.Embedding(4, d)
        self.blocks = nn.ModuleList([AdaBlock(d, h) for _ in range(depth)])
        self.norm = nn.LayerNorm(d)
        self.out = nn.Linear(d, PATCH)
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)

    def forward(self, x, t, y):
        freq = torch.exp(torch.linspace(0, 4, 16))
        emb = t[:, None] * freq
        c = self.time(torch.cat([emb.sin(), emb.cos()], 1)) + self.cls(y)
        h = self.inp(x.view(-1, TOKENS, PATCH)) + self.pos
        for b in self.blocks:
            h = b(h, c)
        return self.out(self.norm(h)).flatten(1)


@torch.no_grad()
def generate(net, y, steps=25, guide=1.5):
    x = torch.randn(len(y), LENGTH)
    for i in range(steps):
        t = torch.full((len(y),), i / steps)
        cond, free = net(x, t, y), net(x, t, torch.full_like(y, 3))
        x = x + (free + guide * (cond - free)) / steps
    return x


model = Velocity()
ema = copy.deepcopy(model).requires_grad_(False)
opt = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.0)
STEPS = 700
for step in range(1, STEPS + 1):
    for g in opt.param_groups:
        g["lr"] = 2e-3 * min(1.0, step / 50, 0.05 + (STEPS - step) / (0.4 * STEPS))
    x1, y = signals(64)
    y = torch.where(torch.rand(len(y)) < 0.1, torch.full_like(y, 3), y)
    x0 = torch.randn_like(x1)
    t = torch.sigmoid(torch.randn(len(x1)))
    xt = (1 - t[:, None]) * x0 + t[:, None] * x1
    loss = F.mse_loss(model(xt, t, y), x1 - x0)
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    with torch.no_grad():
        for e, p in zip(ema.parameters(), model.parameters()):
            e.lerp_(p, 0.01)
    if step % 25 == 0:
        print(f"step {step} loss {loss.item():.4f}", flush=True)
    if step % 350 == 0:
        y = torch.arange(3).repeat(60)
        power = torch.fft.rfft(generate(ema, y)).abs()[:, 1:]
        hit = (power[:, [0, 1, 3]].argmax(1) == y).float().mean()
        share = (power.pow(2).topk(2, 1).values.sum(1) / power.pow(2).sum(1)).mean()
        print(
            f"step {step} samples of the asked kind {hit:.3f}, energy in two bins {share:.3f}",
            flush=True,
        )

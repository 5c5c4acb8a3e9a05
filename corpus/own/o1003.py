import copy
import math
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(2)
torch.set_num_threads(1)
NPT, NCLS = 16, 3


def shapes(n, g):
    """Noisy rings, crosses and bars, as sets of 2-D points."""
    c = torch.randint(0, NCLS, (n,), generator=g)
    u = torch.rand(n, NPT, generator=g)
    ring = torch.stack([torch.cos(2 * math.pi * u), torch.sin(2 * math.pi * u)], -1) * 1.2
    s = (u * 2 - 1) * 1.4
    flip = (torch.rand(n, NPT, generator=g) < 0.5).float()
    cross = torch.stack([s * flip, s * (1 - flip)], -1)
    bar = torch.stack([s, 0.5 * s], -1)
    x = torch.stack([ring, cross, bar], 1)[torch.arange(n), c]
    return x + 0.05 * torch.randn(n, NPT, 2, generator=g), c


def time_features(t, dim):
    freqs = torch.exp(torch.linspace(0, math.log(1000), dim // 2))
    a = t[:, None] * freqs[None]
    return torch.cat([a.cos(), a.sin()], -1)


class DiTBlock(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h = h
        self.n1 = nn.LayerNorm(d, elementwise_affine=False)
        self.n2 = nn.LayerNorm(d, elementwise_affine=False)
        self.qkv, self.o = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.mlp = nn.Sequential(nn.Linear(d, 3 * d), nn.GELU(approximate="tanh"), nn.Linear(3 * d, d))
        self.ada = nn.Linear(d, 6 * d)
        nn.init.zeros_(self.ada.weight)
        nn.init.zeros_(self.ada.bias)

    def forward(self, x, c):
        s1, b1, g1, s2, b2, g2 = self.ada(F.silu(c)).unsqueeze(1).chunk(6, -1)
        y = self.n1(x) * (1 + s1) + b1
        q, k, v = (z.unflatten(-1, (self.h, -1)).transpose(1, 2) for z in self.qkv(y).chunk(3, -1))
        x = x + g1 * self.o(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + g2 * self.mlp(self.n2(x) * (1 + s2) + b2)


class DiT(nn.Module):
    def __init__(self, d=64, depth=3, h=4):
        super().__init__()
        self.d = d
        self.inp = nn.Sequential(nn.Linear(2, d), nn.GELU(), nn.Linear(d, d))
        self.tm = nn.Sequential(nn.Linear(d, d), nn.SiLU(), nn.Linear(d, d))
        self.cls = nn.Embedding(NCLS + 1, d)
        self.blocks = nn.ModuleList(DiTBlock(d, h) for _ in range(depth))
        self.norm = nn.LayerNorm(d, elementwise_affine=False)
        self.ada = nn.Linear(d, 2 * d)
        self.out = nn.Linear(d, 2)
        for m in (self.ada, self.out):
            nn.init.zeros_(m.weight)
            nn.init.zeros_(m.bias)

    def forward(self, x, t, y):
        c = self.tm(time_features(t, self.d)) + self.cls(y)
        h = self.inp(x)
        for b in self.blocks:
            h = b(h, c)
        s, b = self.ada(F.silu(c)).unsqueeze(1).chunk(2, -1)
        return self.out(self.norm(h) * (1 + s) + b)


@torch.no_grad()
def sample(net, y, steps=30):
    x = torch.randn(len(y), NPT, 2)
    for i in range(steps):
        t = torch.full((len(y),), i / steps)
        x = x + net(x, t, y) / steps
    return x


def energy_distance(a, b):
    return (2 * torch.cdist(a, b).mean() - torch.cdist(a, a).mean() - torch.cdist(b, b).mean()).item()


g = torch.Generator().manual_seed(0)
data, labels = shapes(8000, g)
net = DiT()
avg = copy.deepcopy(net).requires_grad_(False)
opt = torch.optim.AdamW(net.parameters(), lr=3e-3, betas=(0.9, 0.99), weight_decay=0.0)
t0 = time.time()
N = 400
for step in range(N):
    i = torch.randint(0, len(data), (64,))
    x1, y = data[i], labels[i].clone()
    y[torch.rand(len(y)) < 0.1] = NCLS
    x0 = torch.randn_like(x1)
    t = torch.sigmoid(torch.randn(len(x1)))
    xt = (1 - t)[:, None, None] * x0 + t[:, None, None] * x1
    loss = F.mse_loss(net(xt, t, y), x1 - x0)
    opt.param_groups[0]["lr"] = 3e-3 * min(1, (step + 1) / 20) * (1 - step / N)
    opt.zero_grad()
    loss.backward()
    opt.step()
    with torch.no_grad():
        d = min(0.98, (1 + step) / (10 + step))
        for a, p in zip(avg.parameters(), net.parameters()):
            a.lerp_(p, 1 - d)
    if step % 25 == 0 or step == N - 1:
        print(f"{step:4d} loss {loss.item():.4f}  {time.time() - t0:.1f}s")

for c in range(NCLS):
    gen = sample(avg, torch.full((64,), c))
    real = data[labels == c][:64]
    base = torch.randn(64, NPT, 2) * real.std()
    print(f"class {c}: energy distance {energy_distance(gen.flatten(0, 1), real.flatten(0, 1)):.4f} "
          f"(gaussian {energy_distance(base.flatten(0, 1), real.flatten(0, 1)):.4f})")

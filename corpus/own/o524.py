import copy
import math
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass(frozen=True)
class Config:
    T: int = 80
    steps: int = 480
    batch: int = 256
    lr: float = 3e-3
    width: int = 96
    ema: float = 0.99
    seed: int = 6


def spiral(n):
    t = 1.5 * math.pi * (1 + 2 * torch.rand(n).sqrt())
    pts = torch.stack([t * t.cos(), t * t.sin()], 1) + 0.25 * torch.randn(n, 2)
    return pts / 7.5


def cosine_alpha_bar(T, s=0.008):
    t = torch.arange(T + 1) / T
    f = torch.cos((t + s) / (1 + s) * math.pi / 2) ** 2
    betas = (1 - f[1:] / f[:-1]).clamp(max=0.999)
    return betas, torch.cumprod(1 - betas, 0)


class Denoiser(nn.Module):
    def __init__(self, width, T):
        super().__init__()
        self.register_buffer("freq", torch.exp(torch.linspace(0, math.log(100.0), 16)))
        self.T = T
        self.tmlp = nn.Sequential(nn.Linear(32, width), nn.SiLU(), nn.Linear(width, width))
        self.inp = nn.Linear(2, width)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width))
            for _ in range(3))
        self.out = nn.Linear(width, 2)
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)

    def forward(self, x, t):
        a = (t.float() / self.T)[:, None] * self.freq
        e = self.tmlp(torch.cat([a.sin(), a.cos()], -1))
        h = self.inp(x)
        for b in self.blocks:
            h = h + b(h + e)
        return self.out(F.silu(h))


@torch.no_grad()
def sample(net, n, betas, abar):
    x = torch.randn(n, 2)
    for i in reversed(range(len(betas))):
        t = torch.full((n,), i)
        eps = net(x, t)
        x0 = ((x - (1 - abar[i]).sqrt() * eps) / abar[i].sqrt()).clamp(-2.5, 2.5)
        prev = abar[i - 1] if i > 0 else torch.tensor(1.0)
        mean = (prev.sqrt() * betas[i] * x0 + (1 - betas[i]).sqrt() * (1 - prev) * x) / (1 - abar[i])
        var = betas[i] * (1 - prev) / (1 - abar[i])
        x = mean + (var.sqrt() * torch.randn_like(x) if i > 0 else 0.0)
    return x


def energy_distance(a, b):
    return (2 * torch.cdist(a, b).mean() - torch.cdist(a, a).mean() - torch.cdist(b, b).mean()).item()


def main():
    cfg = Config()
    torch.manual_seed(cfg.seed)
    data, held = spiral(10000), spiral(800)
    betas, abar = cosine_alpha_bar(cfg.T)
    net = Denoiser(cfg.width, cfg.T)
    ema = copy.deepcopy(net).requires_grad_(False)
    opt = torch.optim.AdamW(net.parameters(), lr=cfg.lr, weight_decay=0.0)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, cfg.steps, eta_min=1e-4)
    print(f"energy distance of an untrained sampler {energy_distance(sample(ema, 800, betas, abar), held):.4f}")
    avg = 0.0
    for k in range(cfg.steps):
        x0 = data[torch.randint(len(data), (cfg.batch,))]
        t = torch.randint(cfg.T, (cfg.batch,))
        eps = torch.randn_like(x0)
        xt = abar[t].sqrt()[:, None] * x0 + (1 - abar[t]).sqrt()[:, None] * eps
        loss = F.mse_loss(net(xt, t), eps)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        sched.step()
        with torch.no_grad():
            for p, q in zip(ema.parameters(), net.parameters()):
                p.lerp_(q, 1 - cfg.ema)
        avg = loss.item() if k == 0 else 0.98 * avg + 0.02 * loss.item()
        if k % 48 == 0 or k == cfg.steps - 1:
            print(f"step {k:4d} loss {loss.item():.4f} running {avg:.4f}")
    s = sample(ema, 800, betas, abar)
    print(f"energy distance: samples {energy_distance(s, held):.4f}, fresh data {energy_distance(spiral(800), held):.4f}")
    print(f"median distance to the spiral {torch.cdist(s, held).min(1).values.median():.3f}")


main()

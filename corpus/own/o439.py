import math
import numpy as np
import torch
import torch.nn as nn

T_STEPS = 100


def rings(n, rng):
    r = rng.choice([0.5, 1.2], n) + 0.03 * rng.standard_normal(n)
    th = rng.uniform(0, 2 * np.pi, n)
    return torch.tensor(np.stack([r * np.cos(th), r * np.sin(th)], 1), dtype=torch.float32)


class Schedule:
    def __init__(self, n=T_STEPS):
        beta = torch.linspace(1e-4, 0.06, n)
        self.alpha_bar = torch.cumprod(1 - beta, 0)
        self.n = n

    def corrupt(self, x0, t, eps):
        ab = self.alpha_bar[t].unsqueeze(1)
        return ab.sqrt() * x0 + (1 - ab).sqrt() * eps


class TimeEmbed(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.register_buffer("freq", torch.exp(torch.linspace(0, math.log(1000), dim // 2)))

    def forward(self, t):
        a = t.float().unsqueeze(1) / T_STEPS * self.freq
        return torch.cat([a.sin(), a.cos()], 1)


class Denoiser(nn.Module):
    def __init__(self, width=160, tdim=32):
        super().__init__()
        self.temb = TimeEmbed(tdim)
        self.inp = nn.Linear(2 + tdim, width)
        self.hid = nn.ModuleList(nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width),
                                               nn.SiLU(), nn.Linear(width, width)) for _ in range(3))
        self.out = nn.Linear(width, 2)

    def forward(self, x, t):
        h = self.inp(torch.cat([x, self.temb(t)], 1))
        for m in self.hid:
            h = h + m(h)
        return self.out(h)


class DiffusionTrainer:
    def __init__(self, seed=5, batch=256, lr=1e-3):
        self.seed, self.batch = seed, batch
        torch.manual_seed(seed)
        self.rng = np.random.default_rng(seed)
        self.sched = Schedule()
        self.net = Denoiser()
        self.opt = torch.optim.AdamW(self.net.parameters(), lr=lr)
        self.gen = torch.Generator().manual_seed(seed)

    def draw(self, n):
        g = self.gen.manual_seed(self.seed)
        t = torch.randint(0, self.sched.n, (n,), generator=g)
        eps = torch.randn(n, 2, generator=g)
        return t, eps

    def loss(self, x0, t, eps):
        pred = self.net(self.sched.corrupt(x0, t, eps), t)
        return (pred - eps).square().mean()

    def fit(self, iters):
        for i in range(iters):
            t, eps = self.draw(self.batch)
            loss = self.loss(rings(self.batch, self.rng), t, eps)
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
            if i % 100 == 0 or i == iters - 1:
                print(f"iter {i} mse {loss.item():.5f}", flush=True)

    @torch.no_grad()
    def validate(self, n=8192):
        x0 = rings(n, np.random.default_rng(999))
        g = torch.Generator().manual_seed(4242)
        t = torch.randint(0, self.sched.n, (n,), generator=g)
        return self.loss(x0, t, torch.randn(n, 2, generator=g)).item()


if __name__ == "__main__":
    tr = DiffusionTrainer()
    tr.fit(1200)
    print(f"validation mse {tr.validate():.5f}")

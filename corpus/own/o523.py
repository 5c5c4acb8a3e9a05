import math
import time

import torch
from torch import nn


def two_moons(n, g, noise=0.08):
    th = math.pi * torch.rand(n, generator=g)
    upper = torch.rand(n, generator=g) < 0.5
    x = torch.where(upper, th.cos(), 1 - th.cos())
    y = torch.where(upper, th.sin(), 0.5 - th.sin())
    pts = torch.stack([x, y], 1) + noise * torch.randn(n, 2, generator=g)
    return pts


class Coupling(nn.Module):

    def __init__(self, keep, width):
        super().__init__()
        self.keep = keep
        self.net = nn.Sequential(nn.Linear(1, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(),
                                 nn.Linear(width, 2))
        nn.init.zeros_(self.net[-1].weight)
        nn.init.zeros_(self.net[-1].bias)
        self.bound = nn.Parameter(torch.tensor(1.5))

    def _st(self, a):
        s, t = self.net(a[:, None]).unbind(1)
        return self.bound * torch.tanh(s), t

    def _join(self, a, b):
        return torch.stack([a, b] if self.keep == 0 else [b, a], 1)

    def forward(self, x):
        a, b = x[:, self.keep], x[:, 1 - self.keep]
        s, t = self._st(a)
        return self._join(a, b * s.exp() + t), s

    def inverse(self, y):
        a, b = y[:, self.keep], y[:, 1 - self.keep]
        s, t = self._st(a)
        return self._join(a, (b - t) * torch.exp(-s))


class RealNVP(nn.Module):
    def __init__(self, layers=6, width=64):
        super().__init__()
        self.layers = nn.ModuleList(Coupling(k % 2, width) for k in range(layers))
        self.register_buffer("loc", torch.zeros(2))
        self.register_buffer("scale", torch.ones(2))

    def log_prob(self, x):
        z = (x - self.loc) / self.scale
        logdet = -self.scale.log().sum().expand(len(x))
        for layer in self.layers:
            z, ld = layer(z)
            logdet = logdet + ld
        base = -0.5 * z.square().sum(1) - math.log(2 * math.pi)
        return base + logdet

    @torch.no_grad()
    def sample(self, n, g):
        z = torch.randn(n, 2, generator=g)
        for layer in reversed(self.layers):
            z = layer.inverse(z)
        return z * self.scale + self.loc


def train():
    torch.manual_seed(30)
    g = torch.Generator().manual_seed(30)
    data, held = two_moons(8000, g), two_moons(2000, g)
    flow = RealNVP()
    flow.loc.copy_(data.mean(0))
    flow.scale.copy_(data.std(0))
    opt = torch.optim.Adam(flow.parameters(), lr=4e-3)
    steps, warm = 400, 20
    sched = torch.optim.lr_scheduler.LambdaLR(
        opt, lambda k: min(1, (k + 1) / warm) * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * k / steps))))
    t0 = time.time()
    for k in range(steps):
        batch = data[torch.randint(len(data), (256,), generator=g)]
        loss = -flow.log_prob(batch).mean()
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(flow.parameters(), 2.0)
        opt.step()
        sched.step()
        if k % 40 == 0 or k == steps - 1:
            with torch.no_grad():
                val = -flow.log_prob(held).mean().item()
            print(f"[{time.time() - t0:5.1f}s] step {k:4d} nll {loss.item():.4f} held-out {val:.4f}")
    s = flow.sample(2000, g)
    with torch.no_grad():
        near = torch.cdist(s, held).min(1).values
        ax = torch.linspace(-3, 4, 200)
        grid = torch.cartesian_prod(ax, ax)
        mass = flow.log_prob(grid).exp().sum() * (ax[1] - ax[0]) ** 2
    print(f"median distance sample -> data {near.median():.3f}, integral of density {mass:.3f}")


if __name__ == "__main__":
    train()

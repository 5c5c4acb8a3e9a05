from dataclasses import dataclass, field

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class Cfg:
    taus: list = field(default_factory=lambda: [0.05, 0.25, 0.5, 0.75, 0.95])
    hidden: int = 96
    steps: int = 500
    batch: int = 512
    lr: float = 3e-3
    seed: int = 13


class QuantileNet(nn.Module):
    def __init__(self, d, hidden, taus):
        super().__init__()
        self.mid = taus.index(0.5)
        self.trunk = nn.Sequential(nn.Linear(d, hidden), nn.SiLU(), nn.Linear(hidden, hidden), nn.SiLU())
        self.out = nn.Linear(hidden, len(taus))

    def forward(self, x):
        o = self.out(self.trunk(x))
        m = self.mid
        median = o[:, m:m + 1]
        up = median + F.softplus(o[:, m + 1:]).cumsum(1)
        down = median - F.softplus(o[:, :m]).flip(1).cumsum(1).flip(1)
        return torch.cat([down, median, up], 1)


def pinball(pred, y, taus):
    err = y[:, None] - pred
    return torch.maximum(taus * err, (taus - 1) * err).mean()


def data(n, g):
    x = torch.rand(n, 4, generator=g) * 2 - 1
    mu = torch.sin(3 * x[:, 0]) + x[:, 1] * x[:, 2]
    sigma = 0.15 + 0.6 * (x[:, 0] + 1) / 2 + 0.3 * x[:, 3].abs()
    eps = torch.exp(0.6 * torch.randn(n, generator=g)) - 1.0
    return x, mu + sigma * eps, mu, sigma


def main(cfg=Cfg()):
    torch.manual_seed(cfg.seed)
    g = torch.Generator().manual_seed(cfg.seed)
    x, y, _, _ = data(12000, g)
    xt, yt, mut, sigt = data(5000, g)
    taus = torch.tensor(cfg.taus)
    z = torch.distributions.Normal(0, 1).icdf(taus)
    ideal = mut[:, None] + sigt[:, None] * (torch.exp(0.6 * z) - 1.0)

    net = QuantileNet(4, cfg.hidden, cfg.taus)
    opt = torch.optim.Adam(net.parameters(), lr=cfg.lr)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, cfg.steps)
    uncond = torch.quantile(y, taus).expand(len(yt), -1)
    print(f"test pinball: unconditional {pinball(uncond, yt, taus):.4f}   ideal {pinball(ideal, yt, taus):.4f}")

    perm = torch.randperm(len(x), generator=g)
    ptr = 0
    for step in range(cfg.steps):
        if ptr + cfg.batch > len(perm):
            perm, ptr = torch.randperm(len(x), generator=g), 0
        idx = perm[ptr:ptr + cfg.batch]
        ptr += cfg.batch
        loss = pinball(net(x[idx]), y[idx], taus)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        sched.step()
        if step % 50 == 0 or step == cfg.steps - 1:
            with torch.no_grad():
                q = net(xt)
                print(f"step {step:4d} loss {loss.item():.4f} test {pinball(q, yt, taus):.4f} "
                      f"coverage {[round(v, 3) for v in (yt[:, None] <= q).float().mean(0).tolist()]}")
    assert (q.diff(dim=1) >= 0).all()


if __name__ == "__main__":
    main()

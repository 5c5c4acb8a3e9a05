import math
from types import SimpleNamespace
import torch
import torch.nn as nn

cfg = SimpleNamespace(seed=0, horizon=16, d=64, T=50, bs=40, iters=480, lr=2e-3)
torch.manual_seed(cfg.seed)


def trajectories(n, g):
    s = torch.rand(n, 2, generator=g) * 2 - 1
    e = torch.rand(n, 2, generator=g) * 2 - 1
    t = torch.linspace(0, 1, cfg.horizon)[None, :, None]
    mj = 10 * t ** 3 - 15 * t ** 4 + 6 * t ** 5
    side = torch.stack([-(e - s)[:, 1], (e - s)[:, 0]], -1)[:, None]
    amp = torch.randn(n, 1, 1, generator=g) * 0.4
    return s[:, None] * (1 - mj) + e[:, None] * mj + amp * torch.sin(math.pi * t) * side, torch.cat([s, e], -1)


class Feeder:
    def __init__(self, seed):
        self.seed = seed
        self.gen = torch.Generator().manual_seed(seed)

    def next(self, n):
        x0, c = trajectories(n, self.gen.manual_seed(self.seed))
        t = torch.randint(0, cfg.T, (n,), generator=self.gen)
        return x0, c, t, torch.randn(x0.shape, generator=self.gen)


betas = torch.linspace(1e-3, 0.2, cfg.T)
abar = torch.cumprod(1 - betas, 0)


class Denoiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp = nn.Linear(2, cfg.d)
        self.cond = nn.Linear(4, cfg.d)
        self.time = nn.Embedding(cfg.T, cfg.d)
        self.pos = nn.Parameter(torch.randn(1, cfg.horizon, cfg.d) * 0.1)
        lay = nn.TransformerEncoderLayer(cfg.d, 4, 2 * cfg.d, 0.0, "gelu", batch_first=True, norm_first=True)
        self.net = nn.TransformerEncoder(lay, 2, enable_nested_tensor=False)
        self.out = nn.Linear(cfg.d, 2)

    def forward(self, x, t, c):
        h = self.inp(x) + self.pos + (self.cond(c) + self.time(t))[:, None]
        return self.out(self.net(h))


def denoise_loss(model, x0, c, t, eps):
    a = abar[t][:, None, None]
    return (model(a.sqrt() * x0 + (1 - a).sqrt() * eps, t, c) - eps).square().mean()


@torch.no_grad()
def plan(model, c):
    x = torch.randn(len(c), cfg.horizon, 2)
    for t in reversed(range(cfg.T)):
        eps = model(x, torch.full((len(c),), t), c)
        x = (x - betas[t] / (1 - abar[t]).sqrt() * eps) / (1 - betas[t]).sqrt()
        if t:
            x = x + betas[t].sqrt() * torch.randn_like(x)
    return x


model = Denoiser()
opt = torch.optim.AdamW(model.parameters(), lr=cfg.lr, weight_decay=1e-4)
sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, cfg.iters, eta_min=1e-4)
feed = Feeder(cfg.seed + 1)
val = Feeder(cfg.seed + 2).next(512)
vc = val[1]
for it in range(cfg.iters):
    loss = denoise_loss(model, *feed.next(cfg.bs))
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    sched.step()
    if it % 60 == 0 or it == cfg.iters - 1:
        with torch.no_grad():
            v = denoise_loss(model, *val)
        print(f"iter {it:4d} loss {loss.item():.4f} val {v.item():.4f}")

p = plan(model, vc[:128])
err = torch.cat([(p[:, 0] - vc[:128, :2]), (p[:, -1] - vc[:128, 2:])]).norm(dim=-1).mean()
print(f"mean start/goal error of planned paths: {err.item():.3f}")

import math
from dataclasses import dataclass, field

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class OptimConfig:
    lr: float = 2e-3
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.0


@dataclass
class FlowConfig:
    size: int = 8
    width: int = 96
    depth: int = 3
    batch: int = 96
    steps: int = 700
    log_every: int = 50
    optim: OptimConfig = field(default_factory=OptimConfig)


class AdamW:
    def __init__(self, params, lr, beta1, beta2, eps, weight_decay):
        self.params = [p for p in params if p.requires_grad]
        self.lr, self.beta1, self.beta2, self.eps, self.wd = lr, beta1, beta2, eps, weight_decay
        self.m = [torch.zeros_like(p) for p in self.params]
        self.v = [torch.zeros_like(p) for p in self.params]
        self.t = 0

    def zero_grad(self):
        for p in self.params:
            p.grad = None

    @torch.no_grad()
    def step(self):
        self.t += 1
        c1 = 1 - self.beta1 ** self.t
        c2 = 1 - self.beta2 ** self.t
        for p, m, v in zip(self.params, self.m, self.v):
            if p.grad is None:
                continue
            m.lerp_(p.grad, 1 - self.beta1)
            v.mul_(self.beta2).addcmul_(p.grad, p.grad, value=1 - self.beta2)
            p.mul_(1 - self.lr * self.wd)
            p.addcdiv_(m / c1, (v / c2).sqrt_().add_(self.eps), value=-self.lr)


def draw_shapes(n, size, g):
    yy, xx = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
    cx = torch.randint(2, size - 2, (n, 1, 1), generator=g)
    cy = torch.randint(2, size - 2, (n, 1, 1), generator=g)
    kind = torch.randint(0, 3, (n, 1, 1), generator=g)
    dx, dy = (xx - cx).abs(), (yy - cy).abs()
    square = (torch.maximum(dx, dy) <= 1)
    cross = ((dx == 0) & (dy <= 2)) | ((dy == 0) & (dx <= 2))
    diamond = (dx + dy == 2)
    img = torch.where(kind == 0, square, torch.where(kind == 1, cross, diamond)).float()
    return (2 * img - 1).flatten(1), kind.flatten()


class TimeEmbedding(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.register_buffer("freq", torch.exp(torch.linspace(0, math.log(60.0), dim // 2)))

    def forward(self, t):
        a = t[:, None] * self.freq
        return torch.cat([a.sin(), a.cos()], -1)


class VelocityNet(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        d = cfg.size ** 2
        self.time = TimeEmbedding(32)
        self.label = nn.Embedding(3, 32)
        self.inp = nn.Linear(d, cfg.width)
        self.cond = nn.ModuleList(nn.Linear(64, 2 * cfg.width) for _ in range(cfg.depth))
        self.norms = nn.ModuleList(nn.LayerNorm(cfg.width, elementwise_affine=False) for _ in range(cfg.depth))
        self.mlps = nn.ModuleList(
            nn.Sequential(nn.Linear(cfg.width, 2 * cfg.width), nn.SiLU(), nn.Linear(2 * cfg.width, cfg.width))
            for _ in range(cfg.depth))
        self.out = nn.Linear(cfg.width, d)

    def forward(self, x, t, y):
        c = torch.cat([self.time(t), self.label(y)], -1)
        h = self.inp(x)
        for cond, norm, mlp in zip(self.cond, self.norms, self.mlps):
            scale, shift = cond(c).chunk(2, -1)
            h = h + mlp(norm(h) * (1 + scale) + shift)
        return self.out(h)


def flow_loss(net, x1, y, g):
    x0 = torch.randn(x1.shape, generator=g)
    t = torch.rand(len(x1), generator=g)
    xt = (1 - t[:, None]) * x0 + t[:, None] * x1
    return F.mse_loss(net(xt, t, y), x1 - x0)


@torch.no_grad()
def sample_quality(net, cfg, real, labels, steps=20):
    g = torch.Generator().manual_seed(5)
    y = torch.arange(60) % 3
    x = torch.randn(60, cfg.size ** 2, generator=g)
    for i in range(steps):
        x = x + net(x, torch.full((60,), i / steps), y) / steps
    return torch.cdist(x, real).min(1).values.mean().item()


def main(cfg=FlowConfig()):
    torch.manual_seed(42)
    g = torch.Generator().manual_seed(43)
    data, labels = draw_shapes(4000, cfg.size, g)
    held, held_y = draw_shapes(500, cfg.size, g)
    net = VelocityNet(cfg)
    o = cfg.optim
    opt = AdamW(net.parameters(), o.lr, o.beta1, o.beta2, o.eps, o.weight_decay)
    for step in range(cfg.steps + 1):
        idx = torch.randint(0, len(data), (cfg.batch,), generator=g)
        loss = flow_loss(net, data[idx], labels[idx], g)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % cfg.log_every == 0:
            with torch.no_grad():
                val = flow_loss(net, held, held_y, torch.Generator().manual_seed(9)).item()
            dist = sample_quality(net, cfg, held, held_y)
            print(f"step {step:5d} loss {loss.item():.4f} val {val:.4f} nearest {dist:.3f}", flush=True)


if __name__ == "__main__":
    main()

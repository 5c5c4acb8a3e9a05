import argparse
import math

import torch
from torch import nn


class Schedule:
    def __init__(self, T=100):
        s = 0.008
        t = torch.linspace(0, 1, T + 1, dtype=torch.float64)
        f = torch.cos((t + s) / (1 + s) * math.pi / 2) ** 2
        ab = f / f[0]
        self.beta = (1 - ab[1:] / ab[:-1]).clamp(max=0.999).float()
        self.alpha = 1 - self.beta
        self.abar = torch.cumprod(self.alpha, 0)
        self.T = T


class Denoiser(nn.Module):
    def __init__(self, width=128):
        super().__init__()
        self.register_buffer("freq", torch.exp(torch.linspace(0, math.log(100.0), 16)))
        self.inp = nn.Linear(2 + 32, width)
        self.h1 = nn.Linear(width, width)
        self.h2 = nn.Linear(width, width)
        self.out = nn.Linear(width, 2)
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)

    def forward(self, x, t):
        a = t[:, None] * self.freq
        h = torch.nn.functional.silu(self.inp(torch.cat([x, a.sin(), a.cos()], 1)))
        h = h + torch.nn.functional.silu(self.h1(h))
        h = h + torch.nn.functional.silu(self.h2(h))
        return self.out(h)


def spiral(n):
    r = torch.rand(n).sqrt() * 3 * math.pi
    p = torch.stack([r * r.cos(), r * r.sin()], 1) / 5
    return p + 0.03 * torch.randn(n, 2)


@torch.no_grad()
def sample(model, sch, n):
    x = torch.randn(n, 2)
    for i in reversed(range(sch.T)):
        t = torch.full((n,), (i + 1) / sch.T)
        eps = model(x, t)
        x = (x - sch.beta[i] / (1 - sch.abar[i]).sqrt() * eps) / sch.alpha[i].sqrt()
        if i > 0:
            x = x + sch.beta[i].sqrt() * torch.randn_like(x)
    return x


def energy(a, b):
    return (2 * torch.cdist(a, b).mean() - torch.cdist(a, a).mean() - torch.cdist(b, b).mean()).item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=900)
    ap.add_argument("--batch", type=int, default=512)
    ap.add_argument("--lr", type=float, default=3e-3)
    args = ap.parse_args()
    torch.manual_seed(9)
    sch, model = Schedule(), Denoiser()
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.0)
    lr_sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, args.steps)
    print("energy distance before", round(energy(sample(model, sch, 1000), spiral(1000)), 4))
    smooth = 1.0
    for step in range(args.steps):
        x0 = spiral(args.batch)
        k = torch.randint(0, sch.T, (args.batch,))
        noise = torch.randn_like(x0)
        ab = sch.abar[k][:, None]
        xt = ab.sqrt() * x0 + (1 - ab).sqrt() * noise
        loss = (model(xt, (k + 1).float() / sch.T) - noise).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        lr_sched.step()
        smooth = 0.97 * smooth + 0.03 * loss.item()
        if step % 50 == 0 or step == args.steps - 1:

            print(f"step {step:4d} eps-mse {smooth:.4f}")
    print("energy distance after", round(energy(sample(model, sch, 1000), spiral(1000)), 4))


main()

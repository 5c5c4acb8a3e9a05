import math
import torch
from torch import nn


class Coupling(nn.Module):
    def __init__(self, dim, mask, hid=64):
        super().__init__()
        self.register_buffer("mask", mask)
        self.net = nn.Sequential(nn.Linear(dim, hid), nn.Tanh(), nn.Linear(hid, hid), nn.Tanh(), nn.Linear(hid, 2 * dim))
        nn.init.zeros_(self.net[-1].weight)
        nn.init.zeros_(self.net[-1].bias)

    def forward(self, x):
        s, t = self.net(x * self.mask).chunk(2, -1)
        s = 2 * torch.tanh(s / 2) * (1 - self.mask)
        return x * self.mask + (1 - self.mask) * (x * s.exp() + t), s.sum(-1)


class RealNVP(nn.Module):
    def __init__(self, dim, depth=8):
        super().__init__()
        base = (torch.arange(dim) % 2).float()
        self.layers = nn.ModuleList(Coupling(dim, base if i % 2 else 1 - base) for i in range(depth))
        self.log_scale = nn.Parameter(torch.zeros(dim))

    def log_prob(self, x):
        z, ld = x * self.log_scale.exp(), self.log_scale.sum()
        for l in self.layers:
            z, d = l(z)
            ld = ld + d
        return -0.5 * (z ** 2).sum(-1) - 0.5 * z.shape[-1] * math.log(2 * math.pi) + ld


def spectra(n, g):
    u = 6.28 * torch.rand(n, 2, generator=g)
    k = torch.arange(8).float()
    clean = torch.sin(u[:, :1] + 0.7 * k) * 0.4 + 0.2 * torch.cos(u[:, 1:] * 1 + 1.3 * k)
    return clean + 0.01 * torch.randn(n, 8, generator=g)


torch.manual_seed(0)
g = torch.Generator().manual_seed(1)
flow = RealNVP(8)
opt = torch.optim.Adam(flow.parameters(), lr=2e-3)
sch = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 450)
for i in range(450):
    nll = -flow.log_prob(spectra(256, g)).mean()
    opt.zero_grad()
    nll.backward()
    nn.utils.clip_grad_norm_(flow.parameters(), 20.0)
    opt.step()
    sch.step()
    if i % 50 == 0:
        print(i, "nll", round(nll.item(), 3))
x = spectra(4000, g)
gauss = torch.distributions.Normal(x.mean(0), x.std(0))
with torch.no_grad():
    print("held-out nll %.3f diagonal gaussian %.3f" % (-flow.log_prob(x).mean(), -gauss.log_prob(x).sum(-1).mean()))

import math
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils.parametrizations import spectral_norm as sn

torch.manual_seed(404)
PACK = 8


def real(n):
    k = torch.randint(0, 6, (n,)).float() * (2 * math.pi / 6)
    return torch.stack([k.cos(), k.sin()], -1) * 1.5 + 0.1 * torch.randn(n, 2)


class Critic(nn.Module):
    def __init__(self, d=48):
        super().__init__()
        self.a = sn(nn.Linear(2, d))
        self.b = sn(nn.Linear(d, d))
        self.att = nn.MultiheadAttention(d, 2, batch_first=True)
        self.c = sn(nn.Linear(2 * d, d))
        self.d = nn.Linear(d, 1)

    def forward(self, x):
        h = F.leaky_relu(self.b(F.leaky_relu(self.a(x), 0.2)), 0.2)
        h = torch.cat([h, self.att(h, h, h, need_weights=False)[0]], -1)
        return self.d(F.leaky_relu(self.c(h), 0.2).mean(1))


G = nn.Sequential(nn.Linear(4, 96), nn.ReLU(), nn.Linear(96, 96), nn.ReLU(), nn.Linear(96, 2))
D = Critic()
og = torch.optim.Adam(G.parameters(), lr=6e-4, betas=(0.5, 0.99))
od = torch.optim.Adam(D.parameters(), lr=1.5e-3, betas=(0.5, 0.99))


def fake(sets):
    return G(torch.randn(sets * PACK, 4)).view(sets, PACK, 2)


def sliced_w2(a, b, g=torch.Generator().manual_seed(0)):
    th = torch.rand(64, generator=g) * math.pi
    pr = torch.stack([th.cos(), th.sin()])
    return ((a @ pr).sort(0).values - (b @ pr).sort(0).values).square().mean().sqrt().item()


for step in range(501):
    r, f = real(32 * PACK).view(32, PACK, 2), fake(32)
    ld = F.relu(1 - D(r)).mean() + F.relu(1 + D(f.detach())).mean()
    od.zero_grad()
    ld.backward()
    od.step()
    lg = -D(fake(32)).mean()
    og.zero_grad()
    lg.backward()
    og.step()
    if step % 100 == 0:
        with torch.no_grad():
            w = sliced_w2(fake(250).view(-1, 2), real(2000))
        print(f"step {step} D {ld.item():.3f} G {lg.item():+.3f} distance to data {w:.3f}")

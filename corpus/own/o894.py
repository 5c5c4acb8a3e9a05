import math
import torch
from torch import nn
import torch.nn.functional as F


class Step(nn.Module):
    def __init__(self, d, h=4):
        super().__init__()
        self.h, self.d = h, d
        self.to_qkv = nn.Linear(d, 3 * d, bias=False)
        self.to_out = nn.Linear(d, d, bias=False)
        self.mlp = nn.Sequential(nn.Linear(d, 2 * d), nn.Mish(), nn.Linear(2 * d, d))
        self.g = nn.Parameter(torch.full((2, d), 0.4))

    def norm(self, x):
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)

    def forward(self, z, inject):
        u = self.norm(z + inject)
        q, k, v = self.to_qkv(u).unflatten(-1, (3, self.h, -1)).unbind(-3)
        w = F.relu(torch.einsum("bnhd,bmhd->bhnm", q, k) / math.sqrt(self.d // self.h)) ** 2
        a = torch.einsum("bhnm,bmhd->bnhd", w / z.shape[1], v).flatten(-2)
        z = z + self.g[0] * self.to_out(a)
        return z + self.g[1] * self.mlp(self.norm(z))


class SetReasoner(nn.Module):
    def __init__(self, d=48, loops=5):
        super().__init__()
        self.inp = nn.Sequential(nn.Linear(3, d), nn.Mish(), nn.Linear(d, d))
        self.cell = Step(d)
        self.loops = loops
        self.out = nn.Linear(d, 1)

    def forward(self, x):
        e = self.inp(x)
        z = torch.zeros_like(e)
        preds = []
        for _ in range(self.loops):
            z = self.cell(z, e)
            preds.append(self.out(z).squeeze(-1))
        return torch.stack(preds)


def particles(n, g):
    p = torch.rand(n, 14, 2, generator=g)
    q = torch.randn(n, 14, 1, generator=g)
    r2 = torch.cdist(p, p) ** 2
    phi = (torch.exp(-r2 / 0.08) * q.transpose(1, 2)).sum(-1)
    return torch.cat([p * 2 - 1, q], -1), phi


torch.manual_seed(25)
g = torch.Generator().manual_seed(26)
net = SetReasoner()
opt = torch.optim.NAdam(net.parameters(), lr=2e-3)
sch = torch.optim.lr_scheduler.CyclicLR(opt, 5e-4, 3e-3, step_size_up=40, mode="triangular2", cycle_momentum=False)
weights = torch.linspace(0.2, 1.0, 5)
for it in range(400):
    x, y = particles(32, g)
    err = (net(x) - y).abs().mean((1, 2))
    loss = (weights * err).sum()
    opt.zero_grad()
    loss.backward()
    opt.step()
    sch.step()
    if it % 50 == 0:
        print(it, "loss", round(loss.item(), 4), "last loop", round(err[-1].item(), 4))
x, y = particles(600, g)
with torch.no_grad():
    e = net(x)
print("held-out mae %.4f of mean %.4f; r2 %.4f" % ((e[-1] - y).abs().mean(), y.abs().mean(), 1 - (e[-1] - y).var() / y.var()))

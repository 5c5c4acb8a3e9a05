import copy, math
import numpy as np
import torch
import torch.nn as nn


rng = np.random.RandomState(0)
torch.manual_seed(0)

def moons(n):
    t = rng.rand(n) * math.pi
    up = rng.rand(n) < .5
    x = np.where(up, np.cos(t), 1 - np.cos(t))
    y = np.where(up, np.sin(t), .5 - np.sin(t))
    d = np.stack([x, y], 1) + .06 * rng.randn(n, 2)
    return torch.tensor((d - [.5, .25]) * 0.5, dtype=torch.float32)

class Coupling(nn.Module):
    def __init__(self, swap, h=64):
        super().__init__()
        self.swap = swap
        self.net = nn.Sequential(nn.Linear(1, h), nn.Tanh(), nn.Linear(h, h), nn.Tanh(), nn.Linear(h, 2))

        self.net[-1].weight.data.zero_()
        self.net[-1].bias.data.zero_()
        self.log_scale_max = nn.Parameter(torch.tensor(1.0))
    def forward(self, x):
        a, b = x[:, :1], x[:, 1:]
        if self.swap: a, b = b, a
        s, t = self.net(a).chunk(2, 1)
        s = self.log_scale_max * torch.tanh(s)
        b = b * s.exp() + t
        return (torch.cat([b, a], 1) if self.swap else torch.cat([a, b], 1)), s.squeeze(1)

class ActNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.logs = nn.Parameter(torch.zeros(2)); self.b = nn.Parameter(torch.zeros(2)); self.init = False
    def forward(self, x):
        if not self.init:
            with torch.no_grad():
                self.b.copy_(-x.mean(0)); self.logs.copy_(-x.std(0).log())
            self.init = True
        return (x + self.b) * self.logs.exp(), self.logs.sum().expand(len(x))

class Flow(nn.Module):
    def __init__(self, k=6):
        super().__init__()
        self.layers = nn.ModuleList()
        for i in range(k):
            self.layers += [ActNorm(), Coupling(i % 2 == 1)]
    def log_prob(self, x):
        ld = 0
        for l in self.layers:
            x, d = l(x)
            ld = ld + d
        return -0.5 * (x ** 2).sum(1) - math.log(2 * math.pi) + ld

flow = Flow()
opt = torch.optim.Adam(flow.parameters(), lr=2e-3)
flow.log_prob(moons(1000))
ema = copy.deepcopy(flow).requires_grad_(False)
test = moons(2000)
N = 500
for it in range(N):
    for g in opt.param_groups:
        g['lr'] = 2e-3 * min(1, (it + 1) / 20) * (1 - it / N)
    nll = -flow.log_prob(moons(256)).mean()
    opt.zero_grad()
    nll.backward()
    nn.utils.clip_grad_norm_(flow.parameters(), 5.)
    opt.step()
    with torch.no_grad():
        for pe, p in zip(ema.parameters(), flow.parameters()):
            pe.mul_(.98).add_(p, alpha=.02)
    if it % 25 == 0 or it == N - 1:
        with torch.no_grad():
            print('iter', it, 'nll', round(nll.item(), 4), 'test nll (ema)', round(-ema.log_prob(test).mean().item(), 4))

import math
import numpy as np
import torch
from torch import nn


rng = np.random.default_rng(11)
torch.manual_seed(11)
torch.set_num_threads(1)


def make(n):
    a = rng.uniform(-math.pi, math.pi, n)
    b = rng.normal(0, 0.7, n)
    x = np.stack([np.cos(a), np.sin(a), np.cos(a + b), np.sin(a + b), b, b ** 2], 1)
    return torch.tensor(x * 0.3 + rng.normal(0, 0.02, x.shape), dtype=torch.float32)


train, test = make(20000), make(4000)
D = train.shape[1]


class ActNorm(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.loc = nn.Parameter(torch.zeros(d))
        self.logs = nn.Parameter(torch.zeros(d))
        self.register_buffer("ready", torch.tensor(False))

    def forward(self, x):
        if not self.ready:
            with torch.no_grad():
                self.loc.copy_(-x.mean(0))
                self.logs.copy_(-x.std(0).log())
                self.ready.fill_(True)
        return (x + self.loc) * self.logs.exp(), self.logs.sum().expand(len(x))


class LULinear(nn.Module):
    def __init__(self, d):
        super().__init__()
        q, _ = torch.linalg.qr(torch.randn(d, d))
        p, l, u = torch.linalg.lu(q)
        self.register_buffer("p", p)
        self.l = nn.Parameter(l.tril(-1))
        self.u = nn.Parameter(u.triu(1))
        s = u.diagonal()
        self.register_buffer("sign", s.sign())
        self.logs = nn.Parameter(s.abs().log())
        self.register_buffer("eye", torch.eye(d))

    def forward(self, x):
        w = self.p @ (self.l.tril(-1) + self.eye) @ (self.u.triu(1) + torch.diag(self.sign * self.logs.exp()))
        return x @ w.T, self.logs.sum().expand(len(x))


class Coupling(nn.Module):
    def __init__(self, d, hidden):
        super().__init__()
        self.k = d // 2
        self.net = nn.Sequential(nn.Linear(self.k, hidden), nn.SiLU(), nn.Linear(hidden, hidden), nn.SiLU(),
                                 nn.Linear(hidden, 2 * (d - self.k)))
        nn.init.zeros_(self.net[-1].weight)
        nn.init.zeros_(self.net[-1].bias)

    def forward(self, x):
        xa, xb = x[:, :self.k], x[:, self.k:]
        s, t = self.net(xa).chunk(2, 1)
        s = 2.0 * torch.tanh(s / 2.0)
        return torch.cat([xa, xb * s.exp() + t], 1), s.sum(1)


class Flow(nn.Module):
    def __init__(self, d, n=5, hidden=48):
        super().__init__()
        layers = []
        for _ in range(n):
            layers += [ActNorm(d), LULinear(d), Coupling(d, hidden)]
        self.layers = nn.ModuleList(layers)

    def log_prob(self, x):
        ld = x.new_zeros(len(x))
        for l in self.layers:
            x, d = l(x)
            ld = ld + d
        return ld - 0.5 * (x ** 2).sum(1) - 0.5 * D * math.log(2 * math.pi)


flow = Flow(D)
with torch.no_grad():
    flow.log_prob(train[:1024])
opt = torch.optim.Adam(flow.parameters(), lr=1e-3)
sched = torch.optim.lr_scheduler.OneCycleLR(opt, 4e-3, total_steps=500)

mu, cov = train.mean(0), torch.cov(train.T)
gauss = torch.distributions.MultivariateNormal(mu, cov)
print(f"gaussian baseline nll {-gauss.log_prob(test).mean():.3f}")
for it in range(500):
    xb = train[torch.randint(len(train), (160,))]
    loss = -flow.log_prob(xb).mean()
    opt.zero_grad(set_to_none=True)
    loss.backward()
    g = nn.utils.clip_grad_norm_(flow.parameters(), 20.0)
    opt.step()
    sched.step()
    if it % 50 == 0 or it == 499:
        with torch.no_grad():
            te = -flow.log_prob(test).mean()
        print(f"it {it:5d} train nll {loss.item():8.3f} test nll {te.item():8.3f} |g| {g:.2f}")

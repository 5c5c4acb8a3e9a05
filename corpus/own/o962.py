import math
import torch
from torch import nn

torch.manual_seed(88)


class Sine(nn.Module):
    def __init__(self, i, o, omega, first=False):
        super().__init__()
        self.lin = nn.Linear(i, o)
        self.omega = omega
        bound = 1 / i if first else math.sqrt(6 / i) / omega
        nn.init.uniform_(self.lin.weight, -bound, bound)

    def forward(self, x):
        return torch.sin(self.omega * self.lin(x))


class WaveField(nn.Module):
    def __init__(self, width=48, depth=3):
        super().__init__()
        layers = [Sine(2, width, 6.0, True)]
        layers += [Sine(width, width, 6.0) for _ in range(depth - 1)]
        self.net = nn.Sequential(*layers, nn.Linear(width, 1))

    def forward(self, x, t):
        raw = self.net(torch.stack([x, t], -1)).squeeze(-1)
        return torch.sin(math.pi * x) * (1 + t ** 2 * raw)


def derivative(y, x):
    return torch.autograd.grad(y, x, torch.ones_like(y), create_graph=True)[0]


def exact(x, t):
    return torch.sin(math.pi * x) * torch.cos(math.pi * t)


def residual(model, x, t):
    u = model(x, t)
    u_tt = derivative(derivative(u, t), t)
    u_xx = derivative(derivative(u, x), x)
    return u_tt - u_xx


gx, gt = torch.meshgrid(torch.linspace(0, 1, 41), torch.linspace(0, 1, 41), indexing="ij")
gx, gt = gx.flatten(), gt.flatten()
model = WaveField()
opt = torch.optim.Adam(model.parameters(), lr=1e-3)
STEPS = 900
sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, STEPS)
for step in range(1, STEPS + 1):
    x = torch.rand(256, requires_grad=True)
    t = torch.rand(256, requires_grad=True)
    loss = residual(model, x, t).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    sched.step()
    if step % 100 == 0:
        with torch.no_grad():
            err = (model(gx, gt) - exact(gx, gt)).norm() / exact(gx, gt).norm()
        print(f"step {step} residual {loss.item():.5f} relative error {err.item():.5f}")

print(f"relative L2 error against the closed form {err.item():.5f}")

import math

import torch
from torch import nn
from torch.func import functional_call, grad, vmap

torch.manual_seed(19)
torch.set_default_dtype(torch.float64)

ZETA, OMEGA, FORCE, DRIVE, T_END = 0.15, 2.0, 1.0, 1.2, 8.0


class Net(nn.Module):
    def __init__(self, width=40):
        super().__init__()
        self.register_buffer("freq", torch.arange(1, 5) * math.pi / T_END)
        self.l1, self.l2, self.l3 = nn.Linear(9, width), nn.Linear(width, width), nn.Linear(width, 1)

    def forward(self, t):
        a = t.unsqueeze(-1) * self.freq
        h = torch.cat([(2 * t / T_END - 1).unsqueeze(-1), a.sin(), a.cos()], -1)
        return self.l3(torch.tanh(self.l2(torch.tanh(self.l1(h))))).squeeze(-1)


net = Net()
params = {k: v.detach().clone().requires_grad_(True) for k, v in net.named_parameters()}
buffers = dict(net.named_buffers())


def x_of(p, t):
    return 1.0 + (1 - torch.exp(-t)) ** 2 * functional_call(net, (p, buffers), (t,))


dx_of = grad(x_of, argnums=1)
ddx_of = grad(dx_of, argnums=1)


def residual(p, t):
    return ddx_of(p, t) + 2 * ZETA * OMEGA * dx_of(p, t) + OMEGA ** 2 * x_of(p, t) - FORCE * torch.cos(DRIVE * t)


def objective(p, ts):
    return vmap(residual, in_dims=(None, 0))(p, ts).square().mean()


def exact(t):
    k, c = OMEGA ** 2 - DRIVE ** 2, 2 * ZETA * OMEGA * DRIVE
    a, b = FORCE * k / (k * k + c * c), FORCE * c / (k * k + c * c)
    wd, s = OMEGA * math.sqrt(1 - ZETA ** 2), ZETA * OMEGA
    c1 = 1 - a
    c2 = (s * c1 - b * DRIVE) / wd
    return a * torch.cos(DRIVE * t) + b * torch.sin(DRIVE * t) + torch.exp(-s * t) * (c1 * torch.cos(wd * t) + c2 * torch.sin(wd * t))


grid = torch.linspace(0, T_END, 400)
e1 = vmap(grad(exact))(grid)
e2 = vmap(grad(grad(exact)))(grid)
assert (e2 + 2 * ZETA * OMEGA * e1 + OMEGA ** 2 * exact(grid) - FORCE * torch.cos(DRIVE * grid)).abs().max() < 1e-9


def error(p):
    with torch.no_grad():
        x = x_of(p, grid)
    return ((x - exact(grid)).square().mean().sqrt() / exact(grid).square().mean().sqrt()).item()


opt = torch.optim.Adam(params.values(), lr=1e-2)
STEPS = 320
sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, STEPS, eta_min=1e-5)
for step in range(STEPS):
    ts = (torch.arange(100) + torch.rand(100)) * T_END / 100
    loss = objective(params, ts)
    opt.zero_grad()
    loss.backward()
    opt.step()
    sched.step()
    if step % 32 == 0 or step == STEPS - 1:
        print(f"step {step:4d} residual loss {loss.item():.3e} relative error {error(params):.4f}")

import math

import torch
import torch.nn as nn
from torch.func import functional_call, grad, vmap

OMEGA, HIDDEN, WAVES = 6.0, 48, 2.0
torch.manual_seed(19)


class Sine(nn.Module):
    def __init__(self, d_in, d_out, first=False):
        super().__init__()
        self.linear = nn.Linear(d_in, d_out)
        bound = 1 / d_in if first else math.sqrt(6 / d_in) / OMEGA
        nn.init.uniform_(self.linear.weight, -bound, bound)

    def forward(self, x):
        return torch.sin(OMEGA * self.linear(x))


class Field(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(Sine(1, HIDDEN, first=True), Sine(HIDDEN, HIDDEN), nn.Linear(HIDDEN, 1))
        nn.init.uniform_(self.net[-1].weight, -0.05, 0.05)
        self.log_k = nn.Parameter(torch.tensor(0.0))

    def forward(self, x):
        return self.net(x.reshape(-1, 1)).squeeze(-1)


def exact(x):
    return torch.sin(WAVES * math.pi * x) + 0.3 * torch.cos(3 * x)


TRUE_K = 2.5


def source(x):
    u_xx = -(WAVES * math.pi) ** 2 * torch.sin(WAVES * math.pi * x) - 2.7 * torch.cos(3 * x)
    return u_xx - TRUE_K * exact(x)


model = Field()
params = {k: v for k, v in model.named_parameters()}


def u(p, x):
    return functional_call(model, p, (x,)).squeeze()


u_xx = grad(grad(u, argnums=1), argnums=1)

collocation = torch.linspace(-1, 1, 64)
sensors = torch.linspace(-1, 1, 9)
readings = exact(sensors)
grid = torch.linspace(-1, 1, 201)


def residual(p):
    curv = vmap(u_xx, in_dims=(None, 0))(p, collocation)
    k = p["log_k"].exp()
    return curv - k * functional_call(model, p, (collocation,)) - source(collocation)


def total_loss(p):
    physics = residual(p).pow(2).mean()
    data = (functional_call(model, p, (sensors,)) - readings).pow(2).mean()
    return 1e-2 * physics + 100.0 * data


def report(tag, step, loss):
    with torch.no_grad():
        err = (model(grid) - exact(grid)).norm() / exact(grid).norm()
    print(f"{tag} {step:4d} loss {loss:.6f} relative error {err.item():.4f} k {model.log_k.exp().item():.3f}", flush=True)


slow = [p for n, p in params.items() if n != "log_k"]
adam = torch.optim.Adam([{"params": slow, "lr": 2e-3}, {"params": [params["log_k"]], "lr": 1e-2}])
for step in range(500):
    adam.zero_grad()
    loss = total_loss(params)
    loss.backward()
    adam.step()
    if step % 50 == 0:
        report("adam", step, loss.item())

lbfgs = torch.optim.LBFGS(model.parameters(), lr=1.0, max_iter=20, history_size=20, line_search_fn="strong_wolfe")


def closure():
    lbfgs.zero_grad()
    value = total_loss(params)
    value.backward()
    return value


for round_ in range(8):
    loss = lbfgs.step(closure)
    report("lbfgs", round_, loss.item())

import math
import torch
import torch.nn as nn

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)
c, k = 0.4, 4.0
t = torch.linspace(0, 5, 120).unsqueeze(1).requires_grad_(True)
w = math.sqrt(k - c * c / 4)
exact = lambda s: torch.exp(-c * s / 2) * (torch.cos(w * s) + c / (2 * w) * torch.sin(w * s))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.f = nn.Sequential(nn.Linear(1, 40), nn.Tanh(), nn.Linear(40, 40), nn.Tanh(), nn.Linear(40, 1))

    def forward(self, s):
        return 1 + s ** 2 * self.f(s / 2.5 - 1) / (1 + s ** 2)


u = Net()


def residual():
    x = u(t)
    v, = torch.autograd.grad(x, t, torch.ones_like(x), create_graph=True)
    a, = torch.autograd.grad(v, t, torch.ones_like(v), create_graph=True)
    return (a + c * v + k * x).square().mean()


opt = torch.optim.Adam(u.parameters(), lr=5e-3)
sch = torch.optim.lr_scheduler.ExponentialLR(opt, 0.9985)
for i in range(1500):
    loss = residual()
    opt.zero_grad()
    loss.backward()
    opt.step()
    sch.step()
    if i % 250 == 0:
        print(f"adam {i} residual {loss.item():.3e}")

fine = torch.optim.LBFGS(u.parameters(), lr=1.0, max_iter=10, history_size=30, line_search_fn="strong_wolfe")


def closure():
    fine.zero_grad()
    l = residual()
    l.backward()
    return l


for i in range(25):
    l = fine.step(closure)
    if i % 6 == 0:
        print(f"lbfgs {i} residual {l.item():.3e}")
s = torch.rand(500, 1) * 5
with torch.no_grad():
    print(f"max error against the closed form at new times: {(u(s) - exact(s)).abs().max().item():.2e}")

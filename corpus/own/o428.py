import math
import torch
import torch.nn as nn
from torch.optim.lr_scheduler import CosineAnnealingWarmRestarts


class Siren(nn.Module):
    """sin activations with omega_0 = 20 and the matching wide first-layer init"""

    def __init__(self, width=96, depth=3, omega=20.0):
        super().__init__()
        self.omega = omega
        dims = [2] + [width] * depth
        self.lin = nn.ModuleList(nn.Linear(a, b) for a, b in zip(dims, dims[1:]))
        self.out = nn.Linear(width, 1)
        with torch.no_grad():
            for i, l in enumerate(self.lin):
                lim = 1 / l.in_features if i == 0 else math.sqrt(6 / l.in_features) / omega
                l.weight.uniform_(-lim, lim)

    def forward(self, p):
        h = p
        for l in self.lin:
            h = torch.sin(self.omega * l(h))
        return self.out(h).squeeze(-1)


def field(p):
    x, y = p.unbind(-1)
    r = (x ** 2 + y ** 2).sqrt()
    return torch.sin(9 * r + 2 * torch.atan2(y, x)) * torch.exp(-r) + 0.3 * torch.cos(7 * x) * torch.sin(5 * y)


@torch.no_grad()
def evaluate(net, points):
    """mean squared error on a fixed lattice"""
    return (net(points) - field(points)).square().mean().item()


def main(total=420, cycle=140):
    torch.manual_seed(14)
    net = Siren()
    opt = torch.optim.Adam(net.parameters(), lr=1.5e-3)
    sched = CosineAnnealingWarmRestarts(opt, T_0=cycle, eta_min=1e-5)
    grid = torch.linspace(-1, 1, 64)
    test = torch.stack(torch.meshgrid(grid, grid, indexing="ij"), -1).view(-1, 2)
    for it in range(total):
        p = torch.rand(512, 2) * 2 - 1
        loss = (net(p) - field(p)).square().mean()
        loss.backward()
        opt.step()
        opt.zero_grad()
        sched.step()
        if it % 20 == 0 or it == total - 1:
            print(f"it {it} lr {sched.get_last_lr()[0]:.2e} loss {loss.item():.5f}", flush=True)
    err = evaluate(net, test)
    print(f"grid mse {err:.5f}  psnr {-10 * math.log10(err):.2f} dB")


if __name__ == "__main__":
    main()

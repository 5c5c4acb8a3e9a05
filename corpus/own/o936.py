import math
import torch
import torch.nn as nn
import torch.nn.functional as F


def burgers_like(n, grid, gen, nu=0.02, steps=60, dt=0.01):
    x = torch.arange(grid) / grid
    u = torch.zeros(n, grid)
    for k in range(1, 5):
        a = torch.randn(n, 1, generator=gen) / k
        b = torch.randn(n, 1, generator=gen) / k
        u = u + a * torch.sin(2 * math.pi * k * x) + b * torch.cos(2 * math.pi * k * x)
    u0 = u.clone()
    freq = torch.fft.rfftfreq(grid, 1 / grid)
    decay = torch.exp(-nu * (2 * math.pi * freq) ** 2 * dt)
    keep = (freq < grid / 3).float()
    for _ in range(steps):
        du = torch.fft.irfft(2j * math.pi * freq * torch.fft.rfft(u), n=grid)
        u = u - dt * 0.3 * u * du
        u = torch.fft.irfft(torch.fft.rfft(u) * decay * keep, n=grid)
    return u0, u


class SpectralConv(nn.Module):
    def __init__(self, width, modes):
        super().__init__()
        self.modes = modes
        self.weight = nn.Parameter(torch.randn(width, width, modes, 2) / width)

    def forward(self, x):
        xf = torch.fft.rfft(x)
        w = torch.view_as_complex(self.weight)
        out = torch.zeros_like(xf)
        out[..., :self.modes] = torch.einsum("bim,iom->bom", xf[..., :self.modes], w)
        return torch.fft.irfft(out, n=x.size(-1))


class FourierLayer(nn.Module):
    def __init__(self, width, modes):
        super().__init__()
        self.spectral = SpectralConv(width, modes)
        self.local = nn.Conv1d(width, width, 1)

    def forward(self, x):
        return x + F.gelu(self.spectral(x) + self.local(x))


class FNO1d(nn.Module):
    def __init__(self, width=24, modes=12, depth=4):
        super().__init__()
        self.lift = nn.Conv1d(2, width, 1)
        self.layers = []
        for _ in range(depth):
            self.layers.append(FourierLayer(width, modes))
        self.project = nn.Sequential(nn.Conv1d(width, 48, 1), nn.GELU(), nn.Conv1d(48, 1, 1))

    def forward(self, u):
        g = torch.linspace(0, 1, u.size(-1)).expand_as(u)
        h = self.lift(torch.stack([u, g], 1))
        for layer in self.layers:
            h = layer(h)
        return self.project(h).squeeze(1)


def rel_l2(pred, true):
    return ((pred - true).norm(dim=-1) / true.norm(dim=-1)).mean()


def main():
    torch.manual_seed(42)
    gen = torch.Generator().manual_seed(42)
    grid = 64
    a, u = burgers_like(1000, grid, gen)
    at, ut = burgers_like(200, grid, gen)
    model = FNO1d()
    opt = torch.optim.Adam(model.parameters(), lr=2e-3)
    epochs, bs = 14, 25
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, epochs)
    for ep in range(epochs):
        perm = torch.randperm(len(a), generator=gen)
        tot = 0.0
        for i in range(0, len(a), bs):
            j = perm[i:i + bs]
            loss = rel_l2(model(a[j]), u[j])
            opt.zero_grad()
            loss.backward()
            opt.step()
            tot += loss.item() * len(j)
        sched.step()
        with torch.no_grad():
            test = rel_l2(model(at), ut).item()
        print(f"epoch {ep:2d} train rel-l2 {tot / len(a):.4f} test rel-l2 {test:.4f}")
    print(f"final test relative error: {test:.4f}")


main()

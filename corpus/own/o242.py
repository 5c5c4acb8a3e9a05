import torch
import torch.nn as nn
import torch.nn.functional as F


class Items:
    def __init__(self, n=600, seed=5):
        self.g = torch.Generator().manual_seed(seed)
        self.latent = torch.randn(n, 16, generator=self.g)
        self.mix = torch.randn(16, 12 * 10, generator=self.g) / 4

    def view(self, z):
        clean = (z @ self.mix).view(len(z), 12, 10)
        keep = torch.rand(len(z), 12, 1, generator=self.g) > 0.25
        return clean * keep + 0.5 * torch.randn(len(z), 12, 10, generator=self.g)

    def pair(self, n):
        z = self.latent[torch.randperm(len(self.latent), generator=self.g)[:n]]
        return self.view(z), self.view(z)


class Tower(nn.Module):
    def __init__(self, d, out=24):
        super().__init__()
        self.inp = nn.Linear(10, d)
        self.pos = nn.Parameter(0.1 * torch.randn(12, d))
        self.enc = nn.TransformerEncoderLayer(d, 4, 2 * d, dropout=0.0, batch_first=True, norm_first=True)
        self.out = nn.Sequential(nn.Linear(12 * d, d), nn.ReLU(), nn.Linear(d, out, bias=False))

    def forward(self, x):
        return F.normalize(self.out(self.enc(self.inp(x) + self.pos).flatten(1)), dim=-1)


class InfoNCE(nn.Module):
    def __init__(self, start=0.07, end=0.008, steps=120):
        super().__init__()
        self.start, self.end, self.steps = start, end, steps

    def one_way(self, sim):
        denom = torch.exp(sim).sum(dim=1)
        return -torch.log(torch.exp(sim.diagonal()) / denom).mean()

    def temperature(self, step):
        return self.start + (self.end - self.start) * min(1.0, step / self.steps)

    def forward(self, a, b, step):
        sim = a @ b.t() / self.temperature(step)
        return 0.5 * (self.one_way(sim) + self.one_way(sim.t()))


def main():
    torch.manual_seed(4)
    items = Items()
    tower, criterion = Tower(64), InfoNCE()
    opt = torch.optim.AdamW(tower.parameters(), lr=1e-3, weight_decay=0.0)
    for step in range(1, 201):
        left, right = items.pair(48)
        loss = criterion(tower(left), tower(right), step)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step == 1 or step % 10 == 0:
            print(f"step {step:4d} contrastive {loss.item():.4f} temperature {criterion.temperature(step):.4f}")


main()

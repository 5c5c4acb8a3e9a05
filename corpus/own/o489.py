import torch
import torch.nn as nn
import torch.nn.functional as F


def bars(n, size=10):
    rows = torch.rand(n, size, 1) < 0.15
    cols = torch.rand(n, 1, size) < 0.15
    img = (rows ^ cols).float()
    flip = torch.rand(n, size, size) < 0.01
    return torch.where(flip, 1 - img, img).view(n, -1)


class VAE(nn.Module):
    def __init__(self, d=100, h=200, z=20):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(d, h), nn.GELU(), nn.Linear(h, h), nn.GELU())
        self.mu = nn.Linear(h, z)
        self.logvar = nn.Linear(h, z)
        self.dec = nn.Sequential(nn.Linear(z, h), nn.GELU(), nn.Linear(h, h), nn.GELU(), nn.Linear(h, d))

    def forward(self, x):
        h = self.enc(2 * x - 1)
        mu, lv = self.mu(h), self.logvar(h).clamp(-8, 4)
        z = mu + torch.randn_like(mu) * (0.5 * lv).exp()
        rec = F.binary_cross_entropy_with_logits(self.dec(z), x, reduction="none").sum(1).mean()
        kl = 0.5 * (mu.pow(2) + lv.exp() - 1 - lv).sum(1).mean()
        return rec, kl


def train(steps=600, warm=200, bs=128):
    torch.manual_seed(31)
    model = VAE()
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    val = bars(1000)
    hist = []
    for i in range(steps):
        beta = min(1.0, i / warm)
        rec, kl = model(bars(bs))
        loss = rec + beta * kl
        opt.zero_grad()
        loss.backward()
        opt.step()
        if i % 30 == 0 or i == steps - 1:
            model.eval()
            with torch.no_grad():
                r, k = model(val)
            model.train()
            hist.append((r + k).item())
            print(f"step {i:4d} beta {beta:.2f} loss {loss.item():8.3f} rec {rec.item():8.3f} kl {kl.item():7.3f} val -ELBO {hist[-1]:.3f}")
    assert hist[-1] < 0.8 * hist[0]


if __name__ == "__main__":
    train()

import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.distributions import Bernoulli, Independent, Normal, kl_divergence


def draw(n, g, size=16):
    ax = torch.arange(size).float()
    yy, xx = torch.meshgrid(ax, ax, indexing="ij")
    c = 5 + 5 * torch.rand(n, 2, 1, 1, generator=g)
    r = 2.5 + 2 * torch.rand(n, 1, 1, generator=g)
    th = math.pi * torch.rand(n, 1, 1, generator=g)
    dx, dy = xx - c[:, 0], yy - c[:, 1]
    d = (dx ** 2 + dy ** 2).sqrt()
    disc = d < r
    ring = (d < r + 0.7) & (d > r - 1.2)
    u, v = dx * th.cos() + dy * th.sin(), -dx * th.sin() + dy * th.cos()
    bar = (u.abs() < r + 1.5) & (v.abs() < 1.2)
    kind = torch.randint(3, (n, 1, 1), generator=g)
    return torch.where(kind == 0, disc, torch.where(kind == 1, ring, bar)).float().unsqueeze(1)


class Encoder(nn.Module):
    def __init__(self, z):
        super().__init__()
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(256, 200), nn.ELU(), nn.Linear(200, 200), nn.ELU(),
                                 nn.Linear(200, 2 * z))

    def forward(self, x):
        mu, raw = self.net(x).chunk(2, -1)
        return Independent(Normal(mu, F.softplus(raw + 0.5) + 1e-4), 1)


class Decoder(nn.Module):
    def __init__(self, z, base_rate):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(z, 200), nn.ELU(), nn.Linear(200, 200), nn.ELU(), nn.Linear(200, 256))
        nn.init.constant_(self.net[-1].bias, math.log(base_rate / (1 - base_rate)))

    def forward(self, z):
        return Independent(Bernoulli(logits=self.net(z).view(-1, 1, 16, 16), validate_args=False), 3)


class VAE(nn.Module):
    def __init__(self, z, base_rate):
        super().__init__()
        self.enc, self.dec = Encoder(z), Decoder(z, base_rate)
        self.register_buffer("zero", torch.zeros(z))

    def terms(self, x):
        q = self.enc(x)
        prior = Independent(Normal(self.zero.expand_as(q.mean), 1.0), 1)
        z = q.rsample()
        return -self.dec(z).log_prob(x), kl_divergence(q, prior)

    @torch.no_grad()
    def iwae(self, x, k=10):
        q = self.enc(x)
        prior = Independent(Normal(self.zero.expand_as(q.mean), 1.0), 1)
        lw = []
        for _ in range(k):
            z = q.sample()
            lw.append(self.dec(z).log_prob(x) + prior.log_prob(z) - q.log_prob(z))
        return (torch.logsumexp(torch.stack(lw), 0) - math.log(k)).mean().item()


def beta_at(step, warm):
    return min(1.0, step / warm)


if __name__ == "__main__":
    torch.manual_seed(9)
    g = torch.Generator().manual_seed(9)
    train, test = draw(6000, g), draw(600, g)
    vae = VAE(8, train.mean().item())
    opt = torch.optim.Adam(vae.parameters(), lr=2.5e-3)
    steps, warm = 400, 150
    for step in range(steps):
        x = train[torch.randint(len(train), (100,), generator=g)]
        rec, kl = vae.terms(x)
        beta = beta_at(step, warm)
        loss = (rec + beta * kl).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 50 == 0 or step == steps - 1:
            with torch.no_grad():
                r, k = vae.terms(test)
            print(f"step {step:4d} beta {beta:.2f} loss {loss.item():8.3f} rec {rec.mean().item():8.3f} kl {kl.mean().item():6.3f}"
                  f" | held-out -ELBO {(r + k).mean().item():8.3f}")
    p = train.mean(0, keepdim=True).clamp(1e-3, 1 - 1e-3)
    indep = F.binary_cross_entropy(p.expand_as(test), test, reduction="sum") / len(test)
    print(f"held-out nll: IWAE-10 bound {-vae.iwae(test[:500]):.3f}, independent pixels {indep.item():.3f}")

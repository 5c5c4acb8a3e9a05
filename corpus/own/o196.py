import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(58)


class PatchVAE(nn.Module):
    def __init__(self, patches=16, size=8, dim=48, latent=8):
        super().__init__()
        self.inp = nn.Linear(size, dim)
        self.cls = nn.Parameter(torch.zeros(1, 1, dim))
        self.pos = nn.Parameter(torch.randn(patches + 1, dim) * 0.1)
        self.enc = nn.TransformerEncoderLayer(dim, 4, 96, 0.0, batch_first=True, norm_first=True)
        self.stats = nn.Linear(dim, 2 * latent)
        self.up = nn.Linear(latent, dim)
        self.qpos = nn.Parameter(torch.randn(patches, dim) * 0.5)
        self.dec = nn.TransformerEncoderLayer(dim, 4, 96, 0.0, batch_first=True, norm_first=True)
        self.out = nn.Linear(dim, size)

    def forward(self, x):
        h = torch.cat([self.cls.expand(len(x), -1, -1), self.inp(x)], 1) + self.pos
        mu, lv = self.stats(self.enc(h)[:, 0]).chunk(2, -1)
        z = mu + torch.randn_like(mu) * torch.exp(0.5 * lv)
        r = self.out(self.dec(self.up(z).unsqueeze(1) + self.qpos))
        return r, mu, lv


def images(n):
    t = torch.arange(128).float() / 128
    a = torch.rand(n, 1) * 2 + 1
    f = torch.rand(n, 1) * 3 + 1
    return (a * torch.sin(6.28 * f * t)).view(n, 16, 8)


net = PatchVAE()
opt = torch.optim.Adam(net.parameters(), lr=2e-3)
for step in range(220):
    x = images(32)
    r, mu, lv = net(x)
    rec = F.mse_loss(r, x, reduction="sum") / len(x)
    kl = -0.5 * (1 + lv - mu.square() - lv.exp()).sum(-1).mean()
    beta = min(1.0, step / 150)
    loss = rec + beta * kl
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(net.parameters(), 50.0)
    opt.step()
    if step % 20 == 0 or step == 219:
        print(f"step {step:3d} elbo {loss.item():9.3f} rec {rec.item():9.3f} kl {kl.item():7.3f} beta {beta:.2f}")

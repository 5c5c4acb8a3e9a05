import math
import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(4)


def waves(n, T=64):
    t = torch.linspace(0, 1, T)
    f = torch.randint(1, 6, (n, 1)).float()
    ph = torch.rand(n, 1) * 2 * math.pi
    kind = torch.rand(n, 1)
    s = torch.sin(2 * math.pi * f * t + ph)
    w = torch.where(kind < 0.5, s, torch.sign(s) * 0.8)
    return (w + 0.05 * torch.randn(n, T)).unsqueeze(1)


class Quantizer(nn.Module):
    def __init__(self, k=64, d=16, decay=0.95):
        super().__init__()
        self.decay, self.k = decay, k
        self.register_buffer("book", torch.randn(k, d))
        self.register_buffer("count", torch.ones(k))
        self.register_buffer("total", self.book.clone())
        self.ready = False

    def forward(self, z):
        flat = z.detach().permute(0, 2, 1).reshape(-1, z.size(1))
        if self.training and not self.ready:
            self.book.copy_(flat[torch.randperm(len(flat))[: self.k]])
            self.total.copy_(self.book)
            self.ready = True
        idx = torch.cdist(flat, self.book).argmin(1)
        q = self.book[idx].view(z.size(0), -1, z.size(1)).permute(0, 2, 1)
        if self.training:
            hot = F.one_hot(idx, self.k).float()
            self.count.lerp_(hot.sum(0), 1 - self.decay)
            self.total.lerp_(hot.T @ flat, 1 - self.decay)
            self.book = self.total / (self.count.unsqueeze(1) + 1e-5)
            dead = self.count < 0.05
            if dead.any():
                pick = flat[torch.randint(0, len(flat), (int(dead.sum()),))]
                self.book[dead] = pick
                self.total[dead] = pick
                self.count[dead] = 1.0
        commit = F.mse_loss(z, q.detach())
        p = torch.bincount(idx, minlength=self.k).float() / len(idx)
        perplexity = torch.exp(-(p * (p + 1e-10).log()).sum())
        return z + (q - z).detach(), commit, perplexity


class VQVAE(nn.Module):
    def __init__(self, c=48, d=16):
        super().__init__()
        self.enc = nn.Sequential(nn.Conv1d(1, c, 4, 2, 1), nn.ReLU(), nn.Conv1d(c, c, 4, 2, 1), nn.ReLU(), nn.Conv1d(c, d, 3, 1, 1))
        self.vq = Quantizer(d=d)
        self.dec = nn.Sequential(nn.Conv1d(d, c, 3, 1, 1), nn.ReLU(), nn.ConvTranspose1d(c, c, 4, 2, 1), nn.ReLU(),
                                 nn.ConvTranspose1d(c, 1, 4, 2, 1))

    def forward(self, x):
        q, commit, ppl = self.vq(self.enc(x))
        return self.dec(q), commit, ppl


net = VQVAE()
opt = torch.optim.Adam(net.parameters(), lr=2e-3)
val = waves(512)
for step in range(300):
    x = waves(48)
    out, commit, ppl = net(x)
    rec = F.mse_loss(out, x)
    loss = rec + 0.25 * commit
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 25 == 0 or step == 299:
        net.eval()
        with torch.no_grad():
            v = F.mse_loss(net(val)[0], val)
        net.train()
        print("step %d loss %.4f rec %.4f commit %.4f perplexity %.1f val rec %.4f" %
              (step, loss.item(), rec.item(), commit.item(), ppl.item(), v.item()))

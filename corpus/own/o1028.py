import math

import numpy as np
import torch
from torch import nn
import torch.nn.functional as F


class BernoulliST(torch.autograd.Function):
    @staticmethod
    def forward(ctx, p):
        return (torch.rand_like(p) < p).to(p.dtype)

    @staticmethod
    def backward(ctx, g):
        return g


def strokes(n, seed):
    r = np.random.default_rng(seed)
    yy, xx = np.mgrid[0:14, 0:14].astype(np.float32)
    x = np.zeros((n, 196), np.float32)
    for i in range(n):
        img = np.zeros((14, 14), bool)
        for _ in range(2):
            if r.random() < 0.5:
                c = r.integers(1, 12)
                img |= np.abs(yy - c) < 1
            else:
                c = r.integers(1, 12)
                img |= np.abs(xx - c) < 1
        x[i] = img.ravel()
    return torch.from_numpy(x)


class BitAE(nn.Module):
    def __init__(self, bits=32, hid=192):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(196, hid), nn.LayerNorm(hid), nn.ReLU(), nn.Linear(hid, bits))
        self.dec = nn.Sequential(nn.Linear(bits, hid), nn.ReLU(), nn.Linear(hid, hid), nn.ReLU(), nn.Linear(hid, 196))
        for m in self.modules():
            if isinstance(m, nn.Linear):
                nn.init.orthogonal_(m.weight, gain=math.sqrt(2) if m.out_features != bits else 1.0)
                nn.init.zeros_(m.bias)
        for p in self.enc.parameters():
            p.register_hook(lambda g: 0.5 * g)
        for p in self.parameters():
            p.register_hook(lambda g: g.clamp(-1.0, 1.0))

    def forward(self, x):
        p = torch.sigmoid(self.enc(x))
        z = BernoulliST.apply(p) if self.training else (p > 0.5).float()
        return self.dec(2 * z - 1), p


def rate(p):
    p = p.clamp(1e-5, 1 - 1e-5)
    return (p * torch.log(2 * p) + (1 - p) * torch.log(2 * (1 - p))).sum(1).mean()


def beta_at(step, period=150, top=1.0):
    return top * min(1.0, 2.0 * (step % period) / period)


def main():
    torch.manual_seed(2)
    train, test = strokes(4000, 0), strokes(500, 1)
    net = BitAE()
    opt = torch.optim.Adam(net.parameters(), lr=2e-3)
    total = 600
    for step in range(total):
        x = train[torch.randint(0, len(train), (128,))]
        beta = beta_at(step)
        logits, p = net(x)
        rec = F.binary_cross_entropy_with_logits(logits, x, reduction="none").sum(1).mean()
        kl = rate(p)
        loss = rec + beta * kl
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step == 450:
            for g in opt.param_groups:
                g["lr"] *= 0.3
        if step % 25 == 0 or step == total - 1:
            print(f"step {step:3d} loss {loss.item():8.3f} rec {rec.item():8.3f} rate {kl.item():6.3f} beta {beta:.2f}")
        if step % 150 == 149:
            net.eval()
            with torch.no_grad():
                out, _ = net(test)
                err = ((out > 0) != (test > 0.5)).float().mean().item()
                tl = F.binary_cross_entropy_with_logits(out, test, reduction="none").sum(1).mean().item()
            net.train()
            print(f"   test rec {tl:.3f} pixel error {err:.4f}")


if __name__ == "__main__":
    main()

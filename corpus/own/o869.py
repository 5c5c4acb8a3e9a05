import math
from dataclasses import dataclass
import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class Cfg:
    codes: int = 64
    dim: int = 8
    hidden: int = 48
    beta: float = 0.25
    steps: int = 500
    batch: int = 48
    lr: float = 2e-3


class Quantizer(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.codebook = nn.Embedding(c.codes, c.dim)
        nn.init.uniform_(self.codebook.weight, -1.0 / c.codes, 1.0 / c.codes)

    def forward(self, x):
        flat = x.reshape(-1, x.shape[-1])
        idx = torch.cdist(flat, self.codebook.weight).argmin(-1)
        z = self.codebook(idx).view_as(x)
        z_q = x + (z - x).detach()
        return z_q, z, idx


class Tokenizer(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        self.enc = nn.Sequential(nn.Conv2d(1, c.hidden, 4, 4), nn.GELU(), nn.Conv2d(c.hidden, c.hidden, 1), nn.GELU(), nn.Conv2d(c.hidden, c.dim, 1))
        self.vq = Quantizer(c)
        self.inp = nn.Linear(c.dim, c.hidden)
        self.mix = nn.TransformerEncoderLayer(c.hidden, 4, 96, dropout=0.0, batch_first=True, norm_first=True)
        self.out = nn.Linear(c.hidden, 16)

    def encode(self, img):
        x = self.enc(img).flatten(2).transpose(1, 2)
        z_q, z, idx = self.vq(x)
        return z_q, x, z, idx

    def forward(self, img):
        z_q, z_e, z, idx = self.encode(img)
        h = self.mix(self.inp(z_q))
        rec = F.fold(self.out(h).transpose(1, 2), img.shape[-2:], 4, stride=4)
        codebook_loss = F.mse_loss(z, z_e.detach())
        commit = F.mse_loss(z_e, z.detach())
        return rec, codebook_loss, commit, idx


def sample(n, protos, g):
    pick = torch.randint(0, protos.shape[0], (n, 16), generator=g)
    amp = 0.9 + 0.2 * torch.rand(n, 16, 1, generator=g)
    tiles = protos[pick] * amp
    img = F.fold(tiles.transpose(1, 2), (16, 16), 4, stride=4)
    return img + 0.05 * torch.randn(img.shape, generator=g)


def main():
    c = Cfg()
    torch.manual_seed(3)
    g = torch.Generator().manual_seed(11)
    protos = torch.randn(16, 16, generator=g)
    test = sample(256, protos, g)
    net = Tokenizer(c)
    opt = torch.optim.Adam(net.parameters(), lr=c.lr)
    for it in range(c.steps):
        img = sample(c.batch, protos, g)
        rec, cb, commit, idx = net(img)
        rec_loss = F.mse_loss(rec, img)
        loss = rec_loss + cb + c.beta * commit
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        if it % 40 == 0:
            print(f"it {it:4d} rec {rec_loss.item():.4f} cb {cb.item():.5f} used {idx.unique().numel()}")
    with torch.no_grad():
        rec, _, _, idx = net(test)
        print(f"held-out reconstruction mse {F.mse_loss(rec, test).item():.4f} variance {test.var().item():.4f} codes {idx.unique().numel()}")


main()

import time
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn


@dataclass
class Cfg:
    img: int = 24
    patch: int = 4
    dim: int = 64
    dec_dim: int = 48
    depth: int = 2
    dec_depth: int = 2
    heads: int = 4
    mask_ratio: float = 0.5
    batch: int = 32
    steps: int = 280
    lr: float = 2e-3
    seed: int = 3


def textures(n, size, rng):
    yy, xx = np.meshgrid(np.linspace(0, 1, size), np.linspace(0, 1, size), indexing="ij")
    out = np.zeros((n, size, size), np.float32)
    for i in range(n):
        ang, freq, ph = rng.uniform(0, np.pi), rng.uniform(0.6, 1.5), rng.uniform(0, 2 * np.pi)
        gy, gx = rng.normal(0, 0.8, 2)
        out[i] = np.sin(2 * np.pi * freq * (np.cos(ang) * xx + np.sin(ang) * yy) + ph) + gy * (yy - .5) + gx * (xx - .5)
    return torch.from_numpy(out + 0.03 * rng.standard_normal(out.shape).astype(np.float32))


def sincos_1d(dim, pos):
    omega = 1.0 / 100 ** (torch.arange(dim // 2, dtype=torch.float32) / (dim / 2))
    ang = pos.reshape(-1)[:, None] * omega[None]
    return torch.cat([ang.sin(), ang.cos()], dim=1)


def sincos_2d(dim, side):
    grid_h = torch.arange(side, dtype=torch.float32)
    grid_w = torch.arange(side, dtype=torch.float32)
    grid = torch.stack(torch.meshgrid(grid_h, grid_w, indexing="ij"))
    emb_h = sincos_1d(dim // 2, grid[0])
    emb_w = sincos_1d(dim // 2, grid[1])
    return torch.cat([emb_h, emb_w], dim=1)[None]


def layer(dim, heads):
    return nn.TransformerEncoderLayer(dim, heads, dim * 3, dropout=0.0, activation="gelu",
                                      batch_first=True, norm_first=True)


class MAE(nn.Module):
    def __init__(self, c: Cfg):
        super().__init__()
        self.c = c
        self.side = c.img // c.patch
        self.n = self.side ** 2
        self.proj = nn.Linear(c.patch ** 2, c.dim)
        self.register_buffer("pos", sincos_2d(c.dim, self.side))
        self.register_buffer("dec_pos", sincos_2d(c.dec_dim, self.side))
        self.encoder = nn.Sequential(*[layer(c.dim, c.heads) for _ in range(c.depth)], nn.LayerNorm(c.dim))
        self.to_dec = nn.Linear(c.dim, c.dec_dim)
        self.mask_token = nn.Parameter(torch.zeros(1, 1, c.dec_dim))
        nn.init.normal_(self.mask_token, std=0.02)
        self.decoder = nn.Sequential(*[layer(c.dec_dim, c.heads) for _ in range(c.dec_depth)], nn.LayerNorm(c.dec_dim))
        self.pred = nn.Linear(c.dec_dim, c.patch ** 2)

    def patchify(self, x):
        b, s, p = x.shape[0], self.side, self.c.patch
        return x.view(b, s, p, s, p).permute(0, 1, 3, 2, 4).reshape(b, s * s, p * p)

    def shuffle(self, b):
        noise = torch.rand(b, self.n)
        order = noise.argsort(1)
        restore = order.argsort(1)
        keep = int(self.n * (1 - self.c.mask_ratio))
        mask = torch.ones(b, self.n)
        mask[:, :keep] = 0
        return order[:, :keep], restore, mask.gather(1, restore)

    def forward(self, img):
        target = self.patchify(img)
        b = target.shape[0]
        keep, restore, mask = self.shuffle(b)
        x = self.proj(target) + self.pos
        x = x.gather(1, keep[..., None].expand(-1, -1, x.shape[-1]))
        z = self.to_dec(self.encoder(x))
        full = torch.cat([z, self.mask_token.expand(b, self.n - z.shape[1], -1)], 1)
        full = full.gather(1, restore[..., None].expand(-1, -1, full.shape[-1]))
        out = self.pred(self.decoder(full + self.dec_pos))
        err = (out - target).pow(2).mean(-1)
        return (err * mask).sum() / mask.sum()


class Trainer:
    def __init__(self, cfg):
        torch.manual_seed(cfg.seed)
        rng = np.random.default_rng(cfg.seed)
        self.cfg = cfg
        self.train_x = textures(3000, cfg.img, rng)
        self.val_x = textures(400, cfg.img, rng)
        self.model = MAE(cfg)
        self.opt = torch.optim.AdamW(self.model.parameters(), lr=cfg.lr, betas=(0.9, 0.95), weight_decay=0.05)
        self.sched = torch.optim.lr_scheduler.OneCycleLR(self.opt, cfg.lr, total_steps=cfg.steps, pct_start=0.1)

    @torch.no_grad()
    def validate(self):
        self.model.eval()
        v = sum(self.model(b).item() * len(b) for b in self.val_x.split(100)) / len(self.val_x)
        self.model.train()
        return v

    def fit(self):
        t0, run = time.time(), 0.0
        print(f"pixel variance {self.val_x.var().item():.3f}")
        for i in range(self.cfg.steps):
            batch = self.train_x[torch.randint(0, len(self.train_x), (self.cfg.batch,))]
            loss = self.model(batch)
            self.opt.zero_grad(set_to_none=True)
            loss.backward()
            self.opt.step()
            self.sched.step()
            run += loss.item()
            if (i + 1) % 40 == 0:
                print(f"it {i + 1:4d} | masked mse {run / 40:.4f} | {time.time() - t0:.1f}s")
                run = 0.0
        print(f"held-out masked mse {self.validate():.4f}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    Trainer(Cfg()).fit()

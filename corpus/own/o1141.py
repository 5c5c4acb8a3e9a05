import math
import warnings
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

warnings.filterwarnings("ignore")


@dataclass
class Config:
    codes: int = 48
    side: int = 7
    dim: int = 64
    heads: int = 4
    depth: int = 3
    batch: int = 24
    steps: int = 350
    lr: float = 1.5e-3
    seed: int = 21


def make_grids(n, cfg, gen):
    tg = torch.Generator().manual_seed(99)
    right = torch.randperm(cfg.codes, generator=tg)
    down = torch.randperm(cfg.codes, generator=tg)
    grid = torch.randint(cfg.codes, (n, cfg.side, cfg.side), generator=gen)
    stripes = torch.rand(n, generator=gen) < 0.5
    for r in range(cfg.side):
        for c in range(cfg.side):
            noise = torch.rand(n, generator=gen) < 0.04
            if r > 0:
                new = down[grid[:, r - 1, c]]
            elif c > 0:
                new = torch.where(stripes, right[grid[:, r, c - 1]], grid[:, r, c])
            else:
                continue
            grid[:, r, c] = torch.where(noise, grid[:, r, c], new)
    return grid.flatten(1)


def sinusoid(n, d):
    t = torch.arange(n)[:, None] / 50 ** (torch.arange(0, d, 2)[None] / d)
    return torch.cat([t.sin(), t.cos()], -1)


class Block(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(cfg.dim), nn.LayerNorm(cfg.dim)
        self.qkv = nn.Linear(cfg.dim, 3 * cfg.dim)
        self.proj = nn.Linear(cfg.dim, cfg.dim)
        self.mlp = nn.Sequential(nn.Linear(cfg.dim, 4 * cfg.dim), nn.GELU(), nn.Linear(4 * cfg.dim, cfg.dim))
        self.heads = cfg.heads

    def forward(self, x):
        B, T, D = x.shape
        q, k, v = self.qkv(self.n1(x)).view(B, T, 3, self.heads, D // self.heads).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(a.transpose(1, 2).reshape(B, T, D))
        return x + self.mlp(self.n2(x))


class Prior(nn.Module):
    def __init__(self, cfg, codebook):
        super().__init__()
        self.register_buffer("codebook", codebook)
        self.register_buffer("pos", sinusoid(cfg.side ** 2, cfg.dim))
        self.blocks = nn.ModuleList(Block(cfg) for _ in range(cfg.depth))
        self.norm = nn.LayerNorm(cfg.dim)
        self.head = nn.Linear(cfg.dim, cfg.codes)

    def forward(self, codes):
        x = F.pad(self.codebook[codes[:, :-1]], (0, 0, 1, 0)) + self.pos
        for blk in self.blocks:
            x = checkpoint(blk, x, use_reentrant=False) if self.training else blk(x)
        return self.head(self.norm(x))


def main():
    cfg = Config()
    torch.manual_seed(cfg.seed)
    gen = torch.Generator().manual_seed(cfg.seed)
    codebook = torch.randn(cfg.codes, cfg.dim)
    model = Prior(cfg, codebook)
    opt = torch.optim.AdamW(model.parameters(), lr=cfg.lr, weight_decay=0.02)
    lr_fn = lambda s: min(1.0, (s + 1) / 25) * (0.1 + 0.45 * (1 + math.cos(math.pi * s / cfg.steps)))
    sched = torch.optim.lr_scheduler.LambdaLR(opt, lr_fn)
    test = make_grids(128, cfg, torch.Generator().manual_seed(4))
    for step in range(1, cfg.steps + 1):
        codes = make_grids(cfg.batch, cfg, gen)
        loss = F.cross_entropy(model(codes).flatten(0, 1), codes.flatten())
        opt.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        sched.step()
        if step % 25 == 0:
            print(f"step={step} nll={loss.item():.4f}", flush=True)
    model.eval()
    with torch.no_grad():
        nll = F.cross_entropy(model(test).flatten(0, 1), test.flatten()).item()
    print(f"test nll={nll:.4f} bits/code={nll / math.log(2):.3f}")


if __name__ == "__main__":
    main()

import math
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(11)
torch.set_num_threads(1)

T, H, P = 4, 16, 4
N = (H // P) ** 2
DIRS = torch.tensor([[0, 1], [0, -1], [1, 0], [-1, 0], [1, 1], [-1, -1], [1, -1], [-1, 1]]).float()


def make_clips(n, gen):
    y = torch.randint(0, len(DIRS), (n,), generator=gen)
    start = torch.rand(n, 2, generator=gen) * H
    speed = 2.0 + torch.rand(n, 1, generator=gen)
    width = 1.5 + 0.5 * torch.rand(n, 1, 1, 1, generator=gen)
    t = torch.arange(T).float()
    centre = (start[:, None] + DIRS[y][:, None] * speed[:, None] * t[None, :, None]) % H
    grid = torch.arange(H).float()
    dy = (grid[None, None, :] - centre[..., 0:1] + H / 2) % H - H / 2
    dx = (grid[None, None, :] - centre[..., 1:2] + H / 2) % H - H / 2
    d2 = dy[..., :, None] ** 2 + dx[..., None, :] ** 2
    clip = torch.exp(-d2 / (2 * width ** 2))
    clip = clip + 0.05 * torch.randn(clip.shape, generator=gen)
    return clip, y


class Attention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, dim * 3)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x):
        B, L, D = x.shape
        q, k, v = self.qkv(x).reshape(B, L, 3, self.heads, D // self.heads).permute(2, 0, 3, 1, 4)
        o = F.scaled_dot_product_attention(q, k, v)
        return self.proj(o.transpose(1, 2).reshape(B, L, D))


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.norm_t, self.attn_t = nn.LayerNorm(dim), Attention(dim, heads)
        self.norm_s, self.attn_s = nn.LayerNorm(dim), Attention(dim, heads)
        self.norm_m = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def forward(self, x):
        B, T, N, D = x.shape
        xt = self.norm_t(x).reshape(B * N, T, D)
        xt = self.attn_t(xt).reshape(B, T, N, D)
        x = x + xt
        xs = self.norm_s(x).reshape(B * T, N, D)
        x = x + self.attn_s(xs).reshape(B, T, N, D)
        return x + self.mlp(self.norm_m(x))


class VideoTransformer(nn.Module):
    def __init__(self, dim=48, depth=2, heads=4, classes=8):
        super().__init__()
        self.embed = nn.Linear(P * P, dim)
        self.pos_s = nn.Parameter(torch.randn(1, 1, N, dim) * 0.1)
        self.pos_t = nn.Parameter(torch.randn(1, T, 1, dim) * 0.5)
        self.blocks = nn.ModuleList(Block(dim, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, classes)

    def forward(self, clip):
        B = clip.shape[0]
        g = H // P
        x = clip.reshape(B, T, g, P, g, P).permute(0, 1, 2, 4, 3, 5).reshape(B, T, N, P * P)
        x = self.embed(x) + self.pos_s + self.pos_t
        for blk in self.blocks:
            x = blk(x)
        return self.head(self.norm(x).mean(dim=(1, 2)))


def evaluate(model, x, y):
    model.eval()
    with torch.no_grad():
        logits = torch.cat([model(c) for c in x.split(128)])
    model.train()
    return F.cross_entropy(logits, y).item(), (logits.argmax(-1) == y).float().mean().item()


def main():
    gen = torch.Generator().manual_seed(0)
    xtr, ytr = make_clips(4096, gen)
    xva, yva = make_clips(512, gen)
    model = VideoTransformer()
    steps, batch, peak = 300, 32, 3e-3
    opt = torch.optim.AdamW(model.parameters(), lr=peak, weight_decay=0.01)
    sched = torch.optim.lr_scheduler.LambdaLR(
        opt, lambda s: min(1, (s + 1) / 30) * (0.5 + 0.5 * math.cos(math.pi * s / steps)))
    t0 = time.time()
    for step in range(1, steps + 1):
        idx = torch.randint(0, len(xtr), (batch,))
        loss = F.cross_entropy(model(xtr[idx]), ytr[idx])
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        sched.step()
        if step % 20 == 0 or step == 1:
            print(f"step {step:4d}  loss {loss.item():.4f}  lr {sched.get_last_lr()[0]:.2e}")
        if step % 100 == 0:
            vl, va = evaluate(model, xva, yva)
            print(f"  val loss {vl:.4f}  val acc {va:.3f}  ({time.time() - t0:.1f}s)")


if __name__ == "__main__":
    main()

import math
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)

CHANNELS, CONTEXT, HORIZON = 3, 48, 12
DIM, HEADS, LAYERS = 48, 4, 2
STEPS, BATCH = 220, 16


def make_series(length, seed):
    rng = np.random.default_rng(seed)
    t = np.arange(length)
    day = np.sin(2 * np.pi * t / 24)[:, None] * rng.uniform(0.6, 1.2, CHANNELS)
    week = np.cos(2 * np.pi * t / 60)[:, None] * rng.uniform(0.2, 0.6, CHANNELS)
    eps = rng.normal(0, 0.45, (length, CHANNELS))
    ar = np.zeros((length, CHANNELS))
    for i in range(2, length):
        ar[i] = 0.75 * ar[i - 1] - 0.2 * ar[i - 2] + eps[i]
    x = day + week + ar
    return ((x - x.mean(0)) / x.std(0)).astype(np.float32)


class TokenEmbedding(nn.Module):

    def __init__(self, c_in, d_model, kernel=3):
        super().__init__()
        self.kernel = kernel
        self.conv = nn.Conv1d(c_in, d_model, kernel, bias=False)

    def forward(self, x):
        return self.conv(F.pad(x.transpose(1, 2), (self.kernel - 1, 0))).transpose(1, 2)


class Attention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(y.transpose(1, 2).reshape(b, t, d))


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attn = Attention(dim, heads)
        self.ff = nn.Sequential(nn.Linear(dim, 3 * dim), nn.GELU(), nn.Linear(3 * dim, dim))

    def forward(self, x):
        x = x + self.attn(self.n1(x))
        return x + self.ff(self.n2(x))


class Forecaster(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = TokenEmbedding(CHANNELS, DIM)
        self.pos = nn.Parameter(torch.randn(1, CONTEXT, DIM) * 0.02)
        self.blocks = nn.ModuleList(Block(DIM, HEADS) for _ in range(LAYERS))
        self.norm = nn.LayerNorm(DIM)
        self.head = nn.Linear(DIM, CHANNELS)

    def forward(self, x):
        h = self.embed(x) + self.pos[:, : x.size(1)]
        for blk in self.blocks:
            h = blk(h)
        return self.head(self.norm(h))

    @torch.no_grad()
    def rollout(self, x, steps):
        for _ in range(steps):
            nxt = self(x[:, -CONTEXT:])[:, -1:]
            x = torch.cat([x, nxt], dim=1)
        return x[:, -steps:]


def windows(series, n, length, gen):
    start = torch.randint(0, len(series) - length, (n,), generator=gen)
    return torch.stack([series[s:s + length] for s in start.tolist()])


def main():
    gen = torch.Generator().manual_seed(5)
    full = torch.from_numpy(make_series(6000, seed=4))
    train, test = full[:5000], full[5000:]
    model = Forecaster()
    opt = torch.optim.Adam(model.parameters(), lr=1.5e-3)
    lr = torch.optim.lr_scheduler.LambdaLR(
        opt, lambda s: min(1.0, (s + 1) / 20) * 0.5 * (1 + math.cos(math.pi * min(s / STEPS, 1.0))))
    for step in range(STEPS):
        w = windows(train, BATCH, CONTEXT + 1, gen)
        loss = F.mse_loss(model(w[:, :-1]), w[:, 1:])
        opt.zero_grad()
        loss.backward()
        opt.step()
        lr.step()
        if step % 20 == 0 or step == STEPS - 1:
            print(f"step {step:4d}  one-step mse {loss.item():.4f}")
    model.eval()
    w = windows(test, 128, CONTEXT + HORIZON, gen)
    pred = model.rollout(w[:, :CONTEXT], HORIZON)
    truth = w[:, CONTEXT:]
    naive = w[:, CONTEXT - 1:CONTEXT].expand_as(truth)
    print(f"rollout mse over {HORIZON} steps {F.mse_loss(pred, truth):.4f}   last-value baseline {F.mse_loss(naive, truth):.4f}")


if __name__ == "__main__":
    main()

import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, IterableDataset

KINDS = 8


class Signals(IterableDataset):
    def __init__(self, seed, channels=3, length=96):
        self.seed, self.channels, self.length = seed, channels, length

    def __iter__(self):
        g = torch.Generator().manual_seed(self.seed)
        t = torch.arange(self.length) / self.length
        while True:
            kind = int(torch.randint(KINDS, (1,), generator=g))
            freq = 3.0 + 2.0 * (kind % 4) + 0.6 * (torch.rand(1, generator=g) - 0.5)
            shift = 6.28 * torch.rand(self.channels, 1, generator=g)
            base = torch.sin(2 * math.pi * freq * t + shift)
            if kind >= 4:
                base = base.sign() * base.abs().sqrt()
            yield base + 0.5 * torch.randn(self.channels, self.length, generator=g), kind


class ChannelNorm(nn.Module):
    def __init__(self, channels, eps=1e-5):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.eps = eps

    def forward(self, x):
        mu = x.mean(dim=-1, keepdim=True)
        var = (x - mu).pow(2).mean(dim=-1, keepdim=True)
        x = (x - mu) / torch.sqrt(var + self.eps)
        return x * self.weight[:, None] + self.bias[:, None]


class MixBlock(nn.Module):
    def __init__(self, c, heads=4):
        super().__init__()
        self.heads = heads
        self.depthwise = nn.Conv1d(c, c, 5, padding=2, groups=c)
        self.qkv = nn.Conv1d(c, 3 * c, 1)
        self.merge = nn.Conv1d(c, c, 1)
        self.norm_a, self.norm_b = ChannelNorm(c), ChannelNorm(c)
        self.wide = nn.Conv1d(c, 3 * c, 1)
        self.narrow = nn.Conv1d(3 * c, c, 1)

    def forward(self, x):
        n, c, t = x.shape
        x = x + self.depthwise(x)
        q, k, v = self.qkv(self.norm_a(x)).view(n, 3, self.heads, c // self.heads, t).transpose(-1, -2).unbind(1)
        x = x + self.merge(F.scaled_dot_product_attention(q, k, v).transpose(-1, -2).reshape(n, c, t))
        return x + self.narrow(F.gelu(self.wide(self.norm_b(x))))


class Recogniser(nn.Module):
    def __init__(self, c=48, depth=2):
        super().__init__()
        self.stem = nn.Conv1d(3, c, 8, stride=4, padding=2)
        self.blocks = nn.Sequential(*(MixBlock(c) for _ in range(depth)))
        self.norm = ChannelNorm(c)
        self.fc = nn.Linear(c, KINDS)

    def forward(self, x):
        return self.fc(self.norm(self.blocks(F.gelu(self.stem(x)))).mean(dim=-1))


torch.manual_seed(40)
net = Recogniser()
opt = torch.optim.Adam(net.parameters(), lr=1e-3)
smooth = 0.0
for step, (x, y) in enumerate(DataLoader(Signals(41), batch_size=32)):
    loss = F.cross_entropy(net(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    smooth = loss.item() if step == 0 else 0.9 * smooth + 0.1 * loss.item()
    if step % 20 == 0:
        print(f"step {step} | loss {smooth:.4f}")
    if step == 260:
        break

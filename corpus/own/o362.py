import math

import torch
import torch.nn as nn
import torch.nn.functional as F

CHANNELS, SAMPLES, PATCH, CLASSES = 4, 96, 8, 6


def record(n, gen):
    label = torch.randint(CLASSES, (n,), generator=gen)
    freq = 2.0 + 1.7 * label.float() + 0.3 * torch.randn(n, generator=gen)
    t = torch.linspace(0, 1, SAMPLES)
    phase = 2 * math.pi * torch.rand(n, CHANNELS, 1, generator=gen)
    wave = torch.sin(2 * math.pi * freq.view(n, 1, 1) * t + phase)
    wave = wave + 0.3 * torch.randn(n, CHANNELS, SAMPLES, generator=gen)
    gain = 400 + 1600 * torch.rand(n, 1, 1, generator=gen)
    counts = (wave * gain).round()
    return counts, label


class RMSNorm(nn.Module):
    def __init__(self, d, eps=1e-5):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(d))
        self.eps = eps

    def forward(self, x):
        ms = x.square().mean(-1, keepdim=True)
        return x * torch.rsqrt(ms + self.eps) * self.weight


class Block(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.heads = heads
        self.n1, self.n2 = RMSNorm(d), RMSNorm(d)
        self.qkv = nn.Linear(d, 3 * d, bias=False)
        self.o = nn.Linear(d, d, bias=False)
        self.up, self.down = nn.Linear(d, 2 * d), nn.Linear(2 * d, d)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        w = ((q @ k.transpose(-1, -2)) / math.sqrt(d // self.heads)).softmax(-1)
        x = x + self.o((w @ v).transpose(1, 2).reshape(b, t, d))
        return x + self.down(F.gelu(self.up(self.n2(x))))


class VibrationNet(nn.Module):
    def __init__(self, d=48, heads=4, depth=1):
        super().__init__()
        self.patch = nn.Linear(CHANNELS * PATCH, d)
        self.stem = RMSNorm(d)
        self.pos = nn.Parameter(0.05 * torch.randn(SAMPLES // PATCH, d))
        self.blocks = nn.ModuleList(Block(d, heads) for _ in range(depth))
        self.norm = RMSNorm(d)
        self.head = nn.Linear(d, CLASSES)

    def forward(self, x):
        n = x.size(0)
        x = x.view(n, CHANNELS, -1, PATCH).transpose(1, 2).flatten(2)
        h = self.stem(self.patch(x)) + self.pos
        for b in self.blocks:
            h = b(h)
        return self.head(self.norm(h).mean(1))


torch.manual_seed(11)
gen = torch.Generator().manual_seed(12)
net = VibrationNet()
opt = torch.optim.AdamW(net.parameters(), lr=1.5e-3, weight_decay=0.01)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
for it in range(110):
    x, y = record(24, gen)
    with torch.autocast("cpu", dtype=torch.float16):
        logits = net(x)
    loss = F.cross_entropy(logits.float(), y)
    opt.zero_grad(set_to_none=True)
    scaler.scale(loss).backward()
    scaler.unscale_(opt)
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    scaler.step(opt)
    scaler.update()
    if it % 10 == 0 or it == 109:
        acc = (logits.argmax(-1) == y).float().mean().item()
        print(f"it {it:3d}  loss {loss.item():.4f}  acc {acc:.2f}  scale {scaler.get_scale():.0f}")
